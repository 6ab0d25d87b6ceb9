"""What one image costs: multiply-accumulates of matrix products, convolutions and attention.

Element-wise operators, normalization and softmax are not counted, as in
torch.utils.flop_counter (whose FLOPs are two per multiply-accumulate).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import onnx

from vitdeploy.graph.shapes import Shape, Shapes
from vitdeploy.graph.skeleton import Skeleton

_FACTORS = {
    "MatMul": (0, 1),
    "Gemm": (0, 1),
    "Conv": (0, 1),
    "ConvTranspose": (0, 1),
    "Einsum": (0, 1),
    "Attention": (0, 1),
    "MatMulInteger": (0, 1),
    "ConvInteger": (0, 1),
    "QLinearMatMul": (0, 3),
    "QLinearConv": (0, 3),
}
"""The inputs that are multiplied, by operator."""

_OTHER_PRODUCTS = frozenset(("DeformConv", "GRU", "LSTM", "RNN"))
"""Operators that multiply in ways not counted here; those of other domains may do so too."""

_MOVES = frozenset(("Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"))


@dataclass(frozen=True)
class Product:
    """One operator that multiplies. `macs` is None where its shapes are not known.

    `computes` is the type both factors are stored in ('float32', 'int8'), or
    'int8 weights' where only the constant one is quantized. `is_attention`:
    both factors depend on the image.
    """

    name: str
    op_type: str
    macs: int | None
    computes: str
    is_attention: bool


def products(skeleton: Skeleton, known: Shapes) -> Iterator[Product]:
    """Every product of the graph; those of other domains, and those inside the bodies of If,
    Loop and Scan, come without a count."""
    graph = skeleton.proto.graph
    producers = {name: node for node in graph.node for name in node.output}
    fixed = image_independent(skeleton)
    for node in graph.node:
        if _multiplies(node):
            first, second = (node.input[index] for index in _FACTORS[node.op_type])
            yield Product(
                node.name,
                node.op_type,
                _macs(node, known.shapes),
                _computes(first, second, producers, known),
                first not in fixed and second not in fixed,
            )
        elif node.op_type in _OTHER_PRODUCTS or node.domain not in ("", "ai.onnx"):
            yield Product(node.name, full_name(node), None, "", False)
        for body in bodies(node):
            for inner in all_nodes(body):
                if inner.op_type in _FACTORS:
                    yield Product(inner.name, full_name(inner), None, "", False)


def full_name(node: onnx.NodeProto) -> str:
    """'MatMul'; 'com.microsoft.FusedMatMul' for an operator that ONNX does not define."""
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"


def image_independent(skeleton: Skeleton) -> set[str]:
    """Names of values that depend on the sizes of inputs at most, never on what is in them."""
    found = {*skeleton.weights, *(t.name for t in skeleton.proto.graph.initializer), ""}
    for node in skeleton.proto.graph.node:
        if node.op_type == "Shape" or (found.issuperset(node.input) and not any(bodies(node))):
            found.update(node.output)
    return found


def bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs inside an If, Loop or Scan."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g


def all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Every node, those of inner graphs included."""
    for node in graph.node:
        yield node
        for body in bodies(node):
            yield from all_nodes(body)


def _multiplies(node: onnx.NodeProto) -> bool:
    factors = _FACTORS.get(node.op_type)
    if factors is None or node.domain not in ("", "ai.onnx"):
        return False
    # An Einsum of one operand only sums, and a broken file may lack any input.
    return len(node.input) > factors[1] and len(node.output) > 0


