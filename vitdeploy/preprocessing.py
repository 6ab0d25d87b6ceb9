"""`Preprocessing`: the one contract from a decoded image to the model's input tensor.

Training evaluation, calibration, source and engine evaluation and prediction
all go through this object, so no two of them can differ. It travels inside the
ONNX metadata and the engine manifest. The geometry is timm's evaluation
transform (center, squash and border crop modes); a test holds it to timm's own
output, pixel for pixel.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitdeploy.errors import InputError

CropMode = Literal["center", "squash", "border"]
Size = tuple[int, int]
"""(height, width) in pixels."""

_FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}

LARGEST_RESIZED_PIXELS = 2**28
"""An image is not enlarged beyond this before it is cropped: 0.8 GB as RGB, 13 times 4K."""
SMALLEST_CROP_PCT = 0.01

_UNIT_HINT = "give values of pixels scaled to [0, 1]: divide those of 0 to 255 by 255"


@dataclass(frozen=True)
class Preprocessing:
    """Resize, crop and normalize; the target size is given when it is applied.

    `crop_pct` is the share of the resized image that the crop keeps: 0.875 at
    224 resizes to 256. `mean` and `std` are per channel, of values in [0, 1].
    """

    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    interpolation: str = "bicubic"
    crop_pct: float = 1.0
    crop_mode: CropMode = "center"

    def __post_init__(self) -> None:
        if self.interpolation not in _FILTERS:
            raise InputError(
                f"unknown interpolation {self.interpolation!r}",
                hint=f"use one of: {', '.join(_FILTERS)}",
            )
        if self.crop_mode not in ("center", "squash", "border"):
            raise InputError(
                f"unknown crop mode {self.crop_mode!r}", hint="use center, squash or border"
            )
        if not SMALLEST_CROP_PCT <= self.crop_pct <= 1:
            raise InputError(
                f"crop_pct is {self.crop_pct}",
                hint=f"give the share of the image kept, {SMALLEST_CROP_PCT} to 1",
            )
        if len(self.mean) != len(self.std) or len(self.mean) not in (1, 3):
            raise InputError(
                f"mean has {len(self.mean)} values and std {len(self.std)}",
                hint="give one value per channel, for 1 or 3 channels",
            )
        if not all(0 <= value <= 1 for value in self.mean):
            raise InputError(f"mean is {self.mean}", hint=_UNIT_HINT)
        if not all(0 < value <= 1 for value in self.std):
            raise InputError(f"std is {self.std}", hint=f"{_UNIT_HINT}, above zero")

    @property
    def channels(self) -> int:
        return len(self.mean)

    @property
    def digest(self) -> str:
        """sha256 of the recipe; two preprocessings with one digest do the same."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def apply(self, image: Image.Image, size: Size) -> NDArray[np.float32]:
        """One RGB image to a (channels, height, width) float32 tensor.

        A 640x480 photograph at size (224, 224) becomes an array of shape
        (3, 224, 224) whose values are (v / 255 - mean) / std.
        """
        return self.normalize(self.fit(image, size))

    def apply_bytes(self, image: Image.Image, size: Size) -> NDArray[np.uint8]:
        """One RGB image to (height, width, channels) bytes, for graphs that normalize."""
        fitted = self.fit(image, size)
        return np.asarray(fitted).reshape(fitted.height, fitted.width, -1)

    def normalize_bytes(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """(n, height, width, channels) fitted bytes to (n, channels, height, width) float32."""
        values = pixels.astype(np.float32) / np.float32(255)
        values -= np.asarray(self.mean, dtype=np.float32)
        values /= np.asarray(self.std, dtype=np.float32)
        return np.ascontiguousarray(values.transpose(0, 3, 1, 2))

    def fit(self, image: Image.Image, size: Size) -> Image.Image:
        """Resize and crop (or pad) `image` to exactly `size`.

        Raises InputError for an image so narrow that most of a huge one would be cropped away.
        """
        image = image.convert("L" if self.channels == 1 else "RGB")
        height, width = self._resized(image.height, image.width, size)
        if height * width > LARGEST_RESIZED_PIXELS:
            raise InputError(
                f"{image.width}x{image.height} pixels would be enlarged to {width}x{height} "
                "before cropping",
                hint="crop the image first, or leave it out",
            )
        if (height, width) != (image.height, image.width):
            image = image.resize((width, height), _FILTERS[self.interpolation])
        return self._crop_or_pad(image, size)

    def normalize(self, image: Image.Image) -> NDArray[np.float32]:
        """A fitted image to the model's input, (channels, height, width) float32."""
        pixels = np.asarray(image).reshape(1, image.height, image.width, -1)
        return self.normalize_bytes(pixels)[0]

    def describe_at(self, size: Size) -> str:
        """What happens at `size`, in words: 'shorter side to 256, center crop 224x224, ...'."""
        scaled = self._scaled(size)
        crop = f"{size[0]}x{size[1]}"
        if self.crop_mode == "squash":
            resize = f"squash to {scaled[0]}x{scaled[1]}, center crop {crop}"
        elif self.crop_mode == "border":
            resize = f"fit into {scaled[0]}x{scaled[1]}, pad to {crop}"
        elif scaled[0] == scaled[1]:
            resize = f"shorter side to {scaled[0]}, center crop {crop}"
        else:
            resize = f"cover {scaled[0]}x{scaled[1]}, center crop {crop}"
        return f"{resize}, {self.interpolation}, mean {self.mean}, std {self.std}"

    def _scaled(self, size: Size) -> Size:
        return (math.floor(size[0] / self.crop_pct), math.floor(size[1] / self.crop_pct))

    def _resized(self, height: int, width: int, size: Size) -> Size:
        scaled = self._scaled(size)
        if self.crop_mode == "squash":
            return scaled
        if self.crop_mode == "center" and scaled[0] == scaled[1]:
            # torchvision's Resize(int): the longer side is truncated, not rounded.
            short, long = sorted((height, width))
            longer = int(scaled[0] * long / short)
            return (scaled[0], longer) if height <= width else (longer, scaled[0])
        ratios = (height / scaled[0], width / scaled[1])
        ratio = max(ratios) if self.crop_mode == "border" else min(ratios)
        return (max(1, round(height / ratio)), max(1, round(width / ratio)))

    def _crop_or_pad(self, image: Image.Image, size: Size) -> Image.Image:
        height, width = size
        if image.height < height or image.width < width:
            grown = (max(width, image.width), max(height, image.height))
            channels = tuple(round(255 * value) for value in self.mean)
            fill = channels if self.channels == 3 else channels[0]
            canvas = Image.new(image.mode, grown, cast("int", fill))
            left, top = (grown[0] - image.width) // 2, (grown[1] - image.height) // 2
            canvas.paste(image, (left, top))
            image = canvas
        # torchvision's CenterCrop rounds half to even, as Python's round does.
        top = round((image.height - height) / 2.0)
        left = round((image.width - width) / 2.0)
        return image.crop((left, top, left + width, top + height))
