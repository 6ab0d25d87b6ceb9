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

DECODING_ERRORS = (
    OSError, SyntaxError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError,
    RuntimeError, EOFError, MemoryError, struct.error, zlib.error, Image.DecompressionBombError,
)  # fmt: skip
"""What Pillow's decoders and its EXIF reader raise for damaged files (found by changing bytes)."""


def decode(path: Path) -> Image.Image:
    """Read an image file as 8-bit RGB. Raises InputError where it cannot be read whole."""
    try:
        with Image.open(path) as image:
            return upright_rgb(image)
    except DECODING_ERRORS as error:
        raise InputError(
            f"image {path} cannot be read: {error or type(error).__name__}",
            hint="remove or repair it, nothing is put in its place; `vitdeploy evaluate "
            "--skip-unreadable` leaves such images out and lists them",
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
