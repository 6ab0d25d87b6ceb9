"""`QuantizationPlan`: which nodes become INT8, which stay in float, and why."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from vitdeploy.calibration.linear import LinearNode, linear_nodes
from vitdeploy.errors import CalibrationError

_WHY_FLOAT = {
    "Conv": "patch embedding: about 1 % of the work, 1 to 2 points of agreement if quantized",
    "Add": "residual stream and bias: quantizing it is what collapses a ViT",
    "LayerNormalization": "needs float32 accumulation; a few channels carry outliers",
    "Softmax": "its small values vanish in INT8",
    "Gelu": "not faster in INT8 on any runtime",
    "Erf": "part of Gelu",
}


@dataclass(frozen=True)
class QuantizationPlan:
    """Per node: precision and the reason."""

    linear: tuple[LinearNode, ...]
    kept: dict[str, str]

    @property
    def activations(self) -> tuple[str, ...]:
        """The tensors whose ranges are needed, each once, in graph order."""
        return tuple(dict.fromkeys(node.activation for node in self.linear))


def plan(model: ir.Model, *, keep: tuple[str, ...] = ()) -> QuantizationPlan:
    """Quantize the Linear layers and nothing else; `keep` names nodes to leave in float.

    Raises CalibrationError for a graph without Linear layers, one that is
    quantized already, and a name in `keep` that no node has.
    """
    if any(node.op_type in ("QuantizeLinear", "DequantizeLinear") for node in model.graph):
        raise CalibrationError(
            "the graph is quantized already", hint="give the fp32 graph that export wrote"
        )
    linear = list(linear_nodes(model))
    unknown = set(keep) - {node.name for node in linear}
    if unknown:
        raise CalibrationError(
            f"no Linear node is called {', '.join(sorted(unknown))}",
            hint="names look like blocks.0.attn.qkv/MatMul",
        )
    if not linear:
        raise CalibrationError(
            "the graph holds no Linear layer to quantize",
            hint="give a ViT that `vitdeploy export` wrote",
        )
    quantized = tuple(node for node in linear if node.name not in keep)
    names = {node.name for node in quantized}
    kept = {
        str(node.name): _reason(node, keep)
        for node in model.graph
        if node.name not in names and _computes(node)
    }
    return QuantizationPlan(quantized, kept)


def _computes(node: ir.Node) -> bool:
    return node.op_type in _WHY_FLOAT or node.op_type in ("MatMul", "Gemm")


def _reason(node: ir.Node, keep: tuple[str, ...]) -> str:
    if node.name in keep:
        return "kept in float on request"
    if node.op_type in ("MatMul", "Gemm"):
        if all(value is None or value.producer() is not None for value in node.inputs[:2]):
            return "attention product: both factors are activations"
        return "not a Linear layer: no constant matrix, or no activation"
    return _WHY_FLOAT[node.op_type]
