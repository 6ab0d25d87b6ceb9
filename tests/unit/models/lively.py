"""Weights under which every position, token and scale is seen in the answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from vitdeploy.preprocessing import Size

_TOKENS = ("position", "pos_emb", "token", "class_embedding", "probe")
_SCALES = ("lambda", "layer_scale", "gamma", "logit_scale")


def lively(module: Any, *, seed: int = 1) -> Any:
    """Unit gain everywhere, positions and tokens of unit deviation.

    Libraries initialize heads, positions and layer scales so small (or zero)
    that a model with wrong ones would answer almost the same.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            drawn = torch.randn(parameter.shape, generator=generator)
            if any(word in name for word in _TOKENS) and "mlp" not in name:
                parameter.copy_(drawn)
            elif any(word in name for word in _SCALES) or _is_norm(module, name):
                parameter.copy_(1 + 0.1 * drawn)
            elif parameter.ndim >= 2:
                parameter.copy_(drawn / parameter[0].numel() ** 0.5)
            else:
                parameter.copy_(0.1 * drawn)
    return module.eval()


def _is_norm(module: nn.Module, name: str) -> bool:
    owner, _, kind = name.rpartition(".")
    is_norm = isinstance(module.get_submodule(owner), nn.LayerNorm | nn.BatchNorm2d)
    return is_norm and kind == "weight"


def images(count: int, size: Size, *, channels: int = 3) -> NDArray[np.float32]:
    """(count, channels, height, width) of seeded noise."""
    generator = np.random.default_rng(0)
    return generator.normal(size=(count, channels, *size)).astype(np.float32)


def deviations(found: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """The largest difference, in deviations of what is expected between images."""
    spread = float((expected - expected.mean(0)).std())
    assert spread > 1e-3, "these answers do not vary, so any would pass"
    assert found.shape == expected.shape
    return float(np.abs(found - expected).max()) / spread
