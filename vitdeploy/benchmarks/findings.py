"""Findings beside engines: a new one never silently takes the place of one that tells more.

'benchmark.json' is the newest of its kind; what it does not hold stays in 'benchmark-1.json',
'benchmark-2.json' and so on.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from vitdeploy.artifacts.engine import COPY_FIRST
from vitdeploy.artifacts.files import (
    from_json,
    read_text,
    reading,
    to_json,
    write_bytes,
    write_text,
)
from vitdeploy.errors import InputError

Found = TypeVar("Found")
Say = Callable[[str], None]
LEFT_OUT = "left out: "


class Finding(Protocol):
    """A record that knows whether it tells all that an older one of its kind does."""

    def supersedes(self, older: Any) -> bool: ...


def read_finding(path: Path, kind: type[Found], say: Say) -> Found | None:
    """What a command left beside an engine; None where it is not there or damaged."""
    try:
        with reading(path, "finding"):
            if not path.exists():
                return None
        return from_json(read_text(path, what="finding"), kind, origin=str(path))
    except InputError as error:
        say(f"{LEFT_OUT}{error}")
        return None


def write_finding(path: Path, found: Finding, say: Say) -> None:
    """Write `found` to `path`; an older one that it does not supersede, or that this version does
    not read, is set aside first.

    `say` hears where both are. Raises OutputError where the folder cannot be written.
    """
    older = read_finding(path, type(found), say)
    instead = ""
    if older is not None and found.supersedes(older):
        instead = ", in place of an older one of the same"
    elif path.is_file():
        aside = _numbered(path, 1 + max(_set_aside(path), default=0))
        with reading(path, "finding"):
            write_bytes(aside, path.read_bytes(), remedy=COPY_FIRST)
        why = "which this version does not read"
        if older is not None:
            why = f"which tells what the new {path.name} does not"
        say(f"kept: {aside}, {why}")
    write_text(path, to_json(found), remedy=COPY_FIRST)
    say(f"written: {path}{instead}")


def newest_first(path: Path) -> list[Path]:
    """`path` and the findings that were set aside for it, whether or not any is there."""
    return [path, *(_numbered(path, number) for number in sorted(_set_aside(path), reverse=True))]


def _set_aside(path: Path) -> list[int]:
    own = re.compile(rf"{re.escape(path.stem)}-(\d+){re.escape(path.suffix)}")
    with reading(path.parent, "folder"):
        names = [each.name for each in path.parent.iterdir()] if path.parent.is_dir() else []
    return [int(match[1]) for match in map(own.fullmatch, names) if match]


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.stem}-{number}{path.suffix}")
