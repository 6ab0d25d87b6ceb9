"""Scale queries before they meet keys."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from vitdeploy.graph.edits import store


def scale_queries_first(model: ir.Model) -> ir.Model:
    """(Q K^T) * s becomes (Q * s) K^T wherever a product of two activations is scaled.

    Some libraries scale the scores. Large queries and keys then overflow FP16
    before the scale makes them small, and runtimes look for the scale on the
    query's side to fuse attention. Only products that nothing else reads are
    changed, and only by one finite number.
    """
    graph = model.graph
    for node in list(graph):
        scale = _scalar_factor(node)
        product = None if scale is None else node.inputs[1 - scale[0]]
        if scale is None or product is None or product.is_graph_output():
            continue
        matmul = product.producer()
        if matmul is None or len(product.uses()) > 1 or not _multiplies_activations(matmul):
            continue
        query = matmul.inputs[0]
        assert query is not None
        factor = store(graph, f"{node.name}.scale", np.array(scale[1], dtype=np.float32))
        scaled = ir.node("Mul", [query, factor], name=node.name)
        value = scaled.outputs[0]
        value.name, value.type, value.shape = f"{query.name}_scaled", query.type, query.shape
        graph.insert_before(matmul, scaled)
        matmul.replace_input_with(0, value)
        ir.convenience.replace_all_uses_with(node.outputs[0], product)
        graph.remove(node, safe=True)
    return model


def _scalar_factor(node: ir.Node) -> tuple[int, float] | None:
    """Which input of a Mul or Div is one finite number, and the factor it stands for."""
    if node.op_type not in ("Mul", "Div") or node.outputs[0].is_graph_output():
        return None
    for index in (0, 1) if node.op_type == "Mul" else (1,):
        value = node.inputs[index]
        tensor = None if value is None else ir.convenience.get_const_tensor(value)
        if tensor is None or tensor.size != 1 or tensor.dtype != ir.DataType.FLOAT:
            continue
        number = float(tensor.numpy().reshape(()))
        factor = 1 / number if node.op_type == "Div" and number else number
        return (index, factor) if np.isfinite(factor) and factor else None
    return None


def _multiplies_activations(node: ir.Node) -> bool:
    return node.op_type == "MatMul" and all(
        value is not None and ir.convenience.get_const_tensor(value) is None
        for value in node.inputs
    )
