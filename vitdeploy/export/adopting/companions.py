"""What lies beside a foreign graph: preprocessing and labels."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from vitdeploy.artifacts import strict
from vitdeploy.artifacts.files import read_text
from vitdeploy.errors import InputError, MissingDependencyError, first_line
from vitdeploy.preprocessing import CropMode, Preprocessing, Size

_PROCESSOR = "preprocessor_config.json"
_CONFIG = "config.json"


@dataclass(frozen=True, kw_only=True)
class PreprocessingFlags:
    """What was given by hand; None leaves it to the file beside the graph."""

    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    interpolation: str | None = None
    crop_pct: float | None = None
    crop_mode: CropMode | None = None


def preprocessing_for(path: Path, size: Size, flags: PreprocessingFlags) -> Preprocessing:
    """How images become the graph's input: the flags, and for the rest the file beside it.

    Without such a file mean and std have to be given; interpolation and crop
    are then `Preprocessing`'s own where they are not. With all five given the
    file is not looked at.

    Raises InputError where neither flags nor a file tell, and where the file
    does what cannot be expressed; MissingDependencyError where reading it
    needs transformers (which it reads without PyTorch).
    """
    given = {name: value for name, value in vars(flags).items() if value is not None}
    without_file = given.keys() >= {"mean", "std"} and not (path.parent / _PROCESSOR).is_file()
    if without_file or len(given) == len(fields(flags)):
        return Preprocessing(**given)
    return replace(_in_folder(path, size), **given)


def _in_folder(path: Path, size: Size) -> Preprocessing:
    if not (path.parent / _PROCESSOR).is_file():
        raise InputError(
            f"nothing says how images become the input of {path.name}",
            hint=f"give --mean and --std of pixels in [0, 1] (and --interpolation, --crop-pct, "
            f"--crop-mode), or put its {_PROCESSOR} beside it",
        )
    try:
        from vitdeploy.models.image_processor import preprocessing_in
    except ImportError as error:
        raise MissingDependencyError(
            f"reading {_PROCESSOR} needs transformers: {first_line(error)}",
            hint="pip install transformers, or give --mean, --std, --interpolation, --crop-pct and "
            "--crop-mode",
        ) from error
    found = preprocessing_in(path.parent, size)
    assert found is not None  # the file is there
    return found


def labels_for(path: Path, classes: int, given: tuple[str, ...] | None) -> tuple[str, ...]:
    """Names of the classes: those given, those of transformers' config.json, else numbers.

    Raises InputError where as many were not given as the graph has classes.
    """
    if given is not None and len(given) != classes:
        raise InputError(
            f"{len(given)} labels were given for {classes} classes", hint="one label per class"
        )
    return given or _labels_in_config(path.parent / _CONFIG, classes) or _numbers(classes)


def _labels_in_config(config: Path, classes: int) -> tuple[str, ...] | None:
    if not config.is_file():
        return None
    try:
        content: Any = strict.plain_content(json.loads(read_text(config, what="configuration")))
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{config} is not valid JSON: {error}", hint="copy it again, or move it away"
        ) from error
    names = content.get("id2label") if isinstance(content, dict) else None
    if not isinstance(names, dict) or names.keys() != {str(i) for i in range(classes)}:
        return None
    labels = tuple(str(names[str(i)]) for i in range(classes))
    return labels if len(set(labels)) == classes else None


def _numbers(classes: int) -> tuple[str, ...]:
    return tuple(map(str, range(classes)))