def _macs(node: onnx.NodeProto, shapes: dict[str, Shape]) -> int | None:
    names = [node.input[index] for index in _FACTORS[node.op_type]]
    if any(name not in shapes for name in (*names, node.output[0])):
        return None
    first, second = (shapes[name] for name in names)
    outputs = math.prod(shapes[node.output[0]])
    if node.op_type in ("Conv", "QLinearConv", "ConvInteger"):
        return outputs * math.prod(second[1:])
    if node.op_type == "ConvTranspose":
        return math.prod(first) * math.prod(second[1:])
    if node.op_type == "Gemm":
        return outputs * first[0 if _integer(node, "transA") else 1]
    if node.op_type == "Einsum":
        return _einsum_macs(node, [shapes.get(name) for name in node.input])
    if node.op_type == "Attention":
        return _attention_macs(node, shapes)
    return outputs * first[-1]


def _einsum_macs(node: onnx.NodeProto, operands: list[Shape | None]) -> int | None:
    """The sizes of all indices multiplied; None for three operands and more.

    'bhid,bhjd->bhij' on (1, 3, 50, 64) twice is 3 x 50 x 50 x 64.
    """
    equation = next((a.s for a in node.attribute if a.name == "equation"), b"").decode()
    terms = equation.replace(" ", "").split("->")[0].split(",")
    if len(operands) != 2 or None in operands or len(terms) != 2 or len(node.output) != 1:
        return None
    sizes: dict[str, int] = {}
    ellipsis: Shape = ()
    for term, shape in zip(terms, operands, strict=True):
        assert shape is not None
        before, dots, after = term.partition("...")
        middle = len(shape) - len(before) - len(after)
        if middle < 0 or (middle and not dots):
            return None
        ellipsis = max(ellipsis, shape[len(before) : len(before) + middle], key=math.prod)
        ends = (*shape[: len(before)], *shape[len(before) + middle :])
        for index, size in zip(before + after, ends, strict=True):
            sizes[index] = max(size, sizes.get(index, 1))
    return math.prod(sizes.values()) * math.prod(ellipsis)


def _attention_macs(node: onnx.NodeProto, shapes: dict[str, Shape]) -> int | None:
    """Query times key and probabilities times value, of opset 23's operator.

    (1, heads, tokens, width) or, with the number of heads as attributes,
    (1, tokens, heads x width). None with a cache of past keys.
    """
    past = node.input[4:6]
    if any(past) or any(name not in shapes for name in node.input[:3]):
        return None
    query, key, value = (shapes[name] for name in node.input[:3])
    if len(query) == 4:
        return math.prod(query[:3]) * key[2] * (query[3] + value[3])
    heads, groups = _integer(node, "q_num_heads"), _integer(node, "kv_num_heads")
    if not heads or not groups:
        return None
    return query[0] * query[1] * key[1] * (query[2] + heads * value[2] // groups)


def _computes(first: str, second: str, producers: dict[str, onnx.NodeProto], known: Shapes) -> str:
    left, left_quantized = _stored(first, producers, known)
    right, right_quantized = _stored(second, producers, known)
    if left_quantized == right_quantized:
        return left
    return f"{right if right_quantized else left} weights"


def _stored(name: str, producers: dict[str, onnx.NodeProto], known: Shapes) -> tuple[str, bool]:
    """The type behind casts, moves and a DequantizeLinear, and whether there was one."""
    source = name
    node = producers.get(source)
    passed = {name}  # a broken file may run in a circle
    while node is not None and node.op_type in _MOVES and node.input:
        source = node.input[0]
        if source in passed:
            break
        passed.add(source)
        node = producers.get(source)
    if node is not None and node.op_type == "DequantizeLinear" and node.input:
        return type_name(known.types.get(node.input[0], 0)), True
    return type_name(known.types.get(name, 0)), False


def type_name(data_type: int) -> str:
    """'float32', 'bfloat16', 'int8', ... of an onnx.TensorProto data type."""
    names = {int(number): name.lower() for name, number in onnx.TensorProto.DataType.items()}
    renamed = {"float": "float32", "double": "float64", "undefined": "unknown"}
    name = names.get(data_type, f"type {data_type}")
    return renamed.get(name) or name


def _integer(node: onnx.NodeProto, name: str) -> int:
    return next((a.i for a in node.attribute if a.name == name), 0)
