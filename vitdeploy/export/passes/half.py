"""Retype a float32 graph to float16 or bfloat16; inputs and outputs stay float32."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from vitdeploy.errors import ExportError
from vitdeploy.graph.files import unused_initializers_removed
from vitdeploy.graph.half import FP16, HalfType, infer_missing_types
from vitdeploy.graph.rounding import MOVEMENT

_FLOAT = ir.DataType.FLOAT


def to_half_types(
    model: ir.Model, half: HalfType = FP16, *, keep: Collection[str] = ()
) -> ir.Model:
    """A strongly typed graph, in place; the nodes called as in `keep` compute in float32.

    LayerNormalization stays one operator with float32 accumulation
    (stash_type 1), which is what keeps large residual streams from
    overflowing. A Cast stands wherever a value is read in another type than
    it is answered in, one for each value and type: none between two neighbours
    in float32, not even where only Reshape, Slice and the like lie between
    them. Weights that both kinds of nodes read are stored twice. Q/DQ pairs
    stay int8, their scales become half precision. A single number that the
    type would round to zero becomes its smallest one instead.

    Raises ExportError where a weight that a half-precision node reads does not
    fit, where a node holds a graph of its own (Loop, If), and below opset 19
    for a quantized graph: its scales had to be float32 there.
    """
    _require_half_scales(model, half)
    graph = infer_missing_types(model).graph
    wide = _wide_nodes(graph, keep)
    opset = model.graph.opset_imports.get("", 0)
    casts = _Casts(graph, half)
    for node in graph:
        if node not in wide:
            _retype(node, half)
    needed = [
        (node, index, value, _needed(node, index, half, opset, wide))
        for node in graph
        for index, value in enumerate(node.inputs)
        if value is not None and value.dtype in (_FLOAT, half.data_type)
    ]
    casts.retype_initializers([(value, data_type) for _, _, value, data_type in needed])
    for node, index, value, data_type in needed:
        if value.dtype != data_type:
            node.replace_input_with(index, casts.of(value, data_type))
    _cast_outputs(graph, half)
    return unused_initializers_removed(model)


def supports(node: ir.Node, half: HalfType, opset: int) -> bool:
    """Whether ONNX defines this operator for the half type (Range and bfloat16 Conv: not)."""
    schema = _schema(node, opset)
    if schema is None:
        return True
    wanted = f"tensor({'float16' if half is FP16 else 'bfloat16'})"
    used = [
        *zip(node.inputs, _padded(schema.inputs, len(node.inputs)), strict=True),
        *zip(node.outputs, _padded(schema.outputs, len(node.outputs)), strict=True),
    ]
    return all(
        parameter.type_str == "tensor(float)" or wanted in parameter.types
        for value, parameter in used
        if value is not None and "tensor(float)" in parameter.types
    )


def _padded(
    parameters: Sequence[onnx.defs.OpSchema.FormalParameter], count: int
) -> list[onnx.defs.OpSchema.FormalParameter]:
    """`count` parameters; a variadic operator repeats its last."""
    return [*parameters, *[parameters[-1]] * (count - len(parameters))][:count] if count else []


def _schema(node: ir.Node, opset: int) -> onnx.defs.OpSchema | None:
    if node.domain not in ("", "ai.onnx") or not onnx.defs.has(node.op_type, node.domain):
        return None
    return onnx.defs.get_schema(node.op_type, opset, "")


def _needed(
    node: ir.Node, index: int, half: HalfType, opset: int, wide: Collection[ir.Node]
) -> ir.DataType:
    """The float type in which a node reads an input."""
    if node in wide:
        return _FLOAT
    schema = _schema(node, opset)
    if schema is not None and schema.inputs:
        parameter = _padded(schema.inputs, index + 1)[index]
        if parameter.type_str == "tensor(float)":  # Resize's scales
            return _FLOAT
    return half.data_type


def _wide_nodes(graph: ir.Graph, keep: Collection[str]) -> set[ir.Node]:
    """The kept nodes, and those between them that only carry their numbers.

    A DequantizeLinear that kept nodes alone read becomes float32 with them:
    a Cast behind it would hide it from runtimes.
    """
    kept = {node for node in graph if node.name in keep}
    carried: set[ir.Node] = set()
    for node in reversed(graph):
        readers = [use.node for value in node.outputs for use in value.uses()]
        if (
            node.op_type in MOVEMENT | {"DequantizeLinear"}
            and readers
            and all(reader in kept or reader in carried for reader in readers)
            and not any(value.is_graph_output() for value in node.outputs)
        ):
            carried.add(node)
    wide = set(kept)
    for node in graph:
        if node in carried and all(
            value is None
            or value.dtype != _FLOAT
            or value.is_initializer()
            or value.producer() in wide
            for value in node.inputs
        ):
            wide.add(node)
    return wide


def _retype(node: ir.Node, half: HalfType) -> None:
    for name, attribute in list(node.attributes.items()):
        if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
            raise ExportError(
                f"{node.name} ({node.op_type}) holds a graph of its own, which is not retyped",
                hint="keep this model in fp32; exports of fixed size hold no such node",
            )
        if attribute.type == ir.AttributeType.TENSOR:
            tensor = attribute.as_tensor()
            if tensor.dtype == _FLOAT:
                narrowed = _narrowed(tensor, f"{node.name} {name}", half)
                node.attributes[name] = ir.AttrTensor(name, narrowed)
    if node.op_type == "Cast" and node.attributes["to"].as_int() == _FLOAT:
        node.attributes["to"] = ir.AttrInt64("to", half.data_type)
    # LayerNormalization's mean and deviation are of its stash_type, float32.
    outputs = node.outputs[:1] if node.op_type == "LayerNormalization" else node.outputs
    for output in outputs:
        if output.dtype == _FLOAT:
            # Not by its dtype: clones of a graph share the type itself.
            output.type = ir.TensorType(half.data_type)


def _narrowed(tensor: ir.TensorProtocol, name: str, half: HalfType) -> ir.Tensor:
    array = tensor.numpy()
    finite = array[np.isfinite(array)]
    largest = float(np.abs(finite).max(initial=0.0))
    if largest > half.largest:
        raise ExportError(
            f"{name} holds {largest:.4g}, beyond {half.name}'s {half.largest:.5g}",
            hint="keep the nodes that read it in float32, or fold the outlier away first",
        )
    narrow = array.astype(half.data_type.numpy())
    if array.size == 1 and array.any() and not narrow.any():
        # An epsilon: as zero it would make 0 / 0 of what it protects.
        narrow = np.full_like(narrow, np.copysign(half.smallest, array.item()))
    return ir.Tensor(narrow, dtype=half.data_type, name=tensor.name or name)


def _require_half_scales(model: ir.Model, half: HalfType) -> None:
    opset = model.graph.opset_imports.get("", 0)
    if opset < 19 and any(node.op_type == "QuantizeLinear" for node in model.graph):
        kind = "float16" if half is FP16 else "bfloat16"
        raise ExportError(
            f"opset {opset} has no {kind} scales for INT8",
            hint="export with --opset 19 or later, and quantize that graph",
        )


class _Casts:
    """One Cast for each value and type."""

    def __init__(self, graph: ir.Graph, half: HalfType) -> None:
        self._graph = graph
        self._half = half
        self._made: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}

    def retype_initializers(self, reads: list[tuple[ir.Value, ir.DataType]]) -> None:
        """Weights are stored in the types they are read in, never cast while running."""
        types: dict[ir.Value, set[ir.DataType]] = {}
        for value, data_type in reads:
            if value.is_initializer() and not value.is_graph_input():
                types.setdefault(value, set()).add(data_type)
        for value, found in types.items():
            tensor = value.const_value
            if tensor is None:
                raise ExportError(
                    f"initializer {value.name} has no value", hint="export the model again"
                )
            if self._half.data_type not in found:
                continue
            if _FLOAT in found:
                self._made[value, _FLOAT] = self._copy(value, tensor)
            value.const_value = _narrowed(tensor, str(value.name), self._half)
            value.type = ir.TensorType(self._half.data_type)

    def of(self, value: ir.Value, data_type: ir.DataType) -> ir.Value:
        key = (value, data_type)
        if key not in self._made:
            self._made[key] = self._cast(value, data_type)
        return self._made[key]

    def _copy(self, value: ir.Value, tensor: ir.TensorProtocol) -> ir.Value:
        copy = ir.Value(name=f"{value.name}_fp32", const_value=tensor)
        copy.dtype, copy.shape = _FLOAT, value.shape
        self._graph.register_initializer(copy)
        return copy

    def _cast(self, value: ir.Value, data_type: ir.DataType) -> ir.Value:
        suffix = "fp32" if data_type == _FLOAT else self._half.name
        node = ir.node("Cast", [value], {"to": data_type}, name=f"{value.name}/{suffix}")
        output = node.outputs[0]
        output.name, output.dtype, output.shape = f"{value.name}_{suffix}", data_type, value.shape
        producer = value.producer()
        if producer is None:
            self._graph.insert_before(self._graph[0], node)
        else:
            self._graph.insert_after(producer, node)
        return output


def _cast_outputs(graph: ir.Graph, half: HalfType) -> None:
    for index, value in enumerate(graph.outputs):
        if value.dtype != half.data_type:
            continue
        name = value.name
        value.name = f"{name}_{half.name}"
        cast = ir.node("Cast", [value], {"to": _FLOAT}, name=f"{name}/fp32")
        output = cast.outputs[0]
        output.name, output.dtype, output.shape = name, _FLOAT, value.shape
        graph.append(cast)
        graph.outputs[index] = output
