"""Take the bytes of images as input, and normalize them in the graph."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from vitdeploy.preprocessing import Preprocessing

SCOPE = "normalize"
"""Nodes of the normalization are named 'normalize/...'; they compute in float32 always."""


def with_uint8_input(model: ir.Model, preprocessing: Preprocessing) -> ir.Model:
    """Put cast, mean, std and layout in front of a (n, channels, height, width) float32 input.

    The graph then takes (n, height, width, channels) uint8 under the same
    name: (v - 255 mean) / (255 std), which is the preprocessing's
    (v / 255 - mean) / std. The cast comes first, as TensorRT knows bytes only
    at the border of a network.
    """
    graph = model.graph
    floats = graph.inputs[0]
    assert floats.shape is not None
    assert floats.name is not None
    batch, channels, height, width = floats.shape
    pixels = ir.Value(
        name=floats.name,
        shape=ir.Shape((batch, height, width, channels)),
        type=ir.TensorType(ir.DataType.UINT8),
    )
    mean = 255 * np.asarray(preprocessing.mean, dtype=np.float64)
    gain = 1 / (255 * np.asarray(preprocessing.std, dtype=np.float64))
    first = graph[0]
    value = pixels
    for op_type, operand, attributes in (
        ("Cast", None, {"to": ir.DataType.FLOAT}),
        ("Sub", mean, {}),
        ("Mul", gain, {}),
        ("Transpose", None, {"perm": [0, 3, 1, 2]}),
    ):
        inputs = [value]
        if operand is not None:
            name = f"{SCOPE}.{op_type.lower()}"
            tensor = ir.Tensor(operand.astype(np.float32), name=name)
            constant = ir.Value(name=name, const_value=tensor, shape=tensor.shape)
            constant.type = ir.TensorType(ir.DataType.FLOAT)
            graph.initializers[name] = constant
            inputs.append(constant)
        node = ir.node(op_type, inputs, attributes, name=f"{SCOPE}/{op_type}")
        value = node.outputs[0]
        value.name = f"{SCOPE}_{op_type.lower()}"
        value.type = ir.TensorType(ir.DataType.FLOAT)
        value.shape = floats.shape if op_type == "Transpose" else pixels.shape
        graph.insert_before(first, node)
    for user, index in list(floats.uses()):
        user.replace_input_with(index, value)
    graph.inputs[0] = pixels
    return model
