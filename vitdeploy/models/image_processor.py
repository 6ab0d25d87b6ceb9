"""transformers' image processors as `Preprocessing`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import transformers

from vitdeploy.errors import InputError, first_line
from vitdeploy.preprocessing import Preprocessing, Size

_FILE = "preprocessor_config.json"
_RESAMPLING = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}
_ONE_LEVEL = 1 / 255
_OTHERS = ("do_pad", "do_flip_channel_order", "do_grayscale")
_SENSELESS = (
    OSError, ImportError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError,
)  # fmt: skip
"""What reading settings of another type raises, in the library and here."""


def preprocessing_in(folder: Path, size: Size) -> Preprocessing | None:
    """What the folder's image processor does, for a model of `size`; None where it has none.

    Defaults that the file leaves out are those of the processor's class. Where
    a crop cuts an odd number of pixels, the library's Pillow and torchvision
    processors differ by one pixel; `Preprocessing` does what torchvision does.

    Raises InputError, saying what, for steps that `Preprocessing` cannot express.
    """
    path = folder / _FILE
    if not path.is_file():
        return None
    try:
        processor = transformers.AutoImageProcessor.from_pretrained(folder, trust_remote_code=False)
        steps = _steps_of(processor)
    except _SENSELESS as error:
        raise InputError(
            f"{path} cannot be used: {first_line(error)}",
            hint="give --mean, --std, --interpolation, --crop-pct and --crop-mode",
        ) from error
    _require_expressible(steps, path)
    crop_pct, squash = _geometry(steps, path, size)
    return Preprocessing(
        mean=steps.mean,
        std=steps.std,
        interpolation=_RESAMPLING[steps.resample],
        crop_pct=crop_pct,
        crop_mode="squash" if squash else "center",
    )


@dataclass(frozen=True)
class _Steps:
    """A processor's settings. `crop` is empty where it does not crop."""

    resizes: bool
    rescales: bool
    resample: int
    factor: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    resize: dict[str, int]
    crop: dict[str, int]
    others: tuple[str, ...]


def _steps_of(processor: Any) -> _Steps:
    normalizes = getattr(processor, "do_normalize", True)
    crops = getattr(processor, "do_center_crop", False)
    return _Steps(
        resizes=bool(getattr(processor, "do_resize", False)),
        rescales=bool(getattr(processor, "do_rescale", True)),
        resample=int(processor.resample),
        factor=float(getattr(processor, "rescale_factor", _ONE_LEVEL)),
        mean=tuple(map(float, processor.image_mean)) if normalizes else (0.0, 0.0, 0.0),
        std=tuple(map(float, processor.image_std)) if normalizes else (1.0, 1.0, 1.0),
        resize=_sides(processor.size),
        crop=_sides(processor.crop_size) if crops else {},
        others=tuple(flag for flag in _OTHERS if getattr(processor, flag, False)),
    )


def _sides(size: Any) -> dict[str, int]:
    """{'height': 224, 'width': 224} or {'shortest_edge': 224} of whatever holds a size."""
    if isinstance(size, int):
        return {"height": size, "width": size}
    names = ("height", "width", "shortest_edge", "longest_edge", "max_height", "max_width")
    values = size if isinstance(size, dict) else {n: getattr(size, n, None) for n in names}
    sides = {name: int(value) for name, value in values.items() if value is not None}
    if not sides or min(sides.values()) < 1:
        raise ValueError(f"its size is {values}")
    return sides


def _require_expressible(steps: _Steps, path: Path) -> None:
    if not steps.resizes:
        _refuse(path, "does not resize")
    if steps.resample not in _RESAMPLING:
        _refuse(path, f"resamples by method {steps.resample}")
    if not steps.rescales:
        _refuse(path, "does not scale pixels to [0, 1]")
    if not math.isclose(steps.factor, _ONE_LEVEL, rel_tol=1e-6):
        _refuse(path, f"scales pixels by {steps.factor:g}, not by 1/255")
    if steps.others:
        _refuse(path, f"has {', '.join(steps.others)}")


def _geometry(steps: _Steps, path: Path, size: Size) -> tuple[float, bool]:
    """(share of the resized image that the crop keeps, whether the resize squashes)."""
    resize, crop = steps.resize, (steps.crop.get("height"), steps.crop.get("width"))
    if {"height", "width"} <= resize.keys():
        resized = (resize["height"], resize["width"])
        cropped = crop if steps.crop else resized
        if cropped != size:
            _refuse(path, f"makes images of {cropped[0]}x{cropped[1]}, not {size[0]}x{size[1]}")
        shares = (size[0] / resized[0], size[1] / resized[1])
        if not math.isclose(*shares, rel_tol=1e-3) or shares[0] > 1:
            _refuse(path, f"crops {size[0]}x{size[1]} out of {resized[0]}x{resized[1]}")
        return _share(size[0], resized[0]), True
    if "shortest_edge" in resize and steps.crop:
        if crop != size or size[0] != size[1]:
            _refuse(path, f"crops {crop[0]}x{crop[1]}, not a square of the model's size")
        if resize["shortest_edge"] < size[0]:
            _refuse(path, f"crops {size[0]} out of {resize['shortest_edge']}")
        return _share(size[0], resize["shortest_edge"]), False
    if "shortest_edge" in resize:
        _refuse(path, "resizes the shorter side and does not crop, so images differ in size")
    _refuse(path, f"resizes to {resize}")


def _share(cropped: int, resized: int) -> float:
    """The share whose resized side, rounded down as `Preprocessing` does, is `resized`."""
    share = cropped / resized
    return share if math.floor(cropped / share) == resized else math.nextafter(share, 0.0)


def _refuse(path: Path, what: str) -> NoReturn:
    raise InputError(
        f"{path}: the image processor {what}, which cannot be expressed here",
        hint="give --mean, --std, --interpolation, --crop-pct and --crop-mode",
    )
