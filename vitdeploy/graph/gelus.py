"""GELU as exporters write it where their opset has no operator for it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from scipy.special import erf

from vitdeploy.graph.operands import number, readers

Approximation = Literal["none", "tanh"]

_POINTS = np.linspace(-4.0, 4.0, 33)
"""Where a group of operators is compared with GELU; the tanh form departs from it by 4e-4."""
_TOLERANCE = 2e-6
_LONGEST_GROUP = 12
"""Operators from Erf or Tanh to the end of a GELU, and back to its beginning, are fewer."""


@dataclass(frozen=True)
class DecomposedGelu:
    """A GELU of `x`, written with Erf or (its approximation) with Tanh."""

    x: ir.Value
    approximation: Approximation
    output: ir.Value
    nodes: tuple[ir.Node, ...]


def decomposed_gelus(graph: ir.Graph) -> list[DecomposedGelu]:
    """Every GELU that is written out, in graph order.

    Numbers are sent through the operators around each Erf and Tanh: whatever
    their order, the group is a GELU where it answers as one on all of them.
    """
    found = []
    for node in graph:
        if node.op_type in ("Erf", "Tanh") and node.inputs[0] is not None:
            gelu = _gelu_at(node)
            if gelu is not None:
                found.append(gelu)
    return found


def _gelu_at(node: ir.Node) -> DecomposedGelu | None:
    approximation: Approximation = "none" if node.op_type == "Erf" else "tanh"
    expected = _gelu(approximation)
    assert node.inputs[0] is not None
    for x in _behind(node.inputs[0]):
        value = node.outputs[0]
        for _ in range(_LONGEST_GROUP):
            next_nodes = readers(value)
            if len(next_nodes) != 1 or value.is_graph_output():
                break
            value = next_nodes[0].outputs[0]
            answered = _answer(value, x, _LONGEST_GROUP)
            if answered is None:
                break
            if np.allclose(answered, expected, rtol=0, atol=_TOLERANCE):
                return DecomposedGelu(x, approximation, value, _group(value, x))
    return None


def _gelu(approximation: Approximation) -> NDArray[np.float64]:
    if approximation == "tanh":
        inner = math.sqrt(2 / math.pi) * (_POINTS + 0.044715 * _POINTS**3)
        return 0.5 * _POINTS * (1 + np.tanh(inner))
    return 0.5 * _POINTS * (1 + erf(_POINTS / math.sqrt(2)))


def _behind(value: ir.Value) -> Iterator[ir.Value]:
    """`value` and what it is computed from by single numbers, nearest first."""
    waiting, seen = [value], {value}
    while waiting and len(seen) <= 2 * _LONGEST_GROUP:
        value = waiting.pop(0)
        yield value
        producer = value.producer()
        if producer is None or producer.op_type not in _ARITHMETIC:
            continue
        for other in producer.inputs:
            if other is not None and other not in seen and number(other) is None:
                seen.add(other)
                waiting.append(other)


_ARITHMETIC = {
    "Add": np.add,
    "Div": np.divide,
    "Erf": erf,
    "Mul": np.multiply,
    "Pow": np.power,
    "Sub": np.subtract,
    "Tanh": np.tanh,
}


def _answer(value: ir.Value, x: ir.Value, depth: int) -> NDArray[np.float64] | None:
    """`value` where x is `_POINTS`; None where it reads anything but x and single numbers."""
    if value is x:
        return _POINTS
    constant = number(value)
    if constant is not None:
        return np.full_like(_POINTS, constant)
    producer = value.producer()
    if producer is None or producer.op_type not in _ARITHMETIC or depth == 0:
        return None
    answers = [None if v is None else _answer(v, x, depth - 1) for v in producer.inputs]
    if any(answer is None for answer in answers):
        return None
    with np.errstate(all="ignore"):
        return np.asarray(_ARITHMETIC[producer.op_type](*answers), dtype=np.float64)


def _group(value: ir.Value, x: ir.Value) -> tuple[ir.Node, ...]:
    """The nodes between `x` and `value`, the last one first."""
    found: dict[ir.Node, None] = {}
    waiting = [value]
    while waiting:
        node = waiting.pop(0).producer()
        if node is not None and node not in found:
            found[node] = None
            waiting += [
                v for v in node.inputs if v is not None and v is not x and number(v) is None
            ]
    return tuple(found)
