"""Retype a float32 graph to float16; inputs and outputs stay float32."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from vitdeploy.errors import ExportError

_FLOAT16_MAX = 65504.0


def to_float16(model: ir.Model) -> ir.Model:
    """A strongly typed FP16 graph, in place. Q/DQ pairs stay int8, their scales become FP16.

    LayerNormalization stays one operator with float32 accumulation
    (stash_type 1), which is what keeps large residual streams from
    overflowing. A cast stands behind each float input and before each output.

    Raises ExportError where a weight does not fit into float16.
    """
    graph = model.graph
    for name, value in list(graph.initializers.items()):
        if value.dtype == ir.DataType.FLOAT:
            graph.initializers[name].const_value = _halved(value)
            value.dtype = ir.DataType.FLOAT16
    for node in graph:
        if node.op_type == "Cast" and node.attributes["to"].as_int() == ir.DataType.FLOAT:
            node.attributes["to"] = ir.AttrInt64("to", ir.DataType.FLOAT16)
        for output in node.outputs:
            if output.dtype == ir.DataType.FLOAT:
                output.dtype = ir.DataType.FLOAT16
    _cast_inputs(graph)
    _cast_outputs(graph)
    return model


def _halved(value: ir.Value) -> ir.Tensor:
    tensor = value.const_value
    if tensor is None:
        raise ExportError(f"initializer {value.name} has no value")
    array = tensor.numpy()
    largest = float(np.abs(array).max(initial=0.0))
    if largest > _FLOAT16_MAX:
        raise ExportError(
            f"{value.name} holds {largest:.4g}, beyond float16's {_FLOAT16_MAX:.0f}",
            hint="keep this model in fp32, or fold the outlier away first",
        )
    return ir.Tensor(array.astype(np.float16), name=value.name)


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
