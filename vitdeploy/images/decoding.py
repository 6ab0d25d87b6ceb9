"""From image files to 8-bit RGB.

Decoding follows what training pipelines do, and says so: EXIF rotation is
applied, alpha is dropped, palettes, grayscale and CMYK become RGB, 16-bit
images are scaled to 8 bits, floating-point ones refused.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from vitdeploy.artifacts.files import reading
from vitdeploy.errors import InputError
from vitdeploy.images.image_set import ImageItem, ImageSet
from vitdeploy.progress import SILENT, Progress

DECODING_ERRORS = (
    OSError, SyntaxError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError,
    RuntimeError, EOFError, MemoryError, struct.error, zlib.error, Image.DecompressionBombError,
)  # fmt: skip
"""What Pillow's decoders and its EXIF reader raise for damaged files (found by changing bytes)."""


def decode(path: Path) -> Image.Image:
    """Read an image file as 8-bit RGB. Raises InputError where it cannot be read whole."""
    return _read(path)


def _read(path: Path, *, small: bool = False) -> Image.Image:
    """`small` reads the whole file too, and of a JPEG makes an eighth of the pixels."""
    try:
        with Image.open(path) as image:
            if small:
                image.draft(None, (1, 1))
            return upright_rgb(image)
    except DECODING_ERRORS as error:
        raise InputError(
            f"image {path} cannot be read: {error or type(error).__name__}",
            hint="remove or repair it: nothing is put in its place",
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


def unreadable(images: ImageSet, progress: Progress = SILENT) -> list[int]:
    """Indices of the images that cannot be decoded, in order.

    All are read, in a third of the time that decoding JPEGs takes.
    """
    return list(_failures(images, progress))


def require_readable(images: ImageSet, progress: Progress = SILENT) -> None:
    """Raise InputError naming the images that cannot be decoded: before work goes into others."""
    failures = _failures(images, progress)
    if not failures:
        return
    first, *others = failures
    shown = ", ".join(images.name(i) for i in others[:4]) + ("" if len(others) < 5 else ", ...")
    more = f" ({len(others)} more of {len(images)} cannot either: {shown})" if others else ""
    raise InputError(f"{failures[first]}{more}", hint=failures[first].hint)


def _failures(images: ImageSet, progress: Progress) -> dict[int, InputError]:
    def failure(item: ImageItem) -> InputError | None:
        try:
            _read(item.path, small=True)
        except InputError as error:
            return error
        return None

    found = {}
    with (
        progress.task("reading all images once", len(images)) as task,
        ThreadPoolExecutor() as pool,
    ):
        for i, error in enumerate(pool.map(failure, images.items)):
            task.advance()
            if error is not None:
                found[i] = error
    return found
