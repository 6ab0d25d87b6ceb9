"""timm: models by their name, and at any resolution."""

from __future__ import annotations

import copy
import sys
from difflib import get_close_matches
from typing import Any

import timm
import torch
from timm.data import ImageNetInfo, infer_imagenet_subset, resolve_data_config
from timm.layers import Format
from torch import nn
from torch.nn import functional

from vitdeploy.artifacts.source import SourceDescription
from vitdeploy.errors import ExportError, InputError, MissingDependencyError
from vitdeploy.models.library import Resized
from vitdeploy.models.resampling import Sizes, resample_state
from vitdeploy.preprocessing import Preprocessing, Size


def build(
    architecture: str, *, model_kwargs: dict[str, Any], pretrained: bool = False
) -> nn.Module:
    """Create a timm model in evaluation mode.

    Raises InputError for an unknown name (near ones are suggested) or a
    keyword the model does not take, MissingDependencyError where pretrained
    weights cannot be fetched.
    """
    require_known(architecture)
    try:
        module = timm.create_model(architecture, pretrained=pretrained, **model_kwargs)
    except OSError as error:
        raise MissingDependencyError(
            f"the pretrained weights of {architecture} cannot be fetched: {first_line(error)}",
            hint="go online once, or give a local file with --checkpoint",
        ) from error
    except (TypeError, RuntimeError, ValueError, AssertionError) as error:
        raise InputError(
            f"timm cannot create {architecture}: {first_line(error)}",
            hint="check --model-kwargs, --num-classes and the tag after the dot",
        ) from error
    _remember_size(module, model_kwargs.get("img_size"))
    return module.eval()


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


def native_resolution(module: nn.Module) -> tuple[int, int]:
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


def size_step(module: nn.Module) -> Size | None:
    """The stride of the patch embedding (with its convolutional stem, where it has one)."""
    embedding = getattr(module, "patch_embed", None)
    ratio = getattr(embedding, "feat_ratio", None)
    if callable(ratio):
        steps: Any = ratio(as_scalar=False)
        return (int(steps[0]), int(steps[1]))
    size = getattr(embedding, "patch_size", None)
    if isinstance(size, int):
        return (size, size)
    return (int(size[0]), int(size[1])) if size is not None else None


def at_resolution(module: nn.Module, description: SourceDescription, size: Size) -> Resized:
    """Three ways, the first that the architecture offers.

    1. timm's own `set_input_size`, which resamples absolute positions
       (bicubic, antialiased, float32), resizes relative tables and rebuilds
       rotary ones.
    2. The architecture is created for `size`, and the weights are carried
       over: timm's own checkpoint filter first, then by kind (`resampling`).
    3. The architecture takes no size: its weights serve every size.
    """
    native = description.native_resolution
    try:
        if callable(getattr(module, "set_input_size", None)):
            resized = _set_input_size(module, size)
        elif (target := _created_at(description, size)) is not None:
            resized = _carried_over(module, target, Sizes(native, size))
        else:
            resized = Resized(copy.deepcopy(module), "none depend on the resolution")
        _require_forward(resized.module, description.in_chans, size)
    except (AssertionError, RuntimeError, ValueError, IndexError, TypeError) as error:
        raise _stuck(description.architecture, native, size, error) from error
    return resized


def _set_input_size(module: nn.Module, size: Size) -> Resized:
    resized = copy.deepcopy(module)
    before = {name: value.shape for name, value in module.state_dict().items()}
    resized.set_input_size(img_size=size)  # type: ignore[operator]
    changed = [
        name for name, value in resized.state_dict().items() if value.shape != before.get(name)
    ]
    kinds = []
    if any("relative" in name for name in changed):
        kinds.append("relative bias tables, timm's geometric resampling")
    if any("relative" not in name for name in changed):
        kinds.append("tokens, bicubic with antialias")
    if getattr(resized, "rope", None) is not None:
        kinds.append("rotary tables recomputed")
    return Resized(resized.eval(), f"timm: {', '.join(kinds) or 'recomputed from the size'}")


def _created_at(description: SourceDescription, size: Size) -> nn.Module | None:
    """The architecture created for `size`; None where it takes no size."""
    kwargs = {**description.model_kwargs, "img_size": size}
    if description.architecture.startswith("naflexvit"):
        kwargs.pop("img_size")
        return None
    try:
        return timm.create_model(description.architecture, **kwargs).eval()
    except TypeError:
        return None


def _carried_over(module: nn.Module, target: nn.Module, sizes: Sizes) -> Resized:
    wanted = target.state_dict()
    state = {name: value.detach().clone() for name, value in module.state_dict().items()}
    filtered = getattr(sys.modules[type(module).__module__], "checkpoint_filter_fn", None)
    by_filter = False
    if filtered is not None and any(
        name in state and state[name].shape != value.shape for name, value in wanted.items()
    ):
        before = {name: value.shape for name, value in state.items()}
        state = filtered(state, target)
        by_filter = any(value.shape != before.get(name) for name, value in state.items())
    carried, kinds = resample_state(state, wanted, sizes)
    target.load_state_dict(carried)
    named = ["timm's checkpoint filter"] * by_filter + [f"vitdeploy: {kinds}"] * bool(kinds)
    return Resized(target, "; ".join(named) or "none depend on the resolution")


def _require_forward(module: nn.Module, in_chans: int, size: Size) -> None:
    with torch.inference_mode():
        module(torch.zeros(1, in_chans, *size))


def _stuck(architecture: str, native: Size, size: Size, error: Exception) -> ExportError:
    own = "x".join(map(str, native))
    return ExportError(
        f"{architecture} cannot run at {size[0]}x{size[1]}: {first_line(error)}",
        hint=f"try a multiple of 32 or of its own {own}, or export it at {own}",
    )


def traceable(module: nn.Module, size: Size) -> nn.Module:
    """Plain attention, and positions that stand in the weights instead of being resampled.

    The fused attention call leaves shape arithmetic behind, or cannot be
    traced at all where a bias is added to the scores.
    """
    module = copy.deepcopy(module)
    for part in module.modules():
        if hasattr(part, "fused_attn"):
            part.fused_attn = False  # type: ignore[assignment]
    if getattr(module, "dynamic_img_size", False) and hasattr(module, "pos_embed"):
        _fix_image_size(module)
    embeds = getattr(module, "embeds", None)
    if getattr(embeds, "pos_embed_type", None) == "learned":
        _fix_flexible_positions(embeds, size)
    return module


def _fix_image_size(module: Any) -> None:
    """A ViT that resamples its positions in every forward stops doing so."""
    module.dynamic_img_size = False
    module.patch_embed.flatten = True
    module.patch_embed.output_fmt = Format.NCHW


def _fix_flexible_positions(embeds: Any, size: Size) -> None:
    """NaFlexViT: its table, resampled to the grid by its own rule, takes the table's place."""
    height, width = embeds.dynamic_feat_size(size)
    table = embeds.pos_embed
    if tuple(table.shape[1:3]) == (height, width):
        return
    side = (max(height, width),) * 2 if embeds.pos_embed_ar_preserving else (height, width)
    resized = functional.interpolate(
        table.detach().permute(0, 3, 1, 2).float(),
        size=side,
        mode=embeds.pos_embed_interp_mode,
        align_corners=embeds.pos_embed_align_corners,
        antialias=embeds.pos_embed_antialias,
    )
    fixed = resized[:, :, :height, :width].permute(0, 2, 3, 1).contiguous()
    embeds.pos_embed = nn.Parameter(fixed, requires_grad=False)


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


def first_line(error: BaseException) -> str:
    """The first line of an error's text, for a one-line message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
