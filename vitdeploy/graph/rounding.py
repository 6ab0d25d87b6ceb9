"""Where a graph's values are rounded: what one kernel of a runtime computes before it writes."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from vitdeploy.graph.operands import is_constant

PRODUCTS = frozenset({"MatMul", "Gemm", "Conv", "ConvTranspose"})

POINTWISE = frozenset(
    """Abs Add BatchNormalization Ceil Celu Clip Cos Div Elu Erf Exp Floor Gelu HardSigmoid
    HardSwish LeakyRelu Log Max Min Mish Mul Neg PRelu Pow Reciprocal Relu Round Selu Sigmoid
    Sign Sin Softplus Softsign Sqrt Sub Sum Tanh""".split()  # noqa: SIM905
)

MOVEMENT = frozenset(
    """Concat Constant ConstantOfShape DepthToSpace Expand Flatten Gather GatherElements GatherND
    Identity Pad Reshape Slice SpaceToDepth Split Squeeze Tile Transpose Unsqueeze Where""".split()  # noqa: SIM905
)
"""Operators that carry numbers without computing any: what goes in rounded comes out rounded."""


@dataclass(frozen=True)
class RoundingGroup:
    """Nodes computed as one, in graph order; of their values only `value` is rounded."""

    nodes: tuple[ir.Node, ...]
    value: ir.Value


def rounding_groups(
    graph: ir.Graph, data_type: ir.DataType, *, fused: bool
) -> tuple[RoundingGroup, ...]:
    """The groups of all nodes that answer `data_type`, in graph order.

    Not `fused`, every node stands alone. `fused`, as runtimes do it:

    * a product takes along the elementwise operators behind it that read
      nothing but it and constants: bias, Gelu (also written with Erf), SiLU,
      LayerScale. A residual Add reads a second tensor and rounds by itself;
    * a product of two activations followed by Softmax is attention: scale,
      bias and scores stay float32, the probabilities are rounded, because the
      second product reads half precision;
    * other elementwise operators that follow one another round once;
    * everything else (LayerNormalization, Softmax, reductions, pooling,
      DequantizeLinear, Cast) computes in float32 and rounds what it answers.
    """
    computing = [node for node in graph if _computes(node, data_type)]
    if not fused:
        groups = [RoundingGroup((node,), value) for node in computing for value in node.outputs]
        return tuple(group for group in groups if group.value.dtype == data_type)
    order = {node: index for index, node in enumerate(graph)}
    groups, taken = [], set()
    for node in computing:
        if node.op_type in PRODUCTS:
            members = _attention(node, data_type) or _epilogue(node, order, data_type)
            taken.update(members)
            groups.append(RoundingGroup(tuple(members), members[-1].outputs[0]))
    rest = [node for node in computing if node not in taken]
    groups += _chains([node for node in rest if node.op_type in POINTWISE], order)
    groups += [
        RoundingGroup((node,), value)
        for node in rest
        if node.op_type not in POINTWISE
        for value in node.outputs
        if value.dtype == data_type
    ]
    return tuple(sorted(groups, key=lambda group: order[group.nodes[-1]]))


def _computes(node: ir.Node, data_type: ir.DataType) -> bool:
    return node.op_type not in MOVEMENT and any(v.dtype == data_type for v in node.outputs)


def _readers(node: ir.Node) -> list[ir.Node]:
    return [use.node for use in node.outputs[0].uses()]


def _attention(product: ir.Node, data_type: ir.DataType) -> list[ir.Node]:
    """The nodes from a product of two activations to its Softmax; empty where there is none."""
    if any(value is None or value.producer() is None for value in product.inputs[:2]):
        return []
    members = [product]
    while True:
        readers = _readers(members[-1])
        if len(readers) != 1 or readers[0].outputs[0].dtype != data_type:
            return []
        members.append(readers[0])
        if readers[0].op_type == "Softmax":
            return members
        if readers[0].op_type not in POINTWISE:
            return []


def _epilogue(product: ir.Node, order: dict[ir.Node, int], data_type: ir.DataType) -> list[ir.Node]:
    """The product and the elementwise nodes behind it that read it and constants alone."""
    members = {product}
    waiting = {order[reader]: reader for reader in _readers(product)}
    while waiting:
        # In graph order a node's own producers have been decided before it.
        node = waiting.pop(min(waiting))
        if _belongs(node, members, data_type):
            members.add(node)
            waiting.update({order[reader]: reader for reader in _readers(node)})
    return _with_single_exit(sorted(members, key=order.__getitem__))


def _belongs(node: ir.Node, members: set[ir.Node], data_type: ir.DataType) -> bool:
    if node.op_type not in POINTWISE or node.outputs[0].dtype != data_type:
        return False
    inputs = [value for value in node.inputs if value is not None]
    return all(value.producer() in members or is_constant(value) for value in inputs)


def _with_single_exit(members: list[ir.Node]) -> list[ir.Node]:
    """The longest beginning of `members` of which one value alone is read elsewhere."""
    while True:
        inside = set(members)
        exits = [node for node in members if _leaves(node, inside)]
        members = members[: members.index(exits[0]) + 1] if exits else members
        if len(exits) <= 1:
            return members


def _leaves(node: ir.Node, inside: set[ir.Node]) -> bool:
    is_output = node.outputs[0].is_graph_output()
    return is_output or not inside.issuperset(_readers(node))


def _chains(pointwise: list[ir.Node], order: dict[ir.Node, int]) -> list[RoundingGroup]:
    """Elementwise nodes joined to the one that alone reads on; other inputs may come in."""
    last: dict[ir.Node, ir.Node] = {}
    for node in reversed(pointwise):
        is_output = node.outputs[0].is_graph_output()
        ends = set() if is_output else {last.get(reader) for reader in _readers(node)}
        end = ends.pop() if len(ends) == 1 else None
        last[node] = node if end is None else end
    members: dict[ir.Node, list[ir.Node]] = {}
    for node in pointwise:
        members.setdefault(last[node], []).append(node)
    return [RoundingGroup(tuple(nodes), end.outputs[0]) for end, nodes in members.items()]
