"""transformers' image processors as `Preprocessing`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NoReturn

import transformers

from vitdeploy.errors import InputError
from vitdeploy.models.errors import first_line
from vitdeploy.preprocessing import Preprocessing, Size

_FILE = "preprocessor_config.json"
_RESAMPLING = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}
_ONE_LEVEL = 1 / 255


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
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise InputError(
            f"{path} cannot be used: {first_line(error)}",
            hint="give --mean, --std, --interpolation, --crop-pct and --crop-mode",
        ) from error
    return _as_preprocessing(processor, path, size)


def _as_preprocessing(processor: Any, path: Path, size: Size) -> Preprocessing:
    _require_expressible(processor, path)
    normalizes = getattr(processor, "do_normalize", True)
    crop_pct, squash = _geometry(processor, path, size)
    mean = tuple(processor.image_mean) if normalizes else (0.0, 0.0, 0.0)
    std = tuple(processor.image_std) if normalizes else (1.0, 1.0, 1.0)
    return Preprocessing(
        mean=mean,
        std=std,
        interpolation=_RESAMPLING[int(processor.resample)],
        crop_pct=crop_pct,
        crop_mode="squash" if squash else "center",
    )


def _require_expressible(processor: Any, path: Path) -> None:
    if not getattr(processor, "do_resize", False):
        _refuse(path, "does not resize")
    if int(processor.resample) not in _RESAMPLING:
        _refuse(path, f"resamples by method {int(processor.resample)}")
    if not getattr(processor, "do_rescale", True):
        _refuse(path, "does not scale pixels to [0, 1]")
    factor = float(getattr(processor, "rescale_factor", _ONE_LEVEL))
    if not math.isclose(factor, _ONE_LEVEL, rel_tol=1e-6):
        _refuse(path, f"scales pixels by {factor:g}, not by 1/255")
    for flag in ("do_pad", "do_flip_channel_order", "do_grayscale"):
        if getattr(processor, flag, False):
            _refuse(path, f"has {flag}")


def _geometry(processor: Any, path: Path, size: Size) -> tuple[float, bool]:
    """(share of the resized image that the crop keeps, whether the resize squashes)."""
    resize = _sides(processor.size)
    crops = getattr(processor, "do_center_crop", False)
    crop = _sides(processor.crop_size) if crops else {}
    cropped = (crop.get("height"), crop.get("width"))
    if {"height", "width"} <= resize.keys():
        resized = (resize["height"], resize["width"])
        cropped = cropped if crops else resized
        if cropped != size:
            _refuse(path, f"makes images of {cropped[0]}x{cropped[1]}, not {size[0]}x{size[1]}")
        shares = (size[0] / resized[0], size[1] / resized[1])
        if not math.isclose(*shares, rel_tol=1e-3) or shares[0] > 1:
            _refuse(path, f"crops {size[0]}x{size[1]} out of {resized[0]}x{resized[1]}")
        return _share(size[0], resized[0]), True
    if "shortest_edge" in resize and crops:
        if cropped != size or size[0] != size[1]:
            _refuse(path, f"crops {cropped[0]}x{cropped[1]}, not a square of the model's size")
        if resize["shortest_edge"] < size[0]:
            _refuse(path, f"crops {size[0]} out of {resize['shortest_edge']}")
        return _share(size[0], resize["shortest_edge"]), False
    if "shortest_edge" in resize:
        _refuse(path, "resizes the shorter side and does not crop, so images differ in size")
    _refuse(path, f"resizes to {resize}")


def _sides(size: Any) -> dict[str, int]:
    """{'height': 224, 'width': 224} or {'shortest_edge': 224} of whatever holds a size."""
    if isinstance(size, int):
        return {"height": size, "width": size}
    names = ("height", "width", "shortest_edge", "longest_edge", "max_height", "max_width")
    values = size if isinstance(size, dict) else {n: getattr(size, n, None) for n in names}
    return {name: int(value) for name, value in values.items() if value is not None}


def _share(cropped: int, resized: int) -> float:
    """The share whose resized side, rounded down as `Preprocessing` does, is `resized`."""
    share = cropped / resized
    return share if math.floor(cropped / share) == resized else math.nextafter(share, 0.0)


def _refuse(path: Path, what: str) -> NoReturn:
    raise InputError(
        f"{path}: the image processor {what}, which cannot be expressed here",
        hint="give --mean, --std, --interpolation, --crop-pct and --crop-mode",
    )
