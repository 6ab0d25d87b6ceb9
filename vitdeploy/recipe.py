"""`vitdeploy.toml`: what a folder's commands work on when they are not told.

```toml
output = "artifacts"

[model]
name = "demo"            # whatever --model takes: 'demo', a timm name, a folder, ...

[data]
calibration = "demo"     # an image folder; 'demo' is the embedded set
evaluation = "demo"
```

Data belongs to the model the file names: a command told to use another model
inherits none of it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import cattrs

from vitdeploy.artifacts.files import reading
from vitdeploy.artifacts.strict import plain_content, structured, without_coercion
from vitdeploy.errors import InputError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE_NAME = "vitdeploy.toml"
_converter = without_coercion(cattrs.Converter(forbid_extra_keys=True))


@dataclass(frozen=True)
class ModelSection:
    """The model; keys are the command line's, with underscores."""

    name: str
    checkpoint: str | None = None
    pretrained: bool = False
    num_classes: int | None = None
    in_chans: int | None = None
    model_kwargs: dict[str, Any] = field(default_factory=dict)
    task: Literal["classify", "multilabel", "regress", "features"] | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    interpolation: str | None = None
    crop_pct: float | None = None
    crop_mode: Literal["center", "squash", "border"] | None = None


@dataclass(frozen=True)
class DataSection:
    """Image folders of the model."""

    calibration: str | None = None
    evaluation: str | None = None


@dataclass(frozen=True)
class Recipe:
    """A folder's defaults."""

    model: ModelSection | None = None
    data: DataSection = field(default_factory=DataSection)
    output: str = "artifacts"


def read_recipe(folder: Path) -> Recipe:
    """The recipe of `folder`; an empty one where it has none.

    Raises InputError for a file that cannot be read or is no TOML, an unknown
    key, and a value of another type ("false" is a text, and no boolean).
    """
    path = folder / FILE_NAME
    with reading(path, "recipe"):
        if not path.is_file():
            return Recipe()
        content = path.read_bytes()
    try:
        entries = plain_content(tomllib.loads(content.decode("utf-8-sig")))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid TOML: {error}", hint="mend that line") from error
    try:
        return structured(_converter, entries, Recipe)
    except ValueError as error:
        raise InputError(
            f"{path}: {error}",
            hint="known keys: output, [model] name checkpoint pretrained num_classes in_chans "
            "model_kwargs task mean std interpolation crop_pct crop_mode, "
            "[data] calibration evaluation",
        ) from error
