"""Models by their timm name."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

import timm
from timm.data import ImageNetInfo, infer_imagenet_subset, resolve_data_config
from torch import nn

from vitdeploy.errors import InputError, MissingDependencyError
from vitdeploy.preprocessing import Preprocessing


def build(
    name: str, *, model_kwargs: dict[str, Any] | None = None, pretrained: bool = False
) -> nn.Module:
    """Create a timm model in evaluation mode.

    Raises InputError for an unknown name (near ones are suggested) or a
    keyword the model does not take, MissingDependencyError where pretrained
    weights cannot be fetched.
    """
    require_known(name)
    try:
        module = timm.create_model(name, pretrained=pretrained, **(model_kwargs or {}))
    except OSError as error:
        raise MissingDependencyError(
            f"the pretrained weights of {name} cannot be fetched: {first_line(error)}",
            hint="go online once, or give a local file with --checkpoint",
        ) from error
    except (TypeError, RuntimeError, ValueError, AssertionError) as error:
        raise InputError(
            f"timm cannot create {name}: {first_line(error)}",
            hint="check --model-kwargs, --num-classes and the tag after the dot",
        ) from error
    return module.eval()


def require_known(name: str) -> None:
    """Raise InputError unless timm knows `name` (a pretrained tag may follow a dot)."""
    architecture = name.split(".")[0]
    if timm.is_model(architecture):
        return
    near = get_close_matches(architecture, timm.list_models(), n=3, cutoff=0.6)
    hint = (
        f"did you mean {', '.join(near)}?"
        if near
        else "give a timm name (timm.list_models()), a checkpoint file, or 'demo'"
    )
    raise InputError(f"no model is called {name!r}", hint=hint)


def preprocessing_of(module: nn.Module) -> Preprocessing:
    """The evaluation preprocessing timm's pretrained configuration gives the model."""
    config = resolve_data_config({}, model=module)
    return Preprocessing(
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
        interpolation=config["interpolation"],
        crop_pct=config["crop_pct"],
        crop_mode=config["crop_mode"],
    )


def native_resolution(module: nn.Module) -> tuple[int, int]:
    """(height, width) in pixels the module was built for."""
    size = getattr(getattr(module, "patch_embed", None), "img_size", None)
    if size is None:
        size = resolve_data_config({}, model=module)["input_size"][-2:]
    return (int(size[0]), int(size[1]))


def labels_of(module: nn.Module, count: int) -> tuple[str, ...]:
    """ImageNet synset names where the head has one of ImageNet's sizes, else '0', '1', ..."""
    subset = infer_imagenet_subset(module)
    if subset is not None:
        names = ImageNetInfo(subset).label_names()
        if len(names) == count:
            return tuple(names)
    return tuple(str(i) for i in range(count))


def first_line(error: BaseException) -> str:
    """The first line of an error's text, for a one-line message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
