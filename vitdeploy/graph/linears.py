"""Linear layers."""

from __future__ import annotations

import onnx_ir as ir

from vitdeploy.graph.operands import is_constant


def is_linear(node: ir.Node) -> bool:
    """A product of an activation with a constant matrix of (in, out), or for Gemm (out, in)."""
    if node.op_type not in ("MatMul", "Gemm") or len(node.inputs) < 2:
        return False
    activation, weight = node.inputs[:2]
    tensor = None if weight is None else ir.convenience.get_const_tensor(weight)
    return (
        activation is not None
        and not is_constant(activation)
        and tensor is not None
        and len(tensor.shape) == 2
        and not ("transA" in node.attributes and node.attributes["transA"].as_int())
    )
