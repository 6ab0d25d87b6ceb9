"""Pooling to a single cell, traced as the mean it is."""

from __future__ import annotations

import torch
from torch import nn


class MeanOfCells(nn.AdaptiveAvgPool2d):
    """The same results as `nn.AdaptiveAvgPool2d(1)`.

    PyTorch computes a mean too, but lays its answer out anew where channels
    come last, which leaves indices computed from the batch size in a graph
    (Range, GatherND).
    """

    def forward(self, images: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """(n, channels, height, width) to (n, channels, 1, 1)."""
        return images.mean((-2, -1), keepdim=True)


class MeanOfTokens(nn.AdaptiveAvgPool1d):
    """The same results as `nn.AdaptiveAvgPool1d(1)` (Swin of transformers)."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """(n, channels, tokens) to (n, channels, 1)."""
        return tokens.mean(-1, keepdim=True)


def use_plain_pooling(module: nn.Module) -> nn.Module:
    """Make `module`, a copy of the caller's, trace every pooling to one cell as a mean."""
    for part in module.modules():
        if type(part) is nn.AdaptiveAvgPool2d and part.output_size in (1, (1, 1)):
            part.__class__ = MeanOfCells
        if type(part) is nn.AdaptiveAvgPool1d and part.output_size in (1, (1,)):
            part.__class__ = MeanOfTokens
    return module
