"""Files that are either whole or absent: atomic writes, digests, strict JSON."""

from __future__ import annotations

import errno
import hashlib
import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import cattrs
from cattrs.preconf.json import make_converter

from vitdeploy.errors import InputError, OutputError

Record = TypeVar("Record")

_converter = make_converter(forbid_extra_keys=True)
_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def atomic_path(destination: Path) -> Iterator[Path]:
    """A temporary path beside `destination`, renamed onto it when the block succeeds.

    Whatever interrupts the block (an error, Ctrl-C, a full disk), the
    destination keeps its old content and the temporary file is removed.

    Raises OutputError where the folder cannot be written or the disk is full.
    """
    # The suffix stays last: some writers choose their format by it.
    temporary = destination.with_name(
        f".{destination.stem}.{secrets.token_hex(4)}.partial{destination.suffix}"
    )
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        temporary.touch()
        mode = temporary.stat().st_mode  # some writers make their files readable to no one else
        yield temporary
        temporary.chmod(mode)
        temporary.replace(destination)
    except OSError as error:
        raise _as_output_error(error, destination) from error
    finally:
        # Where even its folder cannot exist there is nothing to remove.
        with suppress(OSError):
            temporary.unlink()


def write_bytes(destination: Path, content: bytes) -> None:
    """Write `content` to `destination` whole or not at all."""
    with atomic_path(destination) as temporary:
        temporary.write_bytes(content)


def write_text(destination: Path, content: str) -> None:
    """Write `content` as UTF-8 to `destination` whole or not at all."""
    write_bytes(destination, content.encode())


def file_digest(path: Path) -> str:
    """sha256 of the file's bytes, as hex."""
    with path.open("rb") as stream:
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

    Raises InputError where the text is no JSON, lacks a key, has an unknown one,
    or names another kind or schema version than the record's own.
    """
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{origin} is not valid JSON: {error}", hint="make it again with the command it is from"
        ) from error
    _require_own_kind(content, kind, origin)
    try:
        return _converter.structure(content, kind)
    except cattrs.BaseValidationError as error:
        reasons = "; ".join(cattrs.transform_error(error))
        raise InputError(
            f"{origin} is not a {kind.__name__} this version reads: {reasons}",
            hint="make it again with this version of vitdeploy",
        ) from error
    except (TypeError, KeyError, ValueError) as error:
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


def read_text(path: Path, *, what: str) -> str:
    """The text of a file a user named. Raises InputError where there is none."""
    require_file(path, what=what)
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{what} {path} is not text", hint="check the path") from error


def require_file(path: Path, *, what: str) -> None:
    """Raise InputError unless `path` is a file; near names are suggested."""
    if path.is_file():
        return
    if path.is_dir():
        raise InputError(f"{what} {path} is a folder", hint="name the file inside it")
    near = []
    if path.parent.is_dir():
        from difflib import get_close_matches

        names = [entry.name for entry in path.parent.iterdir() if entry.is_file()]
        near = get_close_matches(path.name, names, n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}?" if near else "check the path"
    raise InputError(f"{what} {path} does not exist", hint=hint)


def _as_output_error(error: OSError, destination: Path) -> OutputError:
    if error.errno in _FULL:
        return OutputError(
            f"no space left while writing {destination}",
            hint="free some space or give another folder with --out",
        )
    return OutputError(
        f"cannot write {destination}: {error.strerror or error}",
        hint="give a folder you may write to with --out",
    )
