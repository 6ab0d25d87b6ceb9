"""Which sizes a model takes: whole patches. A name or a config.json often tells how large they are
before PyTorch is imported and weights are read."""

from __future__ import annotations

import re
from typing import Any

from vitdeploy.artifacts.source import description_in
from vitdeploy.errors import InputError
from vitdeploy.models.folders import is_timm, read_config
from vitdeploy.models.names import understood
from vitdeploy.models.request import ModelRequest
from vitdeploy.preprocessing import Size

_TAKE_ANY_SIZE = ("naflexvit", "tnt")
"""Of timm's families with a patch in their names: these fill up what is left of an image."""


def require_multiple(resolution: Size, step: Size | None, name: str, *, option: str) -> None:
    """Raise InputError, naming the nearest that is, unless `resolution` is a multiple of `step`."""
    if step is None or all(
        side > 0 and side % patch == 0 for side, patch in zip(resolution, step, strict=True)
    ):
        return
    near = "x".join(
        str(max(patch, round(side / patch) * patch))
        for side, patch in zip(resolution, step, strict=True)
    )
    raise InputError(
        f"resolution {resolution[0]}x{resolution[1]} is not a multiple of "
        f"the patch size {step[0]}x{step[1]} of {name}",
        hint=f"the nearest that is: {option} {near}",
    )


def step_told_by(request: ModelRequest) -> Size | None:
    """The patch size that a request's name, files and arguments tell; None where they do not.

    'vit_small_patch14_dinov2' to (14, 14). Of a checkpoint only the header is
    read, of a folder its config.json.
    """
    named = understood(request.name)
    library, architecture, kwargs = named.library, named.architecture, {}
    if named.file is not None and named.file.suffix == ".safetensors":
        found = description_in(named.file)
        if found is not None:
            library, architecture, kwargs = found.library, found.architecture, found.model_kwargs
    elif named.folder is not None and (named.folder / "config.json").is_file():
        config = read_config(named.folder)
        library = "timm" if library == "timm" or is_timm(config) else "transformers"
        architecture = str(config.get("architecture", ""))
        kwargs = _table(config.get("model_args")) if library == "timm" else {"config": config}
    return _step(library, architecture, {**kwargs, **(request.model_kwargs or {})})


def _step(library: str, architecture: str, kwargs: dict[str, Any]) -> Size | None:
    if library == "transformers":
        config = _table(kwargs.get("config"))
        vision = _table(config.get("vision_config"))
        return _pair(kwargs.get("patch_size", config.get("patch_size", vision.get("patch_size"))))
    if library == "torchvision":
        found = re.fullmatch(r"vit_[a-z]+_(\d+)|swin_.*", architecture)
        return None if found is None else _pair(int(found[1] or 4))
    if library != "timm" or architecture.startswith(_TAKE_ANY_SIZE):
        return None
    found = re.search(r"_patch(\d+)(?!\d)", architecture)
    return None if found is None else _pair(kwargs.get("patch_size", int(found[1])))


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _pair(value: Any) -> Size | None:
    """An int for both sides, or two; None for what is neither: the library will say so."""
    sides = [value, value] if isinstance(value, int) else value
    whole = isinstance(sides, list | tuple) and len(sides) == 2
    if not whole or not all(isinstance(side, int) and side > 0 for side in sides):
        return None
    return (sides[0], sides[1])
