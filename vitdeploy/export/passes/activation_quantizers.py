"""Take the quantization of activations out of a Q/DQ graph."""

from __future__ import annotations

import onnx_ir as ir


def without_activation_quantizers(model: ir.Model) -> ir.Model:
    """Who read a value quantized and dequantized reads the value itself, in place.

    Weights stay as they are, integers behind a DequantizeLinear. What is left
    is smooth: a rounding error moves the answer a little, where a quantizer
    lets an activation half a step from the next integer jump.
    """
    graph = model.graph
    for node in [node for node in graph if node.op_type == "DequantizeLinear"]:
        integers = node.inputs[0]
        quantizer = None if integers is None else integers.producer()
        if quantizer is None or quantizer.op_type != "QuantizeLinear":
            continue
        value = quantizer.inputs[0]
        assert value is not None
        node.outputs[0].replace_all_uses_with(value, replace_graph_outputs=True)
        graph.remove(node, safe=True)
        if not quantizer.outputs[0].uses():
            graph.remove(quantizer, safe=True)
    return model
