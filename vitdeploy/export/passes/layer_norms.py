"""LayerNorm as one operator."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from vitdeploy.graph.edits import store, take_place, unused_name
from vitdeploy.graph.layer_norms import decomposed_layer_norms


def fuse_layer_norms(model: ir.Model) -> ir.Model:
    """Every LayerNorm that is written out becomes LayerNormalization (opset 17).

    One operator accumulates in float32 whatever the graph's type, keeps
    squares from overflowing, and has a gamma and beta that outliers fold into.
    They are its own: constants that others read too are copied, so that
    folding into them changes nothing else.
    """
    graph = model.graph
    replaced: dict[ir.Value, ir.Value] = {}  # one may normalize what another one answers
    for found in decomposed_layer_norms(graph):
        end = found.output.producer()
        assert end is not None  # a group ends in one of its nodes
        module = str(found.anchor.name).rpartition("/")[0] or found.anchor.name
        name = unused_name(graph, f"{module}/LayerNormalization")
        gamma = np.ones(found.width, np.float32) if found.gamma is None else found.gamma
        inputs = [replaced.get(found.x, found.x), store(graph, f"{name}.gamma", gamma)]
        if found.beta is not None:
            inputs.append(store(graph, f"{name}.beta", found.beta))
        fused = ir.node(
            "LayerNormalization", inputs, {"axis": -1, "epsilon": found.epsilon}, name=name
        )
        fused.outputs[0].name = f"{name}_out"
        graph.insert_before(end, fused)
        take_place(graph, found.output, fused.outputs[0])
        replaced[found.output] = fused.outputs[0]
    return model
