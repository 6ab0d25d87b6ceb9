"""`vitdeploy.toml`: what a folder's commands work on when they are not told.

```toml
output = "artifacts"

[model]
name = "demo"            # 'demo', a timm name, or a checkpoint that describes itself

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
from typing import Any

import cattrs

from vitdeploy.errors import InputError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE_NAME = "vitdeploy.toml"
_converter = cattrs.Converter(forbid_extra_keys=True)


@dataclass(frozen=True)
class ModelSection:
    """The model; keys are the command line's, with underscores."""

    name: str
    checkpoint: str | None = None
    pretrained: bool = False
    num_classes: int | None = None
    in_chans: int | None = None
    model_kwargs: dict[str, Any] = field(default_factory=dict)


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

    Raises InputError for a file that is no TOML or has an unknown key.
    """
    path = folder / FILE_NAME
    if not path.is_file():
        return Recipe()
    try:
        return _converter.structure(tomllib.loads(path.read_text(encoding="utf-8")), Recipe)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not valid TOML: {error}", hint="mend that line") from error
    except cattrs.BaseValidationError as error:
        reasons = "; ".join(cattrs.transform_error(error))
        raise InputError(
            f"{path}: {reasons}",
            hint="known keys: output, [model] name checkpoint pretrained num_classes in_chans "
            "model_kwargs, [data] calibration evaluation",
        ) from error
