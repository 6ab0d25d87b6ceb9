"""Linear layers on tokens as they are, not on a flattened table of them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from vitdeploy.graph.edits import store, take_place
from vitdeploy.graph.linears import is_linear
from vitdeploy.graph.operands import is_constant, readers


def unflatten_linears(model: ir.Model) -> ir.Model:
    """Reshape to (rows, in), Gemm or MatMul, Reshape back becomes MatMul (and Add) without them.

    The Reshapes hold the batch as a number where a graph was traced with one,
    and hide from runtimes and from later passes that a Linear follows. Only
    where the second one keeps the Linear's width as its last side: the rows
    are the same, in the same order. What was flattened from another shape
    (heads and all) is reshaped to (..., in) instead.
    """
    graph = model.graph
    for node in list(graph):
        around = _reshapes_around(node)
        if around is None:
            continue
        flattened, last = around
        tokens = _tokens(graph, node, flattened, last)
        take_place(graph, last.outputs[0], _product(graph, node, tokens, last))
    return model


def _reshapes_around(node: ir.Node) -> tuple[ir.Value, ir.Node] | None:
    """What was flattened for a Linear, and the Reshape behind it (and its bias)."""
    if not is_linear(node) or node.inputs[0] is None or not _has_plain_bias(node):
        return None
    first = node.inputs[0].producer()
    if first is None or first.op_type not in ("Reshape", "Flatten") or first.inputs[0] is None:
        return None
    value = node.outputs[0]
    found = readers(value)
    if len(found) == 1 and _is_bias(found[0], value):
        value = found[0].outputs[0]
        found = readers(value)
    if len(found) != 1 or value.is_graph_output() or found[0].op_type != "Reshape":
        return None
    return (first.inputs[0], found[0]) if _restores(node, found[0].outputs[0]) else None


def _has_plain_bias(node: ir.Node) -> bool:
    """A Gemm may add a whole table, which belongs to the rows as they were."""
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    return bias is None or (is_constant(bias) and bias.shape is not None and len(bias.shape) <= 1)


def _is_bias(node: ir.Node, value: ir.Value) -> bool:
    if node.op_type != "Add":
        return False
    other = next((v for v in node.inputs if v is not value), None)
    return other is not None and is_constant(other) and len(other.shape or (0, 0)) == 1


def _restores(node: ir.Node, restored: ir.Value) -> bool:
    """Whether a (rows, in) table comes back as (..., out), with at most one open side."""
    table = node.inputs[0]
    assert table is not None
    if restored.shape is None or table.shape is None or len(table.shape) != 2:
        return False
    sides = list(restored.shape)
    opened = sum(not isinstance(side, int) for side in sides)
    return len(sides) > 2 and sides[-1] == _width(node) and opened <= 1 and 0 not in sides


def _tokens(graph: ir.Graph, node: ir.Node, flattened: ir.Value, last: ir.Node) -> ir.Value:
    """`flattened` as (..., in), with the sides that `last` restores."""
    table, restored = node.inputs[0], last.outputs[0].shape
    assert table is not None
    assert table.shape is not None
    assert restored is not None
    sides = [*list(restored)[:-1], table.shape[-1]]
    if flattened.shape is not None and list(flattened.shape) == sides:
        return flattened
    numbers = np.array([side if isinstance(side, int) else -1 for side in sides], np.int64)
    shape = store(graph, f"{node.name}.tokens", numbers)
    reshaped = ir.node("Reshape", [flattened, shape], name=f"{node.name}_rows")
    value = reshaped.outputs[0]
    value.name, value.type, value.shape = f"{reshaped.name}_out", flattened.type, ir.Shape(sides)
    graph.insert_before(node, reshaped)
    return value


def _width(node: ir.Node) -> int:
    weight = node.inputs[1]
    assert weight is not None  # it is a Linear
    return _array(weight).shape[0 if _attribute(node, "transB", 0) else 1]


def _product(graph: ir.Graph, node: ir.Node, tokens: ir.Value, last: ir.Node) -> ir.Value:
    """MatMul of the tokens, and the bias, in the place of `last`."""
    weight, bias = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None
    assert weight is not None
    if node.op_type == "Gemm":
        weight = _gemm_weight(graph, node, weight)
        bias = _gemm_bias(graph, node, bias)
    else:
        following = readers(node.outputs[0])[0]
        if following is not last:
            bias = next(v for v in following.inputs if v is not node.outputs[0])
    product = ir.node("MatMul", [tokens, weight], name=node.name)
    nodes = [product]
    if bias is not None:
        nodes.append(ir.node("Add", [product.outputs[0], bias], name=f"{node.name}_bias"))
    for each in nodes:
        value = each.outputs[0]
        value.name = f"{each.name}_tokens"
        value.type, value.shape = last.outputs[0].type, last.outputs[0].shape
    node.name = f"{node.name}_flat"  # dead from here on; names of nodes are unique
    graph.insert_before(last, nodes)
    return nodes[-1].outputs[0]


def _gemm_weight(graph: ir.Graph, node: ir.Node, weight: ir.Value) -> ir.Value:
    """(in, out) with alpha in it."""
    transposed, alpha = _attribute(node, "transB", 0), _attribute(node, "alpha", 1.0)
    if not transposed and alpha == 1.0:
        return weight
    array = _array(weight)
    array = array.T if transposed else array
    return store(graph, f"{weight.name}_{node.name}_tokens", array * np.float32(alpha))


def _gemm_bias(graph: ir.Graph, node: ir.Node, bias: ir.Value | None) -> ir.Value | None:
    beta = _attribute(node, "beta", 1.0)
    if bias is None or beta == 1.0:
        return bias
    return store(graph, f"{bias.name}_{node.name}_tokens", _array(bias) * np.float32(beta))


def _array(value: ir.Value) -> np.ndarray:
    tensor = ir.convenience.get_const_tensor(value)
    assert tensor is not None
    return tensor.numpy()


def _attribute(node: ir.Node, name: str, default: float) -> float:
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.value
