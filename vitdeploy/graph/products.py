"""Products that add up in half precision, as tensor cores with FP16 accumulators do."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from vitdeploy.errors import InputError
from vitdeploy.graph.edits import store

CHUNK = 16
"""Products that one instruction adds up before its sum is rounded: a warp's half-precision
matrix instruction is m16n8k16 from Ampere on (PTX ISA, `mma`), and kernels walk along K."""


def accumulate_in_chunks(graph: ir.Graph, node: ir.Node, half: ir.DataType) -> None:
    """Replace a float32 MatMul or Gemm by sums of `CHUNK` products, rounded one after another.

    sum = round(x[:, :16] w[:16]); sum = round(sum + x[:, 16:32] w[16:32]); ...
    The chunk that is not full comes first. A Scan holds the loop, so that the
    graph stays small and only one partial sum is held. One of 3,072 terms takes
    about five times as long as the plain product, one of 768 twice (measured).

    Products whose factors both come from DequantizeLinear stay as they are:
    INT8 products add up in int32, exactly.

    Raises InputError where the rank of a factor is unknown.
    """
    left, right = node.inputs[0], node.inputs[1]
    assert left is not None
    assert right is not None
    if all(_is_dequantized(value) for value in (left, right)):
        return
    build = _Builder(graph, node)
    if node.op_type == "Gemm":
        left = build.transposed(left, "transA")
        right = build.transposed(right, "transB")
    shapes = left.shape, right.shape
    if any(shape is None or len(shape) < 2 for shape in shapes):
        raise InputError(
            f"the shape of a factor of {node.name} is unknown", hint="export the model again"
        )
    depth = right.shape[-2] if isinstance(right.shape[-2], int) else left.shape[-1]  # type: ignore[index]
    if isinstance(depth, int) and depth <= CHUNK:
        total = build.rounded(build.op("MatMul", [left, right]), half)
    else:
        total = build.chunked_sum(left, right, depth if isinstance(depth, int) else None, half)
    if node.op_type == "Gemm":
        total = build.affine(total)
    node.outputs[0].replace_all_uses_with(total)
    graph.remove(node, safe=True)


def _is_dequantized(value: ir.Value) -> bool:
    producer = value.producer()
    while producer is not None and producer.op_type == "Cast":
        value = producer.inputs[0]  # type: ignore[assignment]
        producer = value.producer()
    return producer is not None and producer.op_type == "DequantizeLinear"


class _Builder:
    """Appends nodes in front of the product they replace."""

    def __init__(self, graph: ir.Graph, product: ir.Node) -> None:
        self._graph = graph
        self._product = product
        self._count = 0

    def op(self, op_type: str, inputs: list[ir.Value], attributes: dict | None = None) -> ir.Value:
        node = ir.node(op_type, inputs, attributes, name=self._name(op_type))
        node.outputs[0].name = f"{node.name}_out"
        self._graph.insert_before(self._product, node)
        return node.outputs[0]

    def integers(self, *numbers: int) -> ir.Value:
        return store(self._graph, self._name("ints"), np.array(numbers, np.int64))

    def rounded(self, value: ir.Value, half: ir.DataType) -> ir.Value:
        narrow = self.op("Cast", [value], {"to": half})
        return self.op("Cast", [narrow], {"to": ir.DataType.FLOAT})

    def transposed(self, value: ir.Value, attribute: str) -> ir.Value:
        if not self._attribute(attribute, 0):
            return value
        turned = self.op("Transpose", [value], {"perm": [1, 0]})
        turned.dtype = ir.DataType.FLOAT
        turned.shape = None if value.shape is None else ir.Shape(tuple(value.shape)[::-1])
        return turned

    def affine(self, total: ir.Value) -> ir.Value:
        """alpha * total + beta * C, Gemm's tail."""
        alpha, beta = self._attribute("alpha", 1.0), self._attribute("beta", 1.0)
        if alpha != 1.0:
            total = self.op("Mul", [total, self._number(alpha)])
        offset = self._product.inputs[2] if len(self._product.inputs) > 2 else None
        if offset is None:
            return total
        if beta != 1.0:
            offset = self.op("Mul", [offset, self._number(beta)])
        return self.op("Add", [total, offset])

    def chunked_sum(
        self, left: ir.Value, right: ir.Value, depth: int | None, half: ir.DataType
    ) -> ir.Value:
        """The first chunk by itself, then a Scan over the others: (..., K, n) in (K/16, 16, n)."""
        ranks = len(left.shape), len(right.shape)  # type: ignore[arg-type]
        if depth is None:
            left, right = self._filled(left, right, ranks)
        first = self.integers(CHUNK if depth is None else (depth - 1) % CHUNK + 1)
        end = self.integers(np.iinfo(np.int64).max)
        zero = self.integers(0)
        columns, rows = self.integers(ranks[0] - 1), self.integers(ranks[1] - 2)
        head = self.op(
            "MatMul",
            [
                self.op("Slice", [left, zero, first, columns]),
                self.op("Slice", [right, zero, first, rows]),
            ],
        )
        head = self.rounded(head, half)
        lefts = self.op("Slice", [left, first, end, columns])
        lefts = self.op("Reshape", [lefts, self.integers(*[0] * (ranks[0] - 1), -1, CHUNK)])
        rights = self.op("Slice", [right, first, end, rows])
        shape = self.op(
            "Concat",
            [
                self.integers(*[0] * (ranks[1] - 2), -1, CHUNK),
                self.op("Shape", [right], {"start": -1}),
            ],
            {"axis": 0},
        )
        rights = self.op("Reshape", [rights, shape])
        return self.op(
            "Scan",
            [head, lefts, rights],
            {
                "body": _rounded_sum(self._name("body"), half),
                "num_scan_inputs": 2,
                "scan_input_axes": [ranks[0] - 1, ranks[1] - 2],
            },
        )

    def _filled(
        self, left: ir.Value, right: ir.Value, ranks: tuple[int, int]
    ) -> tuple[ir.Value, ir.Value]:
        """Zeros before the first term: a whole chunk, and what the first lacks to be full.

        The whole chunk keeps the Scan from having nothing to go over, which
        ends ONNX Runtime (1.32) by a division by zero.
        """
        depth = self.op("Shape", [left], {"start": -1})
        missing = self.op("Mod", [self.op("Neg", [depth]), self.integers(CHUNK)])
        zeros = self.op("Add", [missing, self.integers(CHUNK)])
        return (
            self._padded(left, ranks[0] - 1, ranks[0], zeros),
            self._padded(right, ranks[1] - 2, ranks[1], zeros),
        )

    def _padded(self, value: ir.Value, axis: int, rank: int, before: ir.Value) -> ir.Value:
        around = [axis, 2 * rank - axis - 1]
        parts = [self.integers(*[0] * count) for count in around]
        pads = [*parts[: axis > 0], before, parts[1]]
        return self.op("Pad", [value, self.op("Concat", pads, {"axis": 0})])

    def _attribute(self, name: str, default: float) -> float:
        attribute = self._product.attributes.get(name)
        return default if attribute is None else attribute.value

    def _number(self, number: float) -> ir.Value:
        return store(self._graph, self._name("number"), np.float32(number).reshape(()))

    def _name(self, what: str) -> str:
        self._count += 1
        return f"{self._product.name}/{what}_{self._count}"


def _rounded_sum(name: str, half: ir.DataType) -> ir.Graph:
    """Scan's body: (sum, left, right) to round(sum + left right)."""
    total, left, right = (ir.Value(name=f"{name}/{part}") for part in ("sum", "left", "right"))
    for value in (total, left, right):
        value.dtype = ir.DataType.FLOAT
    product = ir.node("MatMul", [left, right])
    added = ir.node("Add", [total, product.outputs[0]])
    rounded = ir.node("Cast", [added.outputs[0]], {"to": half})
    widened = ir.node("Cast", [rounded.outputs[0]], {"to": ir.DataType.FLOAT})
    nodes = (product, added, rounded, widened)
    for index, node in enumerate(nodes):
        node.name = node.outputs[0].name = f"{name}/{index}"
    widened.outputs[0].dtype = ir.DataType.FLOAT
    return ir.Graph([total, left, right], widened.outputs, nodes=nodes, name=name)
