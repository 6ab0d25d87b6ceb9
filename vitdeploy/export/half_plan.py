"""Which nodes of a half-precision graph have to compute in float32, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import onnx_ir as ir

from vitdeploy.export.passes.half import supports
from vitdeploy.export.passes.uint8_input import SCOPE
from vitdeploy.graph.geometry import geometry
from vitdeploy.graph.half import HalfType
from vitdeploy.graph.rounding import MOVEMENT, RoundingGroup, rounding_groups

HEADROOM = 2.0
"""Values of other images may be larger than those seen: half of the type's range is left free."""

_CARRIERS = MOVEMENT | {"DequantizeLinear"}

Reasons = dict[str, str]
"""Node name to the reason why it stays in float32."""


def name_nodes(graph: ir.Graph) -> None:
    """Give nodes without a name, or with one that another has, a name of their own."""
    seen: set[str] = set()
    for index, node in enumerate(graph):
        if not node.name or node.name in seen:
            node.name = f"{node.name or node.op_type}_node{index}"
        seen.add(node.name)


def required(model: ir.Model, half: HalfType) -> Reasons:
    """What the graph itself says: weights beyond the type, operators without it, geometry.

    Geometry is what is computed from sizes and not from pixels, such as
    coordinates and rotary tables: it is cheap, and half precision would move every patch.
    """
    graph = model.graph
    opset = graph.opset_imports.get("", 0)
    reasons: Reasons = {}
    placing = geometry(graph)
    for node in graph:
        floats = any(value.dtype == ir.DataType.FLOAT for value in node.outputs)
        if not supports(node, half, opset):
            reasons[str(node.name)] = f"ONNX has no {half.name} {node.op_type} at opset {opset}"
        elif floats and node in placing and node.op_type not in _CARRIERS:
            reasons[str(node.name)] = "independent of the pixels: computed from sizes"
        elif floats and str(node.name).startswith(f"{SCOPE}/") and node.op_type not in MOVEMENT:
            reasons[str(node.name)] = "normalizes the bytes of the image"
    for value in graph.initializers.values():
        largest = _largest(value)
        if largest > half.largest:
            why = f"{value.name} holds {largest:.4g}, beyond {half.name}'s {half.largest:.5g}"
            for use in value.uses():
                reasons.setdefault(str(use.node.name), why)
    return reasons


def observable(model: ir.Model) -> tuple[str, ...]:
    """The float32 values that would be rounded or carried in half precision.

    Values inside a rounding group, such as attention scores, are not: there
    runtimes hold float32.
    """
    groups = rounding_groups(model.graph, ir.DataType.FLOAT, fused=True)
    rounded = {group.value for group in groups}
    return tuple(
        str(value.name)
        for node in model.graph
        for value in node.outputs
        if value.dtype == ir.DataType.FLOAT and (node.op_type in MOVEMENT or value in rounded)
    )


def overflowing(model: ir.Model, largest: Mapping[str, float], half: HalfType) -> Reasons:
    """Who answers and who reads values that leave less than `HEADROOM` to the type's largest."""
    groups = Groups(model.graph)
    reasons: Reasons = {}
    for value in _values(model.graph, largest):
        found = largest[str(value.name)]
        # Infinity in float32 is meant (a mask, a max-pool's border), and half precision has it.
        if not np.isfinite(found) or found * HEADROOM <= half.largest:
            continue
        why = f"{value.name} reaches {found:.4g}; {half.name} ends at {half.largest:.5g}"
        for name in groups.around(value):
            reasons.setdefault(name, why)
    return reasons


def not_finite(model: ir.Model, broken: Iterable[str], kept: Mapping[str, str]) -> Reasons:
    """The next nodes to keep where a value of the emulation is not finite.

    First the group that answers the first such value and those that read it;
    where they are kept already, those that feed it (an epsilon that became
    zero makes the division behind it infinite). Empty where nothing is left.
    """
    groups = Groups(model.graph)
    names = set(broken)
    value = next((v for v in _values(model.graph, names)), None)
    if value is None:
        return {}
    why = f"{value.name} is not finite in half precision"
    wanted = groups.around(value)
    while not set(wanted) - kept.keys():
        behind = [source for name in wanted for source in groups.feeding(name)]
        grown = sorted({*wanted, *behind})
        if grown == sorted(wanted):
            return {}
        wanted = grown
    return {name: why for name in wanted if name not in kept}


class Groups:
    """Rounding groups of a float32 graph, by node."""

    def __init__(self, graph: ir.Graph) -> None:
        self._by_name = {str(node.name): node for node in graph}
        self._group: dict[ir.Node, RoundingGroup] = {
            node: group
            for group in rounding_groups(graph, ir.DataType.FLOAT, fused=True)
            for node in group.nodes
        }

    def around(self, value: ir.Value) -> list[str]:
        nodes = [value.producer(), *(use.node for use in value.uses())]
        return self._names(node for node in nodes if node is not None)

    def feeding(self, name: str) -> list[str]:
        node = self._by_name[name]
        producers = [value.producer() for value in node.inputs if value is not None]
        return self._names(
            producer
            for producer in producers
            if producer is not None
            and any(value.dtype == ir.DataType.FLOAT for value in producer.outputs)
        )

    def _names(self, nodes: Iterable[ir.Node]) -> list[str]:
        whole: dict[str, None] = {}
        for node in nodes:
            group = self._group.get(node)
            for member in (node,) if group is None else group.nodes:
                whole[str(member.name)] = None
        return list(whole)


def _values(graph: ir.Graph, names: Iterable[str]) -> Iterable[ir.Value]:
    wanted = set(names)
    return (v for node in graph for v in node.outputs if str(v.name) in wanted)


def _largest(value: ir.Value) -> float:
    tensor = value.const_value
    if tensor is None or tensor.dtype != ir.DataType.FLOAT:
        return 0.0
    array = tensor.numpy()
    return float(np.abs(array[np.isfinite(array)]).max(initial=0.0))
