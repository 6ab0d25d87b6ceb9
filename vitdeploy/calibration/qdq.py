"""Write a plan into the graph as QuantizeLinear/DequantizeLinear pairs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vitdeploy.calibration.grids import INT8, Grid, quantize_weight, weight_scales
from vitdeploy.calibration.linear import LinearNode
from vitdeploy.calibration.plan import QuantizationPlan
from vitdeploy.errors import CalibrationError
from vitdeploy.graph.edits import store


def insert_qdq(
    model: ir.Model,
    plan: QuantizationPlan,
    activation_scales: Mapping[str, float],
    *,
    grid: Grid = INT8,
    half_scales: bool = True,
) -> ir.Model:
    """Quantize the planned Linear layers and attention products, in place.

    Each activation gets one Q/DQ pair however many nodes read it; weights
    are stored in the grid's type with one scale per output channel behind a
    DequantizeLinear, so the file shrinks. Everything is symmetric with zero
    point 0, the one form that TensorRT and ONNX Runtime both take.

    With `half_scales` scales are rounded up to float16 before weights are
    quantized with them, so that the int8-fp16 graph made from this one holds
    the very same integers and no weight is clipped.
    """
    values = {value.name: value for node in model.graph for value in node.outputs}
    nodes = {node.name: node for node in model.graph}
    weights: dict[tuple[str, int], ir.Value] = {}
    quantized = {}
    for name in plan.activations:
        scale = _rounded(np.array(activation_scales[name]), half_scales)
        quantized[name] = _quantized_activation(model.graph, values[name], scale, grid)
    for linear in plan.linear:
        node = nodes[linear.name]
        key = (linear.weight, linear.weight_axis)
        if key not in weights:
            weights[key] = _quantized_weight(model.graph, linear, grid, half_scales)
        node.replace_input_with(0, quantized[linear.activation])
        node.replace_input_with(1, weights[key])
    for product in plan.products:
        for index, name in enumerate(product.factors):
            nodes[product.name].replace_input_with(index, quantized[name])
    return model


def add_to_bias(model: ir.Model, linear: LinearNode, shift: NDArray[np.float32]) -> None:
    """Add `shift` (out,) to a layer's bias, in place; others that read the same one keep theirs."""
    product = next(node for node in model.graph if node.name == linear.name)
    adder = product if product.op_type == "Gemm" else product.outputs[0].consumers()[0]
    # By its place, not its name: a fold gives a layer its own copy of a shared bias.
    constant = [v is not None and v.const_value is not None for v in adder.inputs]
    index = 2 if product.op_type == "Gemm" else constant.index(True)
    bias = adder.inputs[index]
    assert bias is not None
    assert bias.const_value is not None  # linear_nodes names constant biases only
    name = f"{bias.name}_corrected_for_{linear.name}"
    corrected = (bias.const_value.numpy() + shift).astype(np.float32)
    adder.replace_input_with(index, store(model.graph, name, corrected))


def _rounded(scales: NDArray[np.floating], half: bool) -> NDArray[np.float32]:
    if half:
        with np.errstate(over="ignore"):  # told below, as an error of ours
            halves = scales.astype(np.float16)
            halves = np.where(halves < scales, np.nextafter(halves, np.float16(np.inf)), halves)
        scales = halves
    scales = scales.astype(np.float32)
    if not (np.isfinite(scales).all() and (scales > 0).all()):
        raise CalibrationError(
            "a scale does not fit into float16",
            hint="the activations are beyond what FP16 can hold; keep this model in fp32",
        )
    return scales


def _quantized_activation(
    graph: ir.Graph, value: ir.Value, scale: NDArray[np.float32], grid: Grid
) -> ir.Value:
    name = str(value.name)
    producer = value.producer()
    if producer is None:
        raise CalibrationError(f"{name} is an input of the graph and is not quantized")
    scale_value = store(graph, f"{name}_scale", scale)
    zero = store(graph, f"{name}_zero_point", grid.numbers(np.zeros(())))
    quantize = ir.node("QuantizeLinear", [value, scale_value, zero], name=f"{name}/quantize")
    numbers = quantize.outputs[0]
    numbers.name, numbers.dtype, numbers.shape = f"{name}_{grid.name}", grid.data_type, value.shape
    dequantize = ir.node("DequantizeLinear", [numbers, scale_value, zero], name=f"{name}/dequant")
    result = dequantize.outputs[0]
    result.name, result.dtype, result.shape = f"{name}_dq", ir.DataType.FLOAT, value.shape
    graph.insert_after(producer, [quantize, dequantize])
    return result


def _quantized_weight(graph: ir.Graph, linear: LinearNode, grid: Grid, half: bool) -> ir.Value:
    original = graph.initializers[linear.weight]
    tensor = original.const_value
    assert tensor is not None  # the plan holds constant weights only
    weight = tensor.numpy()
    scales = _rounded(weight_scales(weight, linear.weight_axis, grid), half)
    numbers = quantize_weight(weight, scales, linear.weight_axis, grid)
    zeros = grid.numbers(np.zeros(len(scales)))
    inputs = [
        store(graph, f"{linear.weight}_{grid.name}", numbers),
        store(graph, f"{linear.weight}_scale", scales),
        store(graph, f"{linear.weight}_zero_point", zeros),
    ]
    node = ir.node(
        "DequantizeLinear",
        inputs,
        {"axis": linear.weight_axis},
        name=f"{linear.name}/weight_dequant",
    )
    result = node.outputs[0]
    result.name = f"{linear.weight}_dq_{linear.weight_axis}"
    result.dtype, result.shape = ir.DataType.FLOAT, ir.Shape(list(weight.shape))
    graph.insert_before(graph[0], node)
    return result
