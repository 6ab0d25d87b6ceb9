"""The doctor for images: what a file is beyond its pixels, and which pictures are alike.

What pipelines do with rotated, CMYK, 16-bit, palette, transparent and gray
images differs from one to the next; ranges gathered from them are right only
if the model saw them the same way. So each is named.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitdeploy.artifacts.calibration import Finding
from vitdeploy.artifacts.files import reading
from vitdeploy.errors import InputError, first_line
from vitdeploy.images import DECODING_ERRORS, upright_rgb

Trait = Literal["exif_rotated", "cmyk", "16_bit", "palette", "alpha", "grayscale"]

_TRAITS: dict[Trait, tuple[str, str]] = {
    "exif_rotated": (
        "turned upright, as their EXIF data say",
        "none, unless the model was trained without (OpenCV and PIL leave it to the caller)",
    ),
    "cmyk": (
        "converted to RGB without their colour profile, which shifts colours",
        "convert them with their profile, as the training data were",
    ),
    "16_bit": (
        "their upper 8 bits are used: values that fill 12 of the 16 come out dark",
        "convert them to 8 bits, as the training data were",
    ),
    "palette": ("replaced by the colours they stand for", "none"),
    "alpha": (
        "alpha is dropped: what lies under transparent pixels shows",
        "put them on the background that the training data had",
    ),
    "grayscale": ("repeated into three equal channels", "none, if the model is to see such images"),
}
"""What happens to each kind of image, and what can be done."""

_ORIENTATION = 0x0112
_UPRIGHT = 1
_ORIENTATIONS = range(1, 9)

_THUMBNAIL = (9, 8)
"""(width, height): nine columns have eight differences, 64 bits in all."""

_NEAR_BITS = 8
_NEAR_LEVELS = 3.0
"""Of 64 difference bits and of 255 gray levels in the mean: copies saved again as JPEG of quality
60, scaled to 3/4, or with noise of 5 levels stay below both, while of 130,816 pairs of the
embedded images none does. The bits alone would name 1,195 of these pairs."""


_BITS_OF = np.array([value.bit_count() for value in range(256)], np.uint8)


@dataclass(frozen=True)
class Picture:
    """A readable image: digests of its bytes and of its pixels, what is unusual, and its look.

    `thumbnail` is its 72 gray values at 9x8 pixels; `traits` may hold a detail each.
    """

    digest: str
    pixels_digest: str
    thumbnail: bytes
    traits: dict[Trait, str]


@dataclass(frozen=True)
class Broken:
    """An image that cannot be used: not readable at all, or not to its end."""

    kind: Literal["unreadable", "truncated"]
    reason: str


def examine(path: Path) -> Picture | Broken:
    """Read an image once and look at it. Never raises for what is wrong with the file."""
    try:
        with reading(path, "image"):
            content = path.read_bytes()
    except InputError as error:
        return Broken("unreadable", _reason(error.__cause__ or error))
    try:
        with Image.open(io.BytesIO(content)) as image:
            return _look(image, hashlib.sha256(content).hexdigest())
    except Image.UnidentifiedImageError:
        return Broken("unreadable", "no image format is recognised" if content else "it is empty")
    except DECODING_ERRORS as error:
        return Broken("unreadable", _reason(error))


def _look(image: Image.Image, digest: str) -> Picture | Broken:
    is_deep = _is_deep(image)  # the decoder forgets it
    try:
        image.load()
    except DECODING_ERRORS as error:
        return Broken("truncated", _reason(error))
    traits = _traits(image, is_deep)
    rgb = upright_rgb(image)
    small = rgb.convert("L").resize(_THUMBNAIL, Image.Resampling.LANCZOS)
    pixels = hashlib.sha256(repr(rgb.size).encode() + rgb.tobytes()).hexdigest()
    return Picture(digest, pixels, small.tobytes(), traits)


def _traits(image: Image.Image, is_deep: bool) -> dict[Trait, str]:
    orientation = image.getexif().get(_ORIENTATION, _UPRIGHT)
    bands, mode = image.getbands(), image.mode
    present: dict[Trait, bool] = {
        "exif_rotated": orientation in _ORIENTATIONS and orientation != _UPRIGHT,
        "cmyk": mode == "CMYK",
        "16_bit": is_deep,
        "palette": mode in ("P", "PA"),
        "alpha": {"A", "a"} & set(bands) != set() or "transparency" in image.info,
        "grayscale": mode in ("1", "L", "LA", "La", "I") or mode.startswith("I;16"),
    }
    detail = {"exif_rotated": f"orientation {orientation}"}
    return {trait: detail.get(trait, "") for trait, found in present.items() if found}


def _is_deep(image: Image.Image) -> bool:
    """Whether a freshly opened image has more than 8 bits a channel.

    Pillow cuts RGB of 16 bits down to 8 in its decoders, so that the mode does not say it: the
    raw mode does ('RGB;16B'; 'BGR;16' is 16 bits a pixel), or for PPM the largest value.
    """
    if image.mode == "I" or image.mode.startswith("I;16"):
        return True
    arguments = [tile[3] for tile in getattr(image, "tile", ())]
    parts = [part for given in arguments for part in (given if type(given) is tuple else (given,))]
    deep = (";16B", ";16L", ";16N")
    raw = any(isinstance(part, str) and part.endswith(deep) for part in parts)
    return raw or (image.format == "PPM" and any(type(p) is int and p > 255 for p in parts))


def trait_findings(pictures: Mapping[str, Picture], *, channels: int) -> list[Finding]:
    """One finding for each trait that some picture has; `pictures` are by name.

    For a model of one channel gray images are the usual case.
    """
    findings = []
    for trait, (meaning, remedy) in _TRAITS.items():
        about = {
            name: picture.traits[trait]
            for name, picture in pictures.items()
            if trait in picture.traits
        }
        if about and not (trait == "grayscale" and channels == 1):
            findings.append(Finding(trait, about, meaning, remedy))
    return findings


def near_duplicates(thumbnails: Sequence[bytes]) -> dict[int, int]:
    """Pictures that look like an earlier one, with that one's index.

    An earlier one that is itself such a copy counts no more: of many alike the
    first stands for all. Two look alike where at most 8 of the 64 signs of
    horizontal differences (a difference hash) and at most 3 gray levels in the
    mean differ between their thumbnails.
    """
    flat = np.frombuffer(b"".join(thumbnails), np.uint8).astype(np.int16)
    pixels = flat.reshape(len(thumbnails), _THUMBNAIL[0] * _THUMBNAIL[1])
    hashes = _difference_hashes(pixels)
    firsts = np.empty(len(pixels), np.intp)
    count = 0
    found: dict[int, int] = {}
    for index in range(len(pixels)):
        earlier = firsts[:count]
        different = (hashes[earlier] ^ hashes[index]).view(np.uint8).reshape(-1, 8)
        near = earlier[_BITS_OF[different].sum(-1) <= _NEAR_BITS]
        near = near[np.abs(pixels[near] - pixels[index]).mean(-1) <= _NEAR_LEVELS]
        if near.size:
            found[index] = int(near[0])
        else:
            firsts[count] = index
            count += 1
    return found


def _difference_hashes(pixels: NDArray[np.int16]) -> NDArray[np.uint64]:
    """(n,): for each pixel of a thumbnail a bit, whether it is lighter than its left neighbour."""
    width, height = _THUMBNAIL
    rows = pixels.reshape(-1, height, width)
    lighter = (rows[:, :, 1:] > rows[:, :, :-1]).reshape(len(rows), 64)
    return np.packbits(lighter, axis=-1).reshape(-1).view(np.uint64)


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return first_line(error)
