"""What a half-precision graph answers on hardware that computes in its type, on any CPU.

ONNX Runtime's CPU provider computes FP16 graphs in float32 and drops the casts
between, so neither overflow nor rounding shows. Here a typed graph becomes a
float32 one with explicit round trips (Cast to half, Cast back), which survive
every optimization level. What comes out is a forecast, never a measurement.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
import onnx_ir as ir

from vitdeploy.artifacts.onnx_model import OnnxModel
from vitdeploy.graph import files
from vitdeploy.graph.files import RunnableGraph
from vitdeploy.graph.half import FP16, HalfType, half_type_of, infer_missing_types
from vitdeploy.graph.products import accumulate_in_chunks
from vitdeploy.graph.rounding import RoundingGroup, rounding_groups

Variant = Literal["fused", "worst"]

SWITCHES = "rounding_switches"
"""Input of a switchable emulation: (groups,) booleans, true where a group rounds."""


def emulate(model: OnnxModel, variant: Variant) -> RunnableGraph:
    """The emulation of a typed graph file, for ONNX Runtime; inputs and outputs are the file's.

    Raises InputError where the graph computes in float32 throughout.
    """
    return files.runnable(emulated(files.load(model), variant))


def emulated(typed: ir.Model, variant: Variant) -> ir.Model:
    """A float32 graph that rounds where hardware does; `typed` itself is left as it is.

    `fused` rounds once for each group of `rounding_groups`. `worst` rounds
    after every operator, and FP16 products are rounded after every 16 terms
    (see `accumulate_in_chunks`); bfloat16 products and convolutions add up in
    float32 in both. LayerNormalization, Softmax and reductions compute in
    float32 inside. Q/DQ pairs stay; what a DequantizeLinear answers is rounded.
    """
    half = half_type_of(infer_missing_types(typed))
    model = typed.clone()
    fused = variant == "fused"
    groups = rounding_groups(model.graph, half.data_type, fused=fused)
    products = [] if fused or half is not FP16 else _half_products(model.graph, half)
    _widen(model.graph, half)
    for group in groups:
        _round_trip(model.graph, group.value, half)
    for product in products:
        accumulate_in_chunks(model.graph, product, half.data_type)
    return model


def switchable(
    typed: ir.Model, exact: Mapping[str, ir.TensorProtocol]
) -> tuple[ir.Model, tuple[RoundingGroup, ...]]:
    """The fused emulation with a second input that turns the rounding of each group on or off.

    `exact` holds the float32 weights by name: a group that does not round
    computes with those. The groups (of `typed`) are in the order of the input.
    """
    half = half_type_of(infer_missing_types(typed))
    original = rounding_groups(typed.graph, half.data_type, fused=True)
    model = typed.clone()
    graph = model.graph
    groups = rounding_groups(graph, half.data_type, fused=True)
    weights = _weights_by_group(groups, half)
    _widen(graph, half, exact)
    switches = ir.Value(name=SWITCHES, type=ir.TensorType(ir.DataType.BOOL))
    switches.shape = ir.Shape([len(groups)])
    graph.inputs.append(switches)
    for index, group in enumerate(groups):
        for value in (group.value, *weights[index]):
            _round_trip(graph, value, half, switch=(switches, index))
    return model, original


def rounded_name(name: str) -> str:
    """What the rounded form of a value is called in an emulation."""
    return f"{name}_rounded"


def _half_products(graph: ir.Graph, half: HalfType) -> list[ir.Node]:
    return [
        node
        for node in graph
        if node.op_type in ("MatMul", "Gemm") and node.outputs[0].dtype == half.data_type
    ]


def _weights_by_group(groups: tuple[RoundingGroup, ...], half: HalfType) -> list[list[ir.Value]]:
    """The half-precision weights each group reads; one that several read goes to the first."""
    seen: set[ir.Value] = set()
    found = []
    for group in groups:
        inputs = [value for node in group.nodes for value in node.inputs if value is not None]
        new = [v for v in inputs if v.is_initializer() and v.dtype == half.data_type]
        found.append(list(dict.fromkeys(value for value in new if value not in seen)))
        seen.update(new)
    return found


def _widen(
    graph: ir.Graph, half: HalfType, exact: Mapping[str, ir.TensorProtocol] | None = None
) -> None:
    """Everything of the half type becomes float32, values unchanged (`exact` ones restored)."""
    for name, value in graph.initializers.items():
        if value.dtype == half.data_type and value.const_value is not None:
            tensor = None if exact is None else exact.get(name)
            value.const_value = _widened(value.const_value) if tensor is None else tensor
            value.type = ir.TensorType(ir.DataType.FLOAT)
    for node in graph:
        for name, attribute in list(node.attributes.items()):
            if attribute.type == ir.AttributeType.TENSOR:
                tensor = attribute.as_tensor()
                if tensor.dtype == half.data_type:
                    node.attributes[name] = ir.AttrTensor(name, _widened(tensor))
        if node.op_type == "Cast" and node.attributes["to"].as_int() == half.data_type:
            node.attributes["to"] = ir.AttrInt64("to", ir.DataType.FLOAT)
        for output in node.outputs:
            if output.dtype == half.data_type:
                # A clone shares its types: assigning dtype would change `typed` too.
                output.type = ir.TensorType(ir.DataType.FLOAT)


def _widened(tensor: ir.TensorProtocol) -> ir.Tensor:
    return ir.Tensor(tensor.numpy().astype(np.float32), name=tensor.name)


def _round_trip(
    graph: ir.Graph,
    value: ir.Value,
    half: HalfType,
    switch: tuple[ir.Value, int] | None = None,
) -> None:
    """Let everyone who reads `value` read it rounded."""
    uses = list(value.uses())
    narrow = ir.node("Cast", [value], {"to": half.data_type}, name=f"{value.name}/round")
    wide = ir.node("Cast", narrow.outputs, {"to": ir.DataType.FLOAT}, name=f"{value.name}/widen")
    nodes = [narrow, wide]
    if switch is not None:
        nodes += _selection(graph, value, wide.outputs[0], switch)
    for node in nodes:
        node.outputs[0].name = f"{node.name}/out"
    nodes[-1].outputs[0].name = rounded_name(str(value.name))
    nodes[-1].outputs[0].dtype, nodes[-1].outputs[0].shape = ir.DataType.FLOAT, value.shape
    producer = value.producer()
    if producer is None:
        graph.insert_before(graph[0], nodes)
    else:
        graph.insert_after(producer, nodes)
    for node, index in uses:
        node.replace_input_with(index, nodes[-1].outputs[0])


def _selection(
    graph: ir.Graph, value: ir.Value, rounded: ir.Value, switch: tuple[ir.Value, int]
) -> list[ir.Node]:
    name = f"{value.name}/switch"
    index = ir.Value(name=f"{name}_index", const_value=ir.Tensor(np.array(switch[1])))
    index.dtype, index.shape = ir.DataType.INT64, ir.Shape([])
    graph.register_initializer(index)
    is_on = ir.node("Gather", [switch[0], index], {"axis": 0}, name=f"{name}_on")
    chosen = ir.node("Where", [is_on.outputs[0], rounded, value], name=name)
    return [is_on, chosen]
