"""Plants: small ViTs made as hard to quantize as large ones, without changing what they compute.

Each changes a float graph that export wrote, in place. (The fourth plant,
massive activations, takes training: see `massive_activations`.)
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vitdeploy.calibration.linear import LinearNode, linear_nodes

OUTLIERS = 4
"""Channels of each tensor that are made to stand out."""


def norm_outliers(graph: ir.Model, factor: float) -> None:
    """Channels of each LayerNorm that feeds Linear layers alone `factor` times as large.

    gamma and beta are multiplied and the rows of the weights behind divided:
    exact in float, and what folding finds and undoes.
    """
    generator = np.random.default_rng(0)
    linears = {linear.name: linear for linear in linear_nodes(graph)}
    for norm in graph.graph:
        if norm.op_type != "LayerNormalization":
            continue
        readers = [use.node.name for use in norm.outputs[0].uses()]
        if not all(name in linears for name in readers):
            continue
        gamma, beta = norm.inputs[1:3]
        factors = _outlying(_size(gamma), generator, factor)
        _times(gamma, factors)
        _times(beta, factors)
        for name in readers:
            _times_rows(graph, linears[str(name)], 1 / factors)


def gelu_outliers(graph: ir.Model, factor: float) -> None:
    """Channels behind each Gelu `factor` times as large: those that the next layer uses least.

    Gelu is not linear, so what is computed changes a little, and no fold can
    undo it: nothing before a Gelu can be divided.
    """
    linears = list(linear_nodes(graph))
    before = {linear.output: linear for linear in linears}
    for behind in linears:
        gelu = _producer(graph, behind.activation)
        if gelu is None or gelu.op_type != "Gelu" or gelu.inputs[0] is None:
            continue
        layer = before[str(gelu.inputs[0].name)]
        weight = _array(graph.graph.initializers[behind.weight])
        used = np.abs(weight).sum(axis=behind.weight_axis)
        factors = np.ones(len(used), np.float32)
        factors[np.argsort(used)[:OUTLIERS]] = factor
        _times_columns(graph, layer, factors)
        _times_rows(graph, behind, 1 / factors)


def large_logits(graph: ir.Model, factor: float) -> None:
    """Queries `factor` times as large: attention becomes sharp, and errors in it count more."""
    for linear in list(linear_nodes(graph)):
        if not linear.name.endswith("qkv/MatMul"):
            continue
        weight = _array(graph.graph.initializers[linear.weight])
        outputs = weight.shape[linear.weight_axis]
        factors = np.ones(outputs, np.float32)
        factors[: outputs // 3] = factor
        _times_columns(graph, linear, factors)


def entropy_bits(logits: NDArray[np.float32]) -> float:
    """Of the classes that are answered: with one class alone, agreement would be free."""
    counts = np.bincount(logits.argmax(-1))
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log2(shares)).sum())


def agreement(left: NDArray[np.float32], right: NDArray[np.float32]) -> float:
    """Share of the images of which both answer the same class."""
    assert np.isfinite(left).all()
    assert np.isfinite(right).all()
    return float((left.argmax(-1) == right.argmax(-1)).mean())


def _outlying(size: int, generator: np.random.Generator, factor: float) -> NDArray[np.float32]:
    factors = np.ones(size, np.float32)
    factors[generator.choice(size, OUTLIERS, replace=False)] = factor
    return factors


def _times_rows(graph: ir.Model, linear: LinearNode, factors: NDArray[np.float32]) -> None:
    weight = graph.graph.initializers[linear.weight]
    _times(weight, factors if linear.weight_axis == 0 else factors[:, None])


def _times_columns(graph: ir.Model, linear: LinearNode, factors: NDArray[np.float32]) -> None:
    weight = graph.graph.initializers[linear.weight]
    _times(weight, factors[:, None] if linear.weight_axis == 0 else factors)
    if linear.bias:
        _times(graph.graph.initializers[linear.bias], factors)


def _times(value: ir.Value | None, factors: NDArray[np.float32]) -> None:
    assert value is not None
    changed = (_array(value) * factors).astype(np.float32)
    value.const_value = ir.Tensor(changed, name=value.name)


def _array(value: ir.Value) -> NDArray[np.float32]:
    assert value.const_value is not None
    return value.const_value.numpy()


def _size(value: ir.Value | None) -> int:
    assert value is not None
    return _array(value).size


def _producer(graph: ir.Model, name: str) -> ir.Node | None:
    return next((n for n in graph.graph if any(v.name == name for v in n.outputs)), None)
