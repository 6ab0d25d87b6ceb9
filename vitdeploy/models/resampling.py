"""Parameters that depend on the resolution, carried to another one by their kind."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from timm.layers import resample_abs_pos_embed, resample_abs_pos_embed_nhwc
from timm.layers.pos_embed_rel import resize_rel_pos_bias_table
from torch.nn import functional

from vitdeploy.errors import ExportError
from vitdeploy.preprocessing import Size

State = dict[str, torch.Tensor]

_POSITION_WORDS = ("pos", "attention_bias", "relative", "rel_")
_MOST_PREFIX_TOKENS = 8
_LARGEST_STRIDE = 64


@dataclass(frozen=True)
class Sizes:
    """(height, width) in pixels before and after."""

    old: Size
    new: Size

    def grids(self, old_count: int, new_count: int, prefix: int) -> tuple[Size, Size] | None:
        """The token grids whose cells, with `prefix` tokens, count `old_count` and `new_count`.

        At 224x224 and 384x512, counts 197 and 769 with one prefix token are
        the grids (14, 14) and (24, 32), of stride 16. None where no stride fits.
        """
        for stride in range(1, _LARGEST_STRIDE + 1):
            old = (math.ceil(self.old[0] / stride), math.ceil(self.old[1] / stride))
            new = (math.ceil(self.new[0] / stride), math.ceil(self.new[1] / stride))
            if old[0] * old[1] + prefix == old_count and new[0] * new[1] + prefix == new_count:
                return old, new
        return None


_Resampled = tuple[torch.Tensor, str]
_Kind = Callable[[torch.Tensor, torch.Tensor, Sizes], "_Resampled | None"]


def resample_state(state: State, wanted: State, sizes: Sizes) -> tuple[State, str]:
    """`state`, of a module built for `sizes.old`, in the shapes of `wanted`, built for the new.

    Only parameters whose name and shape say that they hold positions are
    resampled, in float32; whole numbers (index tables) are taken from `wanted`.
    A weight that `state` lacks is never taken from the new module: there it is
    random. Also says which kinds were met, for the record.

    Raises ExportError naming what depends on the resolution in another way.
    """
    carried: State = {}
    kinds: dict[str, None] = {}
    stuck = []
    for name, target in wanted.items():
        own = state.get(name)
        if not target.is_floating_point():
            carried[name] = target
        elif own is None:
            stuck.append(f"{name} is of that size only")
        elif own.shape == target.shape:
            carried[name] = own
        elif (found := _resampled(name, own, target, sizes)) is not None:
            carried[name], kind = found
            kinds[kind] = None
        else:
            stuck.append(f"{name} {tuple(own.shape)} to {tuple(target.shape)}")
    if stuck:
        raise ExportError(
            f"{len(stuck)} weights depend on the resolution and cannot be resampled: "
            f"{', '.join(stuck[:3])}{' ...' if len(stuck) > 3 else ''}",
            hint=f"export this architecture at its own {sizes.old[0]}x{sizes.old[1]}",
        )
    return carried, ", ".join(kinds)


def _resampled(
    name: str, own: torch.Tensor, target: torch.Tensor, sizes: Sizes
) -> _Resampled | None:
    if not any(word in name for word in _POSITION_WORDS):
        return None
    for kind in _RELATIVE if "rel" in name else _ABSOLUTE:
        found = kind(own.detach(), target, sizes)
        if found is not None:
            assert found[0].shape == target.shape
            return found
    return None


def _tokens(own: torch.Tensor, target: torch.Tensor, sizes: Sizes) -> _Resampled | None:
    """(1, prefix + height * width, channels): ViT, hiera, convit, cait, tnt."""
    if own.ndim not in (2, 3) or own.shape[-1] != target.shape[-1]:
        return None
    for prefix in range(_MOST_PREFIX_TOKENS + 1):
        grids = sizes.grids(own.shape[-2], target.shape[-2], prefix)
        if grids is not None:
            old, new = grids
            flat = own.reshape(1, own.shape[-2], -1)
            resized = resample_abs_pos_embed(
                flat, new_size=list(new), old_size=list(old), num_prefix_tokens=prefix
            )
            return resized.reshape(target.shape), "tokens, bicubic with antialias"
    return None


def _grid(own: torch.Tensor, target: torch.Tensor, sizes: Sizes) -> _Resampled | None:
    """(1, height, width, channels) or (1, channels, height, width): volo, pit, visformer."""
    if own.ndim != 4 or own.shape[0] != target.shape[0]:
        return None
    if own.shape[-1] == target.shape[-1]:
        resized = resample_abs_pos_embed_nhwc(own, new_size=list(target.shape[1:3]))
    elif own.shape[1] == target.shape[1]:
        channels_last = own.permute(0, 2, 3, 1)
        resized = resample_abs_pos_embed_nhwc(channels_last, new_size=list(target.shape[2:]))
        resized = resized.permute(0, 3, 1, 2)
    else:
        return None
    return resized.contiguous(), "grid, bicubic with antialias"


def _offsets(own: torch.Tensor, target: torch.Tensor, sizes: Sizes) -> _Resampled | None:
    """(heads, height * width) biases of absolute offsets |dy|, |dx|: levit, efficientformer."""
    if own.ndim != 2 or own.shape[0] != target.shape[0]:
        return None
    grids = sizes.grids(own.shape[1], target.shape[1], 0)
    if grids is None:
        return None
    (old_h, old_w), new = grids
    image = own.float().reshape(1, -1, old_h, old_w)
    resized = functional.interpolate(image, size=new, mode="bicubic", antialias=True)
    return resized.reshape(target.shape).to(own.dtype), "offset biases, bicubic with antialias"


def _relative_table(own: torch.Tensor, target: torch.Tensor, sizes: Sizes) -> _Resampled | None:
    """((2h - 1) * (2w - 1), heads) tables of signed offsets: gcvit."""
    if own.ndim != 2 or own.shape[1] != target.shape[1]:
        return None
    windows = _windows(own.shape[0], target.shape[0], sizes)
    if windows is None:
        return None
    resized = resize_rel_pos_bias_table(
        own, new_window_size=windows, new_bias_shape=tuple(target.shape)
    )
    return resized, "relative bias tables, timm's geometric resampling"


def _windows(old_count: int, new_count: int, sizes: Sizes) -> tuple[int, int] | None:
    """The new window whose table of (2h - 1) * (2w - 1) offsets has `new_count` rows."""
    for stride in range(1, _LARGEST_STRIDE + 1):
        (old_h, old_w), (new_h, new_w) = (
            (math.ceil(side[0] / stride), math.ceil(side[1] / stride))
            for side in (sizes.old, sizes.new)
        )
        if (2 * old_h - 1) * (2 * old_w - 1) == old_count and (2 * new_h - 1) * (
            2 * new_w - 1
        ) == new_count:
            return new_h, new_w
    return None


def _axis(own: torch.Tensor, target: torch.Tensor, sizes: Sizes) -> _Resampled | None:
    """(2n - 1, channels) offsets along one axis: samvit, mvitv2."""
    if own.ndim != 2 or own.shape[1] != target.shape[1]:
        return None
    if own.shape[0] % 2 == 0 or target.shape[0] % 2 == 0:
        return None
    row = own.float().T[None]
    resized = functional.interpolate(row, size=target.shape[0], mode="linear")
    return resized[0].T.contiguous().to(own.dtype), "axis offsets, linear"


_ABSOLUTE: tuple[_Kind, ...] = (_offsets, _tokens, _grid)
_RELATIVE: tuple[_Kind, ...] = (_relative_table, _axis)
