"""The two products of attention: queries with keys, probabilities with values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from vitdeploy.graph.rounding import MOVEMENT, POINTWISE


@dataclass(frozen=True)
class ProductNode:
    """A product of two activations; `factors` are the tensors it multiplies."""

    name: str
    factors: tuple[str, str]


@dataclass(frozen=True)
class Attention:
    """softmax(queries x keys) x values. 0 stands for a size that the graph leaves open."""

    scores: ProductNode
    mix: ProductNode
    head_size: int
    tokens: int


def attentions(model: ir.Model) -> Iterator[Attention]:
    """Every Softmax between two products of activations, in graph order.

    Between the first product and the Softmax there may be a scale, a bias or a
    mask, between the Softmax and the second product only moves.
    """
    for node in model.graph:
        if node.op_type != "Softmax":
            continue
        scores, mix = _product_before(node), _product_behind(node)
        if scores is None or mix is None:
            continue
        values = scores.inputs[0], scores.outputs[0]
        head_size, tokens = (_last(value) for value in values)
        yield Attention(_product(scores), _product(mix), head_size, tokens)


def is_product(node: ir.Node) -> bool:
    """Whether a node multiplies two activations."""
    return node.op_type == "MatMul" and all(
        value is not None and value.producer() is not None for value in node.inputs[:2]
    )


def _product(node: ir.Node) -> ProductNode:
    left, right = node.inputs[:2]
    assert left is not None
    assert right is not None
    return ProductNode(str(node.name), (str(left.name), str(right.name)))


def _product_before(softmax: ir.Node) -> ir.Node | None:
    value = softmax.inputs[0]
    while value is not None:
        node = value.producer()
        if node is None or is_product(node):
            return node
        if node.op_type not in POINTWISE | MOVEMENT:
            return None
        computed = [v for v in node.inputs if v is not None and v.producer() is not None]
        value = computed[0] if computed else None
    return None


def _product_behind(softmax: ir.Node) -> ir.Node | None:
    value = softmax.outputs[0]
    while len(value.uses()) == 1:
        use = next(iter(value.uses()))
        if is_product(use.node):
            return use.node if use.idx == 0 else None
        if use.node.op_type not in MOVEMENT:
            return None
        value = use.node.outputs[0]
    return None


def _last(value: ir.Value | None) -> int:
    size = None if value is None or value.shape is None else value.shape[-1]
    return size if isinstance(size, int) else 0
