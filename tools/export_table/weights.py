"""Weights under which a mistake is seen: positions of unit deviation, answers that vary."""

from __future__ import annotations

import torch
from torch import nn

_POSITIONS = ("pos", "relative", "attention_bias", "rel_")


def enliven(module: nn.Module, seed: int = 0) -> None:
    """The library's own initialization, except for what it makes too small to be seen.

    Positions and tables of biases get unit deviation; LayerScale, zeroed
    norms and zeroed or tiny matrices (heads) get the size trained ones have.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if not parameter.is_floating_point():
                continue
            drawn = torch.randn(parameter.shape, generator=generator)
            gain = parameter[0].numel() ** -0.5 if parameter.ndim > 1 else 1.0
            if (
                any(word in name for word in _POSITIONS)
                and parameter.ndim > 1
                and "mlp" not in name
            ):
                parameter.copy_(drawn)
            elif parameter.ndim > 1 and (float(parameter.std()) < 0.3 * gain or "head" in name):
                parameter.copy_(drawn * gain)
            elif _scales(module, name) and float(parameter.abs().mean()) < 0.5:
                parameter.copy_(0.5 + 0.1 * drawn)


def _scales(module: nn.Module, name: str) -> bool:
    """LayerScale and the weights of norms; not biases."""
    leaf = name.rpartition(".")[2]
    if leaf.startswith(("gamma", "ls")) or "layer_scale" in name:
        return True
    owner = module.get_submodule(name.rpartition(".")[0])
    return leaf == "weight" and "norm" in type(owner).__name__.lower()
