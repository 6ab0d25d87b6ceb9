"""Attention, found by its Softmax: a product on either side."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from vitdeploy.graph.linears import is_linear
from vitdeploy.graph.operands import is_constant, is_over_last_axis, readers
from vitdeploy.graph.rounding import MOVEMENT

_LONGEST_WAY = 12
"""Operators from a product to its Softmax, and from a Linear layer to the product, are fewer."""

SCALING = frozenset({"Add", "Cast", "Clip", "Div", "Mul", "Sub", "Where"})
"""What stands between the scores and their Softmax: scale, bias, mask."""


@dataclass(frozen=True)
class Attention:
    """Softmax of scaled products of queries and keys, times values.

    Three names of nodes: the product with the keys, the Softmax, the product
    with the values; for an `Attention` operator all three are it. What the
    graph's shapes do not tell is None. `masked`: something is added to the
    scores. `projections` name the Linear nodes that queries, keys and values
    come from: one where they are fused.
    """

    scores: str
    softmax: str
    values: str
    heads: int | None
    head_size: int | None
    tokens: int | None
    masked: bool
    projections: tuple[str, ...]


def attention_at(node: ir.Node) -> Attention | None:
    """The attention whose Softmax `node` is, or that it is by itself."""
    if node.op_type == "Attention" and not node.domain:
        return _attention_operator(node)
    if node.op_type != "Softmax" or node.inputs[0] is None or not is_over_last_axis(node):
        return None
    scores, between = _product_behind(node.inputs[0])
    values = _product_ahead(node.outputs[0])
    if scores is None or values is None:
        return None
    query, key = scores.inputs[:2]
    value = values.inputs[1]
    shape = _sides(scores.outputs[0])
    return Attention(
        scores=str(scores.name),
        softmax=str(node.name),
        values=str(values.name),
        heads=shape[-3] if len(shape) == 4 else None,
        head_size=_side(query, -1),
        tokens=shape[-1] if shape else None,
        masked=any(_adds(step) for step in between),
        projections=_projections(query, key, value),
    )


def _attention_operator(node: ir.Node) -> Attention:
    """ONNX's own (opset 23): (n, heads, tokens, head size), or (n, tokens, width) with counts."""
    query, key, value = node.inputs[:3]
    heads = node.attributes["q_num_heads"].as_int() if "q_num_heads" in node.attributes else None
    sides = _sides(query)
    size = sides[-1] if sides else None
    if heads is None:
        heads = sides[1] if len(sides) == 4 else None
    elif size is not None:
        size //= heads
    name = str(node.name)
    masked = len(node.inputs) > 3 and node.inputs[3] is not None
    tokens = _side(key, -2)
    found = _projections(query, key, value)
    return Attention(name, name, name, heads, size, tokens, masked, found)


def _product_behind(value: ir.Value) -> tuple[ir.Node | None, list[ir.Node]]:
    """The product of two activations that scores come from, and what was done to it since."""
    between: list[ir.Node] = []
    for _ in range(_LONGEST_WAY):
        node = value.producer()
        if node is None:
            return None, between
        if node.op_type == "MatMul":
            return (node if _is_of_keys(node) else None), between
        if node.op_type not in SCALING and node.op_type not in ("Reshape", "Identity"):
            return None, between
        between.append(node)
        inputs = [v for v in node.inputs if v is not None and not is_constant(v)]
        if node.op_type == "Reshape":
            inputs = inputs[:1]
        scored = [v for v in inputs if _leads_to_product(v)]
        if len(scored) != 1:
            return None, between
        value = scored[0]
    return None, between


def _leads_to_product(value: ir.Value) -> bool:
    """A mask is computed from no product of activations, scores are."""
    for _ in range(_LONGEST_WAY):
        node = value.producer()
        if node is None:
            return False
        if node.op_type == "MatMul":
            return _is_of_keys(node)
        if node.op_type not in SCALING and node.op_type not in ("Reshape", "Identity"):
            return False
        inputs = [v for v in node.inputs if v is not None and not is_constant(v)]
        if not inputs:
            return False
        value = inputs[0]
    return False


def _product_ahead(value: ir.Value) -> ir.Node | None:
    """The product that reads probabilities on its left, straight or past a mask or a reshape."""
    for _ in range(_LONGEST_WAY):
        found = readers(value)
        products = [n for n in found if n.op_type == "MatMul" and n.inputs[0] is value]
        if products:
            return products[0] if len(found) == 1 else None
        # Where and IsNaN turn rows that are masked throughout into zeros.
        ahead = [n for n in found if n.op_type != "IsNaN"]
        if len(ahead) != 1 or ahead[0].op_type not in ("Cast", "Identity", "Reshape", "Where"):
            return None
        value = ahead[0].outputs[0]
    return None


def _projections(*operands: ir.Value | None) -> tuple[str, ...]:
    """The Linear nodes that the operands come from, each once."""
    found = [_linear_behind(value) for value in operands if value is not None]
    return tuple(dict.fromkeys(str(node.name) for node in found if node is not None))


def _linear_behind(value: ir.Value) -> ir.Node | None:
    for _ in range(_LONGEST_WAY):
        node = value.producer()
        if node is None or is_linear(node):
            return node
        passes = node.op_type in MOVEMENT | SCALING or _is_normalized(node)
        inputs = [v for v in node.inputs if v is not None and not is_constant(v)]
        if node.op_type in MOVEMENT:
            inputs = inputs[:1]
        if not passes or len(inputs) != 1:
            return None
        value = inputs[0]
    return None


def _is_of_keys(product: ir.Node) -> bool:
    """Keys are computed; queries may be learned, and then they are constants with their heads."""
    keys = product.inputs[1]
    return keys is not None and not is_constant(keys)


def _adds(node: ir.Node) -> bool:
    return node.op_type in ("Add", "Sub", "Where")


def _sides(value: ir.Value | None) -> list[int | None]:
    if value is None or value.shape is None:
        return []
    return [side if isinstance(side, int) else None for side in value.shape]


def _side(value: ir.Value | None, axis: int) -> int | None:
    sides = _sides(value)
    return sides[axis] if len(sides) >= abs(axis) else None


def _is_normalized(node: ir.Node) -> bool:
    """Queries and keys may be normalized a head."""
    return node.op_type in ("LayerNormalization", "RMSNormalization")
