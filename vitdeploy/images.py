"""Image folders: scanning, labels, decoding, batching.

A folder is either flat (unlabelled images) or holds one sub-folder per class.
Decoding follows what training pipelines do, and says so: EXIF rotation is
applied, alpha is dropped, palettes, grayscale and CMYK become RGB, 16-bit
images are scaled to 8 bits, floating-point ones refused.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import struct
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from vitdeploy.artifacts.files import reading
from vitdeploy.artifacts.strict import printable
from vitdeploy.errors import InputError
from vitdeploy.preprocessing import Preprocessing, Size

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm"})

DECODING_ERRORS = (
    OSError, SyntaxError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError,
    RuntimeError, EOFError, MemoryError, struct.error, zlib.error, Image.DecompressionBombError,
)  # fmt: skip
"""What Pillow's decoders and its EXIF reader raise for damaged files (found by changing bytes)."""


@dataclass(frozen=True)
class ImageItem:
    """One image file; `label` indexes the set's labels (None: unlabelled)."""

    path: Path
    label: int | None = None


@dataclass(frozen=True)
class ImageSet:
    """Images in a fixed order. `labels` is empty where the folder is flat.

    `empty_classes` are sub-folders without any image: classes that were lost, or none at all.
    """

    root: Path
    items: tuple[ImageItem, ...]
    labels: tuple[str, ...] = ()
    empty_classes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.items)

    @property
    def is_labelled(self) -> bool:
        return bool(self.labels)

    def label_indices(self) -> NDArray[np.int64]:
        """(images,) class indices. Raises InputError where the set is unlabelled."""
        if not self.is_labelled:
            raise InputError(
                f"{self.root} holds images without labels",
                hint="put them into one sub-folder per class, named as the model's labels",
            )
        return np.array([item.label for item in self.items], dtype=np.int64)

    def name(self, index: int) -> str:
        """The image's name in the folder, 'cat/12.png'; its path where it lies elsewhere."""
        path = self.items[index].path
        inside = path.is_relative_to(self.root)
        return printable((path.relative_to(self.root) if inside else path).as_posix())

    def take(self, indices: Sequence[int]) -> ImageSet:
        """The images at `indices`, in that order."""
        return replace(self, items=tuple(self.items[i] for i in indices))


def scan(folder: Path, *, labels: Sequence[str] = ()) -> ImageSet:
    """Find the images of `folder` and their labels.

    With `labels` (a model's own), sub-folders are matched to them by name, so
    that a class missing on disk shifts nothing. Without, class folders are
    sorted naturally (1, 2, 10).

    Raises InputError for a missing or empty folder, a folder with one class
    only, a sub-folder that is none of `labels`, and any folder that cannot be
    read: images that are there never go missing in silence.
    """
    with reading(folder, "image folder"):
        if not folder.is_dir():
            kind = "is a file" if folder.exists() else "does not exist"
            raise InputError(f"image folder {folder} {kind}", hint="give a folder of images")
        entries = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    class_folders = sorted(filter(_is_folder, entries), key=lambda entry: natural_key(entry.name))
    found = {entry: _image_files(entry) for entry in class_folders}
    loose = _sorted_images(folder, set(entries).difference(class_folders))
    if not any(found.values()) and not loose:
        raise InputError(
            f"{folder} holds no images",
            hint=f"expected files ending in {', '.join(sorted(SUFFIXES))}, or a sub-folder a class",
        )
    filled = {entry: files for entry, files in found.items() if files}
    if filled and loose:
        raise InputError(
            f"{folder} holds both class folders and {len(loose)} loose images",
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
            f"{folder} has class folders that are no label of the model: {_listing(unknown)}",
            hint=f"name the folders as the model's labels: {_listing(names)}",
        )
    items = (ImageItem(path, index[own[entry]]) for entry, files in found.items() for path in files)
    return ImageSet(folder, tuple(items), names)


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """Sort key under which '2' comes before '10', and no two names are equal ('1', '01')."""
    parts = [part for part in re.split(r"(\d+)", name) if part]
    key = [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts]
    return [*key, (-1, 0, name)]


