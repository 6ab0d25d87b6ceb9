"""Positions as functions of the token grid: (rows, columns) to the tensor a module holds."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from vitdeploy.export.dynamic.resampling import Count, Kernel, resample, with_border
from vitdeploy.preprocessing import Size


class AbsolutePositions(nn.Module):
    """One vector per token, resampled; those of class and register tokens stay.

    Takes (1, prefix + rows * columns, channels), the same without the leading
    1, or (1, rows, columns, channels), and answers in that form.
    """

    def __init__(self, native: torch.Tensor, grid: Size, kernel: Kernel) -> None:
        super().__init__()
        channels = native.shape[-1]
        tokens = native.detach().reshape(-1, channels)
        prefix = len(tokens) - grid[0] * grid[1]
        self._is_grid = native.ndim == 4
        self._has_batch = native.ndim == 3
        self._prefix = prefix
        self._kernel = kernel
        self.register_buffer("prefix", tokens[:prefix].clone())
        patches = tokens[prefix:].reshape(*grid, channels)
        self.register_buffer("grid", with_border(patches, kernel))

    def forward(self, rows: Count, columns: Count) -> torch.Tensor:
        grid = self.get_buffer("grid")
        patches = resample(grid, rows, columns, self._kernel)
        if self._is_grid:
            return patches.unsqueeze(0)
        tokens = patches.reshape(rows * columns, grid.shape[-1])
        if self._prefix:
            tokens = torch.cat([self.get_buffer("prefix"), tokens])
        return tokens.unsqueeze(0) if self._has_batch else tokens


def are_positions(one: torch.Tensor, two: torch.Tensor, grids: tuple[Size, Size]) -> bool:
    """Whether these can be the same positions on two grids, as `AbsolutePositions` takes them."""
    if one.ndim != two.ndim or one.shape[-1] != two.shape[-1]:
        return False
    prefix = _prefix(one, grids[0])
    return prefix is not None and prefix == _prefix(two, grids[1])


def _prefix(tensor: torch.Tensor, grid: Size) -> int | None:
    """How many tokens stand before those of the grid; None where the grid does not fit."""
    if not tensor.is_floating_point() or tensor.ndim not in (2, 3, 4):
        return None
    if tensor.ndim == 4:
        return 0 if tensor.shape[:3] == (1, *grid) else None
    count = tensor.shape[-2] - grid[0] * grid[1]
    leading_one = tensor.ndim == 2 or tensor.shape[0] == 1
    return count if leading_one and count >= 0 else None


class RotaryTables(nn.Module):
    """The sines and cosines of timm's rotary embeddings, by timm's own arithmetic."""

    def __init__(self, rope: nn.Module) -> None:
        super().__init__()
        self.rope: Any = copy.deepcopy(rope)
        # timm answers with the table of the native size while this is set.
        if hasattr(self.rope, "_use_cached_embed"):
            self.rope._use_cached_embed = False

    def forward(self, rows: Count, columns: Count) -> torch.Tensor:
        if not hasattr(self.rope, "_get_pos_embed_from_coords"):
            return self.rope.get_embed(shape=(rows, columns))
        # DINOv3: timm divides the coordinates by float(rows), which tracing takes for a constant.
        sine_cosine = self.rope._get_pos_embed_from_coords(self._coordinates(rows, columns))
        return torch.cat(sine_cosine, -1)

    def _coordinates(self, rows: Count, columns: Count) -> torch.Tensor:
        """(rows * columns, 2): centres of patches, -1 to 1 across the image."""
        counts = torch.stack(
            [torch.scalar_tensor(count, dtype=torch.float32) for count in (rows, columns)]
        )
        denominators = {"separate": counts, "max": counts.max(), "min": counts.min()}
        across = denominators[self.rope.normalize_coords].expand(2)
        offset = 0.5 + self.rope.grid_offset
        y = 2 * (torch.arange(rows).float() + offset) / across[0] - 1
        x = 2 * (torch.arange(columns).float() + offset) / across[1] - 1
        grid = [y.unsqueeze(1).expand(rows, columns), x.expand(rows, columns)]
        if self.rope.grid_indexing == "xy":
            grid.reverse()
        return torch.stack(grid, -1).reshape(rows * columns, 2)


class HeldTable(nn.Module):
    """Stands where a rotary embedding stood, and answers the table put into it."""

    def __init__(self, table: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("table", table.detach())
        self.feat_shape = None

    def get_embed(self, *_: object, **__: object) -> torch.Tensor:
        return self.get_buffer("table")
