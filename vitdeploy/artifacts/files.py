"""Files that are either whole or absent: atomic writes, digests, strict JSON.

The system's own errors (permissions, a full disk) become ours here, with the
file they are about.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from cattrs.preconf.json import make_converter

from vitdeploy.artifacts import strict
from vitdeploy.errors import InputError, OutputError, one_line

Record = TypeVar("Record")

_converter = strict.without_coercion(make_converter(forbid_extra_keys=True))
_FULL = (errno.ENOSPC, errno.EDQUOT)
_WITH_OUT = "give a folder you may write to with --out"


@contextmanager
def atomic_path(destination: Path, *, remedy: str = _WITH_OUT) -> Iterator[Path]:
    """A temporary path beside `destination`, renamed onto it when the block succeeds.

    Whatever interrupts the block (an error, Ctrl-C, a full disk), the
    destination keeps its old content and the temporary file is removed.

    Raises OutputError where the folder cannot be written or the disk is full;
    `remedy` is its hint.
    """
    # The suffix stays last: some writers choose their format by it.
    temporary = destination.with_name(
        f".{destination.stem}.{secrets.token_hex(4)}.partial{destination.suffix}"
    )
    try:
        if destination.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(destination))
        destination.parent.mkdir(parents=True, exist_ok=True)
        temporary.touch()
        mode = temporary.stat().st_mode  # some writers make their files readable to no one else
        yield temporary
        temporary.chmod(mode)
        temporary.replace(destination)
    except OSError as error:
        raise _as_output_error(error, destination, remedy) from error
    finally:
        # Where even its folder cannot exist there is nothing to remove.
        with suppress(OSError):
            temporary.unlink()


@contextmanager
def needing_room(destination: Path) -> Iterator[None]:
    """Name `destination` where the disk is full: the system's error names what was copied to it."""
    try:
        yield
    except OSError as error:
        if error.errno not in (*_FULL, errno.EFBIG):
            raise
        raise _as_output_error(error, destination, _WITH_OUT) from error


def require_writable(destination: Path, *, remedy: str = _WITH_OUT) -> None:
    """Raise OutputError where `destination` could not be written, before work goes into it.

    Nothing is left behind; of a folder that is still to be made, the one above is tried.
    """
    try:
        folder = next(parent for parent in destination.parents if parent.exists())
    except OSError as error:
        raise _as_output_error(error, destination, remedy) from error
    with suppress(_Probed), atomic_path(folder / destination.name, remedy=remedy):
        raise _Probed


class _Probed(Exception):
    """Ends an atomic write before it replaces anything."""


def write_bytes(destination: Path, content: bytes, *, remedy: str = _WITH_OUT) -> None:
    """Write `content` to `destination` whole or not at all."""
    with atomic_path(destination, remedy=remedy) as temporary:
        temporary.write_bytes(content)


def write_text(destination: Path, content: str, *, remedy: str = _WITH_OUT) -> None:
    """Write `content` as UTF-8 to `destination` whole or not at all."""
    write_bytes(destination, content.encode(), remedy=remedy)


def file_digest(path: Path) -> str:
    """sha256 of the file's bytes, as hex. Raises InputError where they cannot be read."""
    with reading(path, "file"), path.open("rb") as stream:
        digest = hashlib.sha256()
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def to_json(record: Any) -> str:
    """A frozen record as indented JSON."""
    return json.dumps(_converter.unstructure(record), indent=2, allow_nan=False) + "\n"


def plain(record: Any) -> Any:
    """A frozen record as dicts, lists and numbers, for JSON."""
    return _converter.unstructure(record)


def from_json(text: str, kind: type[Record], *, origin: str) -> Record:
    """Read a record back; `origin` names the file in errors.

    Raises InputError where the text is no JSON, lacks a key, has an unknown one
    or a value of another type, holds a number that is not finite, or names
    another kind or schema version than the record's own.
    """
    try:
        content = strict.plain_content(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{origin} is not valid JSON: {error}", hint="make it again with the command it is from"
        ) from error
    _require_own_kind(content, kind, origin)
    try:
        return strict.structured(_converter, content, kind)
    except ValueError as error:
        raise InputError(
            f"{origin} is not a {kind.__name__} this version reads: {error}",
            hint="make it again with this version of vitdeploy",
        ) from error


def _require_own_kind(content: Any, kind: type[Any], origin: str) -> None:
    if not isinstance(content, dict):
        raise InputError(
            f"{origin} is not a {kind.__name__}: it holds no JSON object",
            hint="make it again with the command it is from",
        )
    for field in fields(kind) if is_dataclass(kind) else ():
        own = field.default
        if field.name in ("kind", "schema_version") and content.get(field.name) != own:
            raise InputError(
                f"{origin} has {field.name} {content.get(field.name)!r}, this version of "
                f"vitdeploy reads {own!r}",
                hint="make it again with this version of vitdeploy",
            )


@contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """Turn the system's refusal to read `path` into an InputError that names it."""
    try:
        yield
    except OSError as error:
        denied = isinstance(error, PermissionError)
        # What lies beside a file, or in a folder, may be what cannot be read.
        other = "" if error.filename in (None, str(path)) else f": {error.filename}"
        raise InputError(
            f"{what} {path} cannot be read: {error.strerror or error}{other}",
            hint="make it (and its folder) readable for this user"
            if denied
            else "check the path and the disk",
        ) from error


def read_text(path: Path, *, what: str) -> str:
    """The text of a file a user named, less the byte-order mark that Windows' editors begin with.

    Raises InputError where there is none.
    """
    require_file(path, what=what)
    try:
        with reading(path, what):
            return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{what} {path} is not text", hint="check the path") from error


def require_file(path: Path, *, what: str) -> None:
    """Raise InputError unless `path` is a file; near names are suggested."""
    with reading(path, what):
        if path.is_file():
            return
        if path.is_dir():
            raise InputError(f"{what} {path} is a folder", hint="name the file inside it")
        if path.exists():
            raise InputError(f"{what} {path} is no regular file", hint="name a file on a disk")
        if path.is_symlink():
            raise InputError(
                f"{what} {path} is a link that leads to no file ({os.readlink(path)})",  # noqa: PTH115
                hint="name the file itself, or mend the link",
            )
        hint = near_path(path) or "check the path"
    raise InputError(f"{what} {path} does not exist", hint=hint)


def near_path(path: Path) -> str:
    """'did you mean ...?' of what lies where `path` leads nowhere; empty where nothing is like it.

    Raises OSError where the folder cannot be listed.
    """
    if not path.parent.is_dir():
        return ""
    from difflib import get_close_matches

    names = [entry.name for entry in path.parent.iterdir()]
    near = [name for name in names if Path(name).stem == path.name]
    near = near or get_close_matches(path.name, names, n=3, cutoff=0.5)
    shown = one_line(", ".join(str(path.parent / name) for name in near[:3]))
    return f"did you mean {shown}?" if near else ""


def _as_output_error(error: OSError, destination: Path, remedy: str) -> OutputError:
    if error.errno in _FULL:
        return OutputError(
            f"no space left while writing {destination}", hint=f"free some space, or {remedy}"
        )
    if error.errno == errno.ENAMETOOLONG:
        return OutputError(
            f"cannot write {destination.name[:40]}...: its name of "
            f"{len(os.fsencode(destination.name))} bytes is too long",
            hint="give a shorter name",
        )
    return OutputError(f"cannot write {destination}: {error.strerror or error}", hint=remedy)