def decode(path: Path) -> Image.Image:
    """Read an image file as 8-bit RGB. Raises InputError where it cannot be read whole."""
    try:
        with Image.open(path) as image:
            return upright_rgb(image)
    except DECODING_ERRORS as error:
        raise InputError(
            f"image {path} cannot be read: {error or type(error).__name__}",
            hint="remove or repair it; nothing is put in its place",
        ) from error


def upright_rgb(image: Image.Image) -> Image.Image:
    """An opened image as 8-bit RGB, turned as its EXIF data say.

    Raises one of `DECODING_ERRORS` where the file is damaged, ValueError for
    floating-point pixels: nothing says which values are black and white.
    """
    image = ImageOps.exif_transpose(image)
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers; convert it to 8 or 16 bits")
    if image.mode.startswith("I;16") or image.mode == "I":
        # Pillow's own conversion clips 16-bit values at 255 and turns them white.
        wide = np.asarray(image).astype(np.int64)
        image = Image.fromarray(np.clip(wide >> 8, 0, 255).astype(np.uint8))
    if image.mode == "P" and "transparency" in image.info:
        # Straight to RGB Pillow warns, though what it drops is the alpha we drop too.
        image = image.convert("RGBA")
    return image.convert("RGB")


def image_digest(path: Path) -> str:
    """sha256 of the file's bytes; names an image whatever it is called.

    Raises InputError where they cannot be read.
    """
    with reading(path, "image"):
        return hashlib.sha256(path.read_bytes()).hexdigest()


def unreadable(images: ImageSet) -> list[int]:
    """Indices of the images that cannot be decoded, in order."""

    def fails(item: ImageItem) -> bool:
        try:
            decode(item.path)
        except InputError:
            return True
        return False

    with ThreadPoolExecutor() as pool:
        return [i for i, failed in enumerate(pool.map(fails, images.items)) if failed]


def batches(
    images: ImageSet,
    preprocessing: Preprocessing,
    size: Size,
    batch_size: int,
    *,
    as_bytes: bool = False,
) -> Iterator[NDArray]:
    """Preprocessed batches, (n, channels, height, width) float32; the last may be smaller.

    `as_bytes` leaves the normalization to the graph: (n, height, width, channels) uint8.

    Images are decoded ahead of use by a few threads; at most four batches are
    held in memory.

    Raises InputError naming the first image that cannot be read.
    """

    prepare = preprocessing.apply_bytes if as_bytes else preprocessing.apply

    def load(item: ImageItem) -> NDArray:
        image = decode(item.path)
        try:
            return prepare(image, size)
        except InputError as error:
            raise InputError(f"image {item.path}: {error}", hint=error.hint) from error

    with ThreadPoolExecutor(max_workers=2) as pool:
        pending: deque[list[Future[NDArray]]] = deque()
        starts = iter(range(0, len(images), batch_size))
        try:
            while True:
                while len(pending) < 4 and (start := next(starts, None)) is not None:
                    chunk = images.items[start : start + batch_size]
                    pending.append([pool.submit(load, item) for item in chunk])
                if not pending:
                    return
                yield np.stack([future.result() for future in pending.popleft()])
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _image_files(folder: Path) -> list[Path]:
    """The images below `folder`. Links to folders are not followed: they may lead in circles."""
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
        if path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and _may_be_read(path)
    ]
    return sorted(images, key=lambda path: natural_key(str(path.relative_to(folder))))


def _may_be_read(path: Path) -> bool:
    """False for folders, pipes and devices; what cannot be looked at is named when decoded."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return True


def _is_folder(entry: Path) -> bool:
    """Whether `entry` is a folder. InputError where that cannot be told: it may hold a class."""
    try:
        return stat.S_ISDIR(entry.stat().st_mode)
    except OSError:
        if entry.suffix.lower() in SUFFIXES:
            return False
        with reading(entry, "image folder"):
            raise


def _listing(names: Sequence[str], most: int = 8) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
