"""What a kit holds, as its `kit.json` says; read and looked into."""

from __future__ import annotations

import os
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from vitdeploy.artifacts.files import file_digest, from_json, near_path, read_text, reading
from vitdeploy.errors import InputError

MANIFEST = "kit.json"
REFERENCE = "reference.npz"
SCHEMA_VERSION = 1
MAX_DROP_POINTS = (0.01, 100.0)
"""What `vitdeploy package --max-drop` takes."""


@dataclass(frozen=True)
class KitImage:
    """One image of the evaluation subset; labels as in `ImageItem`."""

    file: str
    digest: str
    label: int | None = None
    more: tuple[int, ...] = ()


@dataclass(frozen=True)
class Kit:
    """What a kit's `kit.json` says. `files` maps every other file to its sha256."""

    model: str
    requirement: str
    graphs: tuple[str, ...]
    images: tuple[KitImage, ...]
    labels: tuple[str, ...]
    files: dict[str, str]
    max_drop_points: float = 0.5
    schema_version: int = SCHEMA_VERSION
    kind: str = "kit"


def require_kit(folder: Path) -> None:
    """Raise InputError, saying what to name, unless a kit was unpacked in `folder`."""
    if (folder / MANIFEST).is_file():
        return
    if folder.is_file() and zipfile.is_zipfile(folder):
        raise InputError(
            f"{folder} is an archive, not a folder",
            hint=f"unpack it (python -m zipfile -e {folder} .) and name the folder that it makes",
        )
    with reading(folder, "kit"):
        if not folder.exists():
            raise InputError(
                f"kit {folder} does not exist", hint=near_path(folder) or "check the path"
            )
        kits = sorted(path.parent for path in folder.glob(f"*/{MANIFEST}"))
    if kits:
        raise InputError(
            f"{folder} is no kit, it holds {', '.join(kit.name for kit in kits)}",
            hint=f"name the kit: vitdeploy run-kit {kits[0]}",
        )
    raise InputError(
        f"{folder} is no kit: it holds no {MANIFEST}",
        hint="name the folder that the archive of `vitdeploy package` was unpacked into",
    )


def read_kit(folder: Path) -> Kit:
    """The kit unpacked in `folder`, every file looked into.

    Raises InputError as `require_kit`, for a manifest that contradicts itself or
    names files outside the kit, and where a file is missing or has other bytes
    than were packed.
    """
    require_kit(folder)
    path = folder / MANIFEST
    kit = from_json(read_text(path, what="kit"), Kit, origin=str(path))
    wrong = _contradiction(kit)
    if wrong:
        raise InputError(f"{path} {wrong}", hint="pack the kit again with `vitdeploy package`")
    for name, digest in kit.files.items():
        if not (folder / name).is_file():
            raise InputError(f"the kit lacks {name}", hint="copy or unpack it again, whole")
        if file_digest(folder / name) != digest:
            raise InputError(f"{name} is not as it was packed", hint="copy or unpack the kit again")
    return kit


def _contradiction(kit: Kit) -> str:
    """What is wrong with a manifest; empty where nothing is."""
    named = [*kit.graphs, *(image.file for image in kit.images), REFERENCE]
    if not (kit.graphs and kit.images):
        return "names no graph, or no image"
    if len(set(named)) < len(named):
        return "names a file twice"
    if any(not _is_inside(name) for name in (*named, *kit.files)):
        return "names a file outside the kit"
    if not kit.files.keys() >= {*named}:
        return "does not say what its files hold"
    labels = [label for i in kit.images for label in (i.label, *i.more) if label is not None]
    if any(not 0 <= label < len(kit.labels) for label in labels):
        return "labels an image with a class that it does not name"
    low, high = MAX_DROP_POINTS
    if not low <= kit.max_drop_points <= high:
        return f"allows a drop that is not from {low:g} to {high:g} points"
    return ""


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    odd = path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name
    return bool(path.parts) and not odd


def archived(folder: Path, archive: Path, name: str, suffixes: tuple[str, ...] = ()) -> None:
    """The files of `folder` (only those with these suffixes) below a folder called `name`."""
    partial = archive.with_name(f".{archive.name}.partial")
    try:
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as stream:
            for path in sorted(folder.rglob("*")):
                if path.is_file() and (not suffixes or path.suffix in suffixes):
                    stream.write(path, os.path.join(name, path.relative_to(folder)))  # noqa: PTH118
        partial.replace(archive)
    finally:
        partial.unlink(missing_ok=True)
