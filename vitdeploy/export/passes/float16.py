"""Retype a float32 graph to float16; inputs and outputs stay float32."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vitdeploy.errors import ExportError

_FLOAT16_MAX = 65504.0


def to_float16(model: ir.Model) -> ir.Model:
    """A strongly typed FP16 graph, in place. Q/DQ pairs stay int8, their scales become FP16.

    LayerNormalization stays one operator with float32 accumulation
    (stash_type 1), which is what keeps large residual streams from
    overflowing. A cast stands behind each float input and before each output.

    Raises ExportError where a weight does not fit into float16, and below
    opset 19 for a quantized graph: its scales had to be float32 there.
    """
    graph = model.graph
    _require_half_scales(model)
    for name, value in list(graph.initializers.items()):
        if value.dtype == ir.DataType.FLOAT:
            graph.initializers[name].const_value = _halved(value)
            value.dtype = ir.DataType.FLOAT16
    for node in graph:
        _halve_attributes(node)
        if node.op_type == "Cast" and node.attributes["to"].as_int() == ir.DataType.FLOAT:
            node.attributes["to"] = ir.AttrInt64("to", ir.DataType.FLOAT16)
        for output in node.outputs:
            if output.dtype == ir.DataType.FLOAT:
                output.dtype = ir.DataType.FLOAT16
    _cast_inputs(graph)
    _cast_outputs(graph)
    return model


def _halved(value: ir.Value) -> ir.Tensor:
    if value.const_value is None:
        raise ExportError(f"initializer {value.name} has no value", hint="export the model again")
    return _halved_tensor(value.const_value.numpy(), str(value.name))


def _halved_tensor(array: NDArray[np.float32], name: str) -> ir.Tensor:
    largest = float(np.abs(array).max(initial=0.0))
    if not largest <= _FLOAT16_MAX:
        raise ExportError(
            f"{name} holds {largest:.4g}, beyond float16's {_FLOAT16_MAX:.0f}",
            hint="keep this model in fp32, or fold the outlier away first",
        )
    return ir.Tensor(array.astype(np.float16), name=name)


def _halve_attributes(node: ir.Node) -> None:
    """Retype constants that a node carries itself (Constant, ConstantOfShape)."""
    for name, attribute in list(node.attributes.items()):
        if attribute.type != ir.AttributeType.TENSOR:
            continue
        tensor = attribute.as_tensor()
        if tensor.dtype == ir.DataType.FLOAT:
            halved = _halved_tensor(tensor.numpy(), f"{node.name} {name}")
            node.attributes[name] = ir.AttrTensor(name, halved)


def _require_half_scales(model: ir.Model) -> None:
    opset = model.graph.opset_imports.get("", 0)
    if opset < 19 and any(node.op_type == "QuantizeLinear" for node in model.graph):
        raise ExportError(
            f"opset {opset} has no float16 scales for INT8",
            hint="export with --opset 19 or later, and quantize that graph",
        )


def _cast_inputs(graph: ir.Graph) -> None:
    for value in graph.inputs:
        if value.dtype != ir.DataType.FLOAT:
            continue
        consumers = list(value.uses())
        cast = ir.node("Cast", [value], {"to": ir.DataType.FLOAT16}, name=f"{value.name}/fp16")
        cast.outputs[0].name = f"{value.name}_fp16"
        cast.outputs[0].dtype = ir.DataType.FLOAT16
        cast.outputs[0].shape = value.shape
        graph.insert_before(graph[0], cast)
        for node, index in consumers:
            node.replace_input_with(index, cast.outputs[0])


def _cast_outputs(graph: ir.Graph) -> None:
    for index, value in enumerate(graph.outputs):
        if value.dtype != ir.DataType.FLOAT16:
            continue
        name = value.name
        value.name = f"{name}_fp16"
        cast = ir.node("Cast", [value], {"to": ir.DataType.FLOAT}, name=f"{name}/fp32")
        output = cast.outputs[0]
        output.name, output.dtype, output.shape = name, ir.DataType.FLOAT, value.shape
        graph.append(cast)
        graph.outputs[index] = output
