"""Bicubic resampling as two small matrices, in arithmetic that every runtime has.

TensorRT refuses a Resize with antialias, and an exporter bakes the size into
one without. A matrix built from Range, Sub, Abs and Where does neither, and
equals PyTorch's `interpolate` up to the rounding of PyTorch's own coordinates.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

Count = int | torch.SymInt
"""A number of rows or columns: symbolic while a graph is traced."""


@dataclass(frozen=True)
class Kernel:
    """A bicubic kernel and where it samples.

    `sharpness` is the `a` of Keys' kernel (Cubic convolution interpolation for
    digital image processing, 1981). With `antialias` the kernel widens when
    shrinking, and what falls outside is left out; without, the outermost
    samples repeat. `aligned` makes the outermost samples of both grids meet.
    """

    name: str
    sharpness: float
    antialias: bool = False
    aligned: bool = False

    @property
    def border(self) -> int:
        """Samples repeated on each side: the kernel reaches two beyond the grid."""
        return 0 if self.antialias else 2

    def matrix(self, new: Count, old: int) -> torch.Tensor:
        """(new, old + 2 * border) float32: row i holds the weights of new sample i.

        Distances are exact integers divided once, so that at `new == old` they
        are integers again and the matrix is the identity (beside its borders),
        bit for bit.
        """
        size = torch.scalar_tensor(new, dtype=torch.float32)
        sample = torch.arange(new).float().unsqueeze(1)
        tap = torch.arange(-self.border, old + self.border).float()
        if self.aligned:
            unit = (size - 1).clamp(min=1)
            apart = tap * unit - sample * (old - 1)
        else:
            unit = 2 * size.clamp(min=old if self.antialias else 1)
            apart = (2 * tap + 1) * size - (2 * sample + 1) * old
        weights = self._weight(apart / unit)
        return weights / weights.sum(1, keepdim=True) if self.antialias else weights

    def _weight(self, distance: torch.Tensor) -> torch.Tensor:
        a = self.sharpness
        # The outer polynomial is zero at 2, where clamping leaves everything beyond.
        x = distance.abs().clamp(max=2)
        inner = ((a + 2) * x - (a + 3)) * x * x + 1
        outer = (((x - 5) * x + 8) * x - 4) * a
        return torch.where(x < 1, inner, outer)


ANTIALIASED = Kernel("bicubic with antialias", -0.5, antialias=True)
"""timm's method: interpolate(mode='bicubic', antialias=True)."""

PLAIN = Kernel("bicubic without antialias", -0.75)
"""transformers' method: interpolate(mode='bicubic', align_corners=False)."""

ALIGNED = Kernel("bicubic with aligned corners", -0.75, aligned=True)
"""torchvision's method: interpolate(mode='bicubic', align_corners=True)."""

KERNELS = (ANTIALIASED, PLAIN, ALIGNED)


def with_border(grid: torch.Tensor, kernel: Kernel) -> torch.Tensor:
    """(rows, columns, channels) with the outermost samples repeated as the kernel needs it."""
    border = kernel.border
    channels_first = grid.permute(2, 0, 1).unsqueeze(0)
    padded = functional.pad(channels_first, (border,) * 4, mode="replicate")
    return padded[0].permute(1, 2, 0).contiguous()


def resample(bordered: torch.Tensor, rows: Count, columns: Count, kernel: Kernel) -> torch.Tensor:
    """A grid from `with_border` at another size: (rows, columns, channels).

    >>> grid = with_border(torch.randn(14, 14, 192), ANTIALIASED)
    >>> resample(grid, 24, 32, ANTIALIASED).shape
    torch.Size([24, 32, 192])
    """
    height, width, channels = bordered.shape
    down = kernel.matrix(rows, height - 2 * kernel.border)
    across = kernel.matrix(columns, width - 2 * kernel.border)
    tall = (down @ bordered.reshape(height, width * channels)).reshape(rows, width, channels)
    return across @ tall
