"""What the layers of a graph compute, and how far two graphs differ in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vitdeploy.backends.onnxruntime_ import GraphSession
from vitdeploy.graph import files

Observed = Mapping[str, NDArray[np.float32]]
"""Values by the name of the node (or module) that computed them, in the order of the work."""

_AT_ONCE = 48
"""Values answered by one run: all of them would not fit beside a large model."""
_PASSED_ON = {
    "Shape", "Reshape", "Transpose", "Concat", "Expand", "Slice", "Squeeze", "Unsqueeze",
    "Gather", "Split", "Identity", "Cast", "QuantizeLinear", "DequantizeLinear", "Constant",
}  # fmt: skip
"""These move values and compute none, so another node is to blame for what they pass on."""


def observe_graph(
    graph: ir.Model, inputs: NDArray, *, optimize: bool = False, threads: int | None = None
) -> dict[str, NDArray[np.float32]]:
    """{node: its first output} of the float nodes that compute something.

    `optimize` computes them as ONNX Runtime fuses them, which shows faults of
    its kernels; values it would have kept inside a fusion end one.
    """
    names = [
        node.name
        for node in graph.graph
        if node.name and node.op_type not in _PASSED_ON and _is_float(node.outputs[0])
    ]
    found: dict[str, NDArray[np.float32]] = {}
    for start in range(0, len(names), _AT_ONCE):
        part = names[start : start + _AT_ONCE]
        session = GraphSession(
            files.runnable(_answering(graph, part)), optimize=optimize, threads=threads
        )
        found.update(zip(part, session.run_all(inputs)[-len(part) :], strict=True))
    return found


def _answering(graph: ir.Model, nodes: Sequence[str]) -> ir.Model:
    """A copy that answers these nodes' values after its own outputs, each under a new name."""
    observed = graph.clone()
    by_name = {node.name: node for node in observed.graph}
    for index, name in enumerate(nodes):
        value = by_name[name].outputs[0]
        # An output of its own: the value may be one already.
        copied = ir.node("Identity", [value], name=f"observer_{index}")
        copied.outputs[0].name = f"observed_{index}"
        copied.outputs[0].dtype, copied.outputs[0].shape = ir.DataType.FLOAT, value.shape
        observed.graph.append(copied)
        observed.graph.outputs.append(copied.outputs[0])
    return observed


def _is_float(value: ir.Value) -> bool:
    return value.dtype in (None, ir.DataType.FLOAT)


def layer_errors(
    exact: Observed, given: Observed, *, up_to_channel_scales: bool = False
) -> list[tuple[str, float]]:
    """(name, error) of what both computed in one shape, in the order of `exact`.

    The error is the root mean square of the difference over the deviation of
    the exact values. Names of modules stand for the last node inside them.
    With `up_to_channel_scales` a factor for each channel of the last axis is
    no error: quantization moves such factors from one layer into the next.
    Values that are not finite differ by the largest float.
    """
    found = []
    for name, values in exact.items():
        other = given.get(name)
        if other is None:
            other = _last_of_module(name, given)
        if other is None or other.shape != values.shape:
            continue
        found.append((name, _error(values, other, up_to_channel_scales)))
    return found


def _last_of_module(module: str, given: Observed) -> NDArray[np.float32] | None:
    inside = [n for n in given if n.startswith((f"{module}/", f"{module}."))]
    return given[inside[-1]] if inside else None


def _error(exact: NDArray, given: NDArray, scaled: bool) -> float:
    if not np.isfinite(given).all():
        return float(np.finfo(np.float32).max)
    a, b = exact.astype(np.float64), given.astype(np.float64)
    spread = max(float(a.std()), 1e-30)
    errors = [float(np.sqrt(np.mean(np.square(b - a)))) / spread]
    if scaled and a.ndim > 1:
        flat, other = a.reshape(-1, a.shape[-1]), b.reshape(-1, a.shape[-1])
        power = np.square(other).sum(axis=0)
        factors = (flat * other).sum(axis=0) / np.where(power > 0, power, 1)
        errors.append(float(np.sqrt(np.mean(np.square(other * factors - flat)))) / spread)
    return min(errors)
