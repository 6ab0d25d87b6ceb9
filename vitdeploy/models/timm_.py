"""timm: models by their name, and at any resolution."""

from __future__ import annotations

import sys
from contextlib import nullcontext, redirect_stdout
from difflib import get_close_matches
from typing import Any

import timm
import torch
from timm.data import ImageNetInfo, infer_imagenet_subset, resolve_data_config
from torch import nn

from vitdeploy.errors import InputError, MissingDependencyError, first_line
from vitdeploy.models.hub import cache_where_out_of_reach
from vitdeploy.models.timm_sizes import at_resolution, size_step, traceable
from vitdeploy.preprocessing import Preprocessing, Size

__all__ = ["at_resolution", "size_step", "traceable"]
"""With the functions below, the `Library` of timm."""


def build(
    architecture: str, *, model_kwargs: dict[str, Any], pretrained: bool = False
) -> nn.Module:
    """Create a timm model in evaluation mode.

    Raises InputError for an unknown name (near ones are suggested) or an
    argument the model does not take, MissingDependencyError where pretrained
    weights cannot be fetched.
    """
    require_known(architecture)
    _require_arguments_of_models(architecture, model_kwargs)
    try:
        # Weights that are not on the hub torch fetches, and says so on standard output.
        with (
            cache_where_out_of_reach() if pretrained else nullcontext(),
            redirect_stdout(sys.stderr),
        ):
            module = timm.create_model(architecture, pretrained=pretrained, **model_kwargs)
        _remember_size(module, model_kwargs.get("img_size"))
    except OSError as error:
        raise MissingDependencyError(
            f"the pretrained weights of {architecture} cannot be fetched: {first_line(error)}",
            hint="go online once, or give a local file with --checkpoint",
        ) from error
    except _CREATION_ERRORS as error:
        raise InputError(
            f"timm cannot create {architecture}: {type(error).__name__}: {first_line(error)}",
            hint="check --model-kwargs, --num-classes and the tag after the dot",
        ) from error
    return module.eval()


_CREATION_ERRORS = (
    TypeError, RuntimeError, ValueError, AssertionError, ArithmeticError, LookupError,
    AttributeError,
)  # fmt: skip
"""What timm's constructors raise for arguments without sense (found by trying them)."""

_NOT_OF_MODELS = frozenset({
    "model_name", "model_cls", "variant", "model_cfg", "checkpoint_path", "cache_dir", "scriptable",
    "exportable", "no_jit", "kwargs_filter", "feature_cfg", "feature_cls", "features_only",
    "out_indices", "device", "dtype",
})  # fmt: skip
"""Arguments of timm's own machinery: files to load, and what is returned in place of a model."""


def _require_arguments_of_models(architecture: str, model_kwargs: dict[str, Any]) -> None:
    """Raise InputError where arguments would choose other weights, or something else than a model.

    They may come out of a checkpoint: a file must not name another one to load.
    """
    refused = [key for key in model_kwargs if key in _NOT_OF_MODELS or key.startswith("pretrained")]
    if refused:
        raise InputError(
            f"{', '.join(refused)} is no argument of {architecture} itself",
            hint="weights are chosen with --checkpoint, --pretrained or --random-weights",
        )


def _remember_size(module: nn.Module, size: Any) -> None:
    """Some architectures forget the size they were created for; their configuration keeps it."""
    if size is None:
        return
    height, width = (size, size) if isinstance(size, int) else size
    config: Any = module.pretrained_cfg
    channels = config["input_size"][0]
    module.pretrained_cfg = {**config, "input_size": (channels, height, width)}  # type: ignore[assignment]


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


def recipe_of(
    module: nn.Module, architecture: str, model_kwargs: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    """The name and arguments themselves."""
    return architecture, model_kwargs


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


def native_resolution(module: nn.Module) -> Size:
    """(height, width) in pixels the module was built for."""
    size = getattr(getattr(module, "patch_embed", None), "img_size", None)
    if size is None:
        size = resolve_data_config({}, model=module)["input_size"][-2:]
    return (int(size[0]), int(size[1]))


def class_count(module: nn.Module) -> int:
    """Width of the classifier; 0 where there is none."""
    return int(getattr(module, "num_classes", 0) or 0)


def labels_of(module: nn.Module) -> tuple[str, ...]:
    """ImageNet synset names where the head has one of ImageNet's sizes, else '0', '1', ..."""
    count = class_count(module)
    subset = infer_imagenet_subset(module)
    if subset is not None:
        names = ImageNetInfo(subset).label_names()
        if len(names) == count:
            return tuple(names)
    return tuple(str(i) for i in range(count))


def matching(pattern: str) -> tuple[str, ...]:
    """timm's architectures that a wildcard names. Raises InputError where there is none."""
    names = tuple(timm.list_models(pattern))
    if not names:
        raise InputError(
            f"no timm model matches {pattern!r}", hint="try a wider pattern, as in 'vit_tiny*'"
        )
    return names


class _Tokens(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.wrapped = module

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        tokens = self.wrapped.forward_features(images)  # type: ignore[operator]
        if tokens.ndim == 4:
            channels_last = getattr(self.wrapped, "output_fmt", None) == "NHWC"
            tokens = tokens if channels_last else tokens.permute(0, 2, 3, 1)
            tokens = tokens.flatten(1, 2)
        return tokens


class _Features(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.wrapped = module

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        tokens = self.wrapped.forward_features(images)  # type: ignore[operator]
        return self.wrapped.forward_head(tokens, pre_logits=True)  # type: ignore[operator]


def features_of(module: nn.Module) -> nn.Module:
    """timm's pooled features before the classifier."""
    return _Features(module)


def tokens_of(module: nn.Module) -> nn.Module:
    """timm's unpooled features, as tokens."""
    return _Tokens(module)
