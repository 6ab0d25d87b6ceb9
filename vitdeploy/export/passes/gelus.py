"""GELU as one operator."""

from __future__ import annotations

import onnx_ir as ir

from vitdeploy.graph.edits import take_place, unused_name
from vitdeploy.graph.gelus import decomposed_gelus

FIRST_OPSET = 20
"""The first with Gelu; below it the operators stay, and count as one rounding group."""


def fuse_gelus(model: ir.Model) -> ir.Model:
    """Every GELU that is written out becomes Gelu, where the graph's opset has that."""
    graph = model.graph
    if graph.opset_imports.get("", 0) < FIRST_OPSET:
        return model
    replaced: dict[ir.Value, ir.Value] = {}  # one may read what another one answers
    for found in decomposed_gelus(graph):
        last = found.nodes[0]
        module = str(last.name).rpartition("/")[0] or last.name
        name = unused_name(graph, f"{module}/Gelu")
        fused = ir.node(
            "Gelu",
            [replaced.get(found.x, found.x)],
            {"approximate": found.approximation},
            name=name,
        )
        fused.outputs[0].name = f"{name}_out"
        graph.insert_before(last, fused)
        take_place(graph, found.output, fused.outputs[0])
        replaced[found.output] = fused.outputs[0]
    return model
