"""Look at values inside a graph while it runs."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir


def with_magnitudes(model: ir.Model, values: Sequence[str]) -> ir.Model:
    """A graph that answers its own output and then two numbers for each of `values`.

    The numbers are the largest of |value| and the sum of |value|. ONNX
    Runtime's ReduceMax passes over NaN (measured, 1.32); a sum never does.
    """
    observed = model.clone()
    graph = observed.graph
    by_name = {value.name: value for node in graph for value in node.outputs}
    by_name.update({value.name: value for value in graph.inputs})
    for index, name in enumerate(values):
        value = by_name[name]
        absolute = ir.node("Abs", [value], name=f"observer_{index}/Abs")
        reduced = [
            ir.node(op_type, absolute.outputs, {"keepdims": 0}, name=f"observer_{index}/{op_type}")
            for op_type in ("ReduceMax", "ReduceSum")
        ]
        for node in (absolute, *reduced):
            _name_output(node)
        for node in reduced:
            node.outputs[0].shape = ir.Shape([])
            graph.outputs.append(node.outputs[0])
        producer = value.producer()
        # Where the value is answered, so that a runtime may let it go after its last reader.
        if producer is None:
            graph.insert_before(graph[0], [absolute, *reduced])
        else:
            graph.insert_after(producer, [absolute, *reduced])
    return observed


def _name_output(node: ir.Node) -> None:
    node.outputs[0].name = f"{node.name}_out"
    node.outputs[0].dtype = ir.DataType.FLOAT
