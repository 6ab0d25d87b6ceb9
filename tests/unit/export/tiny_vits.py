"""Tiny ViTs whose answers depend on every weight: a wrong graph cannot hide."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray

from vitdeploy.models.load import ModelRequest, seeded_random_source
from vitdeploy.models.source import SourceModel
from vitdeploy.preprocessing import Size

NATIVE: Size = (64, 96)
"""A grid of 4x6 patches: rows and columns cannot be mistaken for each other."""

SMALL: dict[str, Any] = {"depth": 2, "embed_dim": 48, "num_heads": 3, "num_classes": 10}


def lively(name: str = "vit_tiny_patch16_224", **model_kwargs: Any) -> SourceModel:
    """Random weights of unit gain and positions of unit deviation.

    timm's own initialization makes heads and positions so small that a graph
    with wrong ones would still answer almost the same.
    """
    request = ModelRequest(name=name, random_weights=True, model_kwargs={**SMALL, **model_kwargs})
    source = seeded_random_source(request, 0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for key, parameter in source.module.named_parameters():
            drawn = torch.randn(parameter.shape, generator=generator)
            if "pos_embed" in key or "token" in key:
                parameter.copy_(drawn)
            elif "rel_pos" in key or parameter.ndim >= 2:
                fan_in = parameter[0].numel()
                parameter.copy_(drawn / max(fan_in, 1) ** 0.5)
            elif "norm" in key and key.endswith("weight"):
                parameter.copy_(1 + 0.1 * drawn)
            else:
                parameter.copy_(0.1 * drawn)
    return source


def tiny() -> SourceModel:
    """64x96 native, two blocks, ten classes, a class token."""
    return lively(img_size=list(NATIVE))


def smooth_inputs(count: int, size: Size, *, channels: int = 3, seed: int = 0) -> NDArray:
    """(count, channels, height, width) float32, images that differ at large and at small."""
    generator = np.random.default_rng(seed)
    coarse = generator.normal(size=(count, channels, size[0] // 16, size[1] // 16))
    fine = generator.normal(size=(count, channels, *size))
    return (np.kron(coarse, np.ones((16, 16))) + 0.3 * fine).astype(np.float32)


def replaced(model: ir.Model, name: str, array: NDArray) -> ir.Model:
    """A copy of the graph in which one initializer holds other values."""
    changed = ir.from_proto(copy.deepcopy(ir.to_proto(model)))
    value = changed.graph.initializers[name]
    assert value.const_value is not None
    old = value.const_value.numpy()
    assert old.shape == array.shape
    assert not np.array_equal(old, array), f"{name} is as it was: no mutation"
    value.const_value = ir.Tensor(array.astype(old.dtype), name=name)
    return changed


def constant_of(model: ir.Model, name: str) -> NDArray:
    """A copy of an initializer's values."""
    tensor = model.graph.initializers[name].const_value
    assert tensor is not None
    return tensor.numpy().copy()
