"""Image folders: flat (unlabelled images), or one sub-folder per class."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from vitdeploy.artifacts.files import reading
from vitdeploy.artifacts.strict import printable
from vitdeploy.errors import InputError, counted
from vitdeploy.images.image_set import (
    ImageItem,
    ImageSet,
    LabelOrder,
    listing,
    natural_key,
    sorting_key,
)

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm"})


def scan_folder(
    folder: Path, *, labels: Sequence[str] = (), order: LabelOrder = "natural"
) -> ImageSet:
    """Find the images of `folder` and their labels.

    With `labels` (a model's own), sub-folders are matched to them by name, so
    that a class missing on disk shifts nothing. Without, class folders are
    sorted by `order`: 1, 2, 10 naturally, and 1, 10, 2 as strings.

    Raises InputError for a missing or empty folder, a folder with one class
    only, a sub-folder that is none of `labels`, any folder that cannot be
    read, and pipes or devices under an image's name: nothing that may be an
    image goes missing in silence.
    """
    with reading(folder, "image folder"):
        if not folder.is_dir():
            kind = "is a file" if folder.exists() else "does not exist"
            raise InputError(f"image folder {folder} {kind}", hint="give a folder of images")
        entries = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    class_folders = sorted(
        filter(_is_folder, entries), key=lambda entry: sorting_key(order)(entry.name)
    )
    found = {entry: image_files(entry) for entry in class_folders}
    loose = _sorted_images(folder, set(entries).difference(class_folders))
    if not any(found.values()) and not loose:
        raise InputError(
            f"{folder} holds no images",
            hint=f"expected files ending in {', '.join(sorted(SUFFIXES))}, or a sub-folder a class",
        )
    filled = {entry: files for entry, files in found.items() if files}
    if filled and loose:
        raise InputError(
            f"{folder} holds both class folders and {counted(len(loose), 'loose image')}",
            hint=f"move {loose[0].name} and the others into a class folder or out of the way",
        )
    if loose:
        return ImageSet(folder, tuple(ImageItem(path) for path in loose))
    empty = tuple(printable(entry.name) for entry in found if entry not in filled)
    return replace(_labelled(folder, filled, labels), empty_classes=empty)


def _labelled(folder: Path, found: dict[Path, list[Path]], labels: Sequence[str]) -> ImageSet:
    if len(found) == 1:
        only = next(iter(found))
        raise InputError(
            f"{folder} holds one class only ({only.name})",
            hint="one class proves nothing about a classifier; "
            f"add the other class folders, or give {only} itself as unlabelled images",
        )
    own = {entry: printable(entry.name) for entry in found}
    names = tuple(labels) or tuple(own.values())
    index = {name: i for i, name in enumerate(names)}
    unknown = [name for name in own.values() if name not in index]
    if unknown:
        raise InputError(
            f"{folder} has class folders that are no label of the model: {listing(unknown)}",
            hint=f"name the folders as the model's labels: {listing(names)}",
        )
    items = (ImageItem(path, index[own[entry]]) for entry, files in found.items() for path in files)
    return ImageSet(folder, tuple(items), names)


def image_files(folder: Path) -> list[Path]:
    """The images below `folder`, in natural order.

    Links to folders are not followed: they may lead in circles.
    """
    found: list[Path] = []

    def refuse(error: OSError) -> None:
        with reading(Path(error.filename), "image folder"):
            raise error

    for place, _, names in os.walk(folder, onerror=refuse):
        found.extend(Path(place, name) for name in names)
    return _sorted_images(folder, found)


def _sorted_images(folder: Path, files: Iterable[Path]) -> list[Path]:
    images = [
        path
        for path in files
        if path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and _is_file(path)
    ]
    return sorted(images, key=lambda path: natural_key(str(path.relative_to(folder))))


def _is_file(path: Path) -> bool:
    """False for folders. What cannot be looked at is named when decoded.

    Raises InputError for pipes and devices: reading one may never end.
    """
    try:
        mode = path.stat().st_mode
    except OSError:
        return True
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise InputError(
            f"{path} is called an image and is no regular file",
            hint="move it out of the folder of images",
        )
    return stat.S_ISREG(mode)


def _is_folder(entry: Path) -> bool:
    """Whether `entry` is a folder. InputError where that cannot be told: it may hold a class."""
    try:
        return stat.S_ISDIR(entry.stat().st_mode)
    except OSError:
        if entry.suffix.lower() in SUFFIXES:
            return False
        with reading(entry, "image folder"):
            raise
