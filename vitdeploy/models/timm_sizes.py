"""timm models at another resolution, and in the form the exporter takes best."""

from __future__ import annotations

import copy
import sys
import warnings
from typing import Any

import timm
import torch
from timm.layers import Format
from timm.models.convit import GPSA
from timm.models.hiera import Hiera
from torch import nn
from torch.nn import functional

from vitdeploy.artifacts.source import SourceDescription
from vitdeploy.errors import ExportError, first_line
from vitdeploy.models.library import Resized
from vitdeploy.models.resampling import Sizes, resample_state
from vitdeploy.preprocessing import Size


def size_step(module: nn.Module) -> Size | None:
    """The stride of the patch embedding (with its convolutional stem, where it has one)."""
    if isinstance(module, Hiera):  # a side is cut into whole mask units
        units = zip(module.patch_stride, module.mask_unit_size, strict=True)
        return tuple(int(stride * unit) for stride, unit in units)  # type: ignore[return-value]
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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # timm's own resampling raises some
        return _at_resolution(module, description, native, size)


def _at_resolution(
    module: nn.Module, description: SourceDescription, native: Size, size: Size
) -> Resized:
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
    window = _trained_window(module)
    kept = {} if window is None else {"window_size": window}
    resized.set_input_size(img_size=size, **kept)  # type: ignore[operator]
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
    if window is not None:
        kinds.append(f"windows of {window[0]}x{window[1]} as trained")
    return Resized(resized.eval(), f"timm: {', '.join(kinds) or 'recomputed from the size'}")


def _trained_window(module: nn.Module) -> Size | None:
    """Swin's window in the first stage: kept, so that biases are those of trained offsets.

    That is what creating a Swin at another size does in timm, torchvision and
    transformers; `set_input_size` alone would grow the window with the image.
    """
    if type(module).__name__ not in ("SwinTransformer", "SwinTransformerV2"):
        return None
    height, width = module.layers[0].blocks[0].window_size  # type: ignore[index,union-attr]
    return (int(height), int(width))


def _created_at(description: SourceDescription, size: Size) -> nn.Module | None:
    """The architecture created for `size`; None where it takes no size."""
    kwargs = {**description.model_kwargs, "img_size": size}
    try:
        module = timm.create_model(description.architecture, **kwargs).eval()
    except TypeError:
        return None
    for part in module.modules():
        if isinstance(part, GPSA):
            part.rel_indices = _convit_offsets(module.patch_embed.grid_size)  # type: ignore
    return module


def _convit_offsets(grid: Size) -> torch.Tensor:
    """(1, n, n, 3) offsets dx, dy, dx^2 + dy^2 between tokens; timm knows square grids only."""
    rows, columns = torch.meshgrid(
        torch.arange(grid[0]).float(), torch.arange(grid[1]).float(), indexing="ij"
    )
    dx = columns.flatten()[None, :] - columns.flatten()[:, None]
    dy = rows.flatten()[None, :] - rows.flatten()[:, None]
    return torch.stack((dx, dy, dx**2 + dy**2), dim=-1)[None]


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
    if getattr(getattr(target, "embeds", None), "pos_embed_type", None) == "learned":
        named.append("timm: table, resampled to every grid by its own rule")
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
    if getattr(module, "dynamic_img_size", False):
        _fix_image_size(module, size)
    embeds = getattr(module, "embeds", None)
    if getattr(embeds, "pos_embed_type", None) == "learned":
        _fix_flexible_positions(embeds, size)
    return module


def _fix_image_size(module: Any, size: Size) -> None:
    """A ViT that resamples its positions in every forward stops doing so."""
    if getattr(module, "pos_embed", None) is None:
        return  # rotary alone: its tables are computed, not resampled
    module.dynamic_img_size = False
    module.patch_embed.flatten = True
    module.patch_embed.output_fmt = Format.NCHW
    rope = getattr(module, "rope", None)
    if rope is not None:
        rope.update_feat_shape(module.patch_embed.dynamic_feat_size(size))


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
