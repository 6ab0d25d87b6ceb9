"""`QuantizationPlan`: which nodes are quantized, which stay in float, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from vitdeploy.calibration.attention import (
    AttentionProducts,
    ProductNode,
    attention_products,
    is_product,
)
from vitdeploy.calibration.grids import INT8, Grid
from vitdeploy.calibration.linear import LinearNode, linear_nodes
from vitdeploy.errors import CalibrationError
from vitdeploy.graph.recognition import first_computation
from vitdeploy.graph.shapes import Shape
from vitdeploy.target import CPU, Target

_PATCHES = "patch embedding: about 1 % of the work, 1 to 2 points of agreement if quantized"
_WHY_FLOAT = {
    "Conv": "convolution: only Linear layers and attention are quantized",
    "Add": "residual stream and bias: quantizing it is what collapses a ViT",
    "LayerNormalization": "needs float32 accumulation; a few channels carry outliers",
    "Softmax": "its small values vanish in INT8",
    "Gelu": "not faster in INT8 on any runtime",
    "Erf": "part of Gelu",
}

_LINEAR = "Linear layer: constant weights, one scale for each output channel"
_QUANTIZED_ATTENTION = "attention product: the target computes it fused"


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What may be quantized: `grid` is INT8 or FP8, `keep` names nodes to leave in float.

    `attention` False leaves the attention products in float on every target.
    """

    grid: Grid = INT8
    keep: tuple[str, ...] = ()
    attention: bool = True


@dataclass(frozen=True)
class QuantizationPlan:
    """Per node: precision and the reason. `quantized` and `kept` hold the reasons by name."""

    linear: tuple[LinearNode, ...]
    kept: dict[str, str]
    products: tuple[ProductNode, ...] = ()

    @property
    def activations(self) -> tuple[str, ...]:
        """The tensors whose ranges are needed, each once."""
        names = [node.activation for node in self.linear]
        names += [name for node in self.products for name in node.factors]
        return tuple(dict.fromkeys(names))

    @property
    def quantized(self) -> dict[str, str]:
        """Why each quantized node is."""
        reasons = dict.fromkeys((node.name for node in self.linear), _LINEAR)
        return reasons | dict.fromkeys((p.name for p in self.products), _QUANTIZED_ATTENTION)

    def units(self) -> list[QuantizationPlan]:
        """Its smallest parts: each layer by itself, and the two products of each attention."""
        pairs = zip(self.products[0::2], self.products[1::2], strict=True)
        return [
            *(QuantizationPlan((node,), {}) for node in self.linear),
            *(QuantizationPlan((), {}, pair) for pair in pairs),
        ]

    def without(self, reasons: Mapping[str, str]) -> QuantizationPlan:
        """The same with some nodes in float, by name, each for a reason."""
        return QuantizationPlan(
            tuple(node for node in self.linear if node.name not in reasons),
            {**self.kept, **reasons},
            tuple(node for node in self.products if node.name not in reasons),
        )


def plan(
    model: ir.Model,
    policy: Policy | None = None,
    targets: Sequence[Target] = (CPU,),
    *,
    runtime: str = "",
    largest: Mapping[str, Shape] | None = None,
) -> QuantizationPlan:
    """Quantize the Linear layers, and attention where all targets compute it fused.

    A pure function of its arguments; `runtime` is the backend's name where one is chosen,
    `largest` the shapes at the largest size that the graph takes, which decides.
    Raises CalibrationError for a graph without Linear layers, one that is
    quantized already, and a name in `keep` that no node has.
    """
    policy = policy or Policy()
    if any(node.op_type in ("QuantizeLinear", "DequantizeLinear") for node in model.graph):
        raise CalibrationError(
            "the graph is quantized already", hint="give the fp32 graph that export wrote"
        )
    linear = list(linear_nodes(model))
    found = list(attention_products(model, largest))
    products = [product for attention in found for product in (attention.scores, attention.mix)]
    unknown = set(policy.keep) - {node.name for node in [*linear, *products]}
    if unknown:
        raise CalibrationError(
            f"no Linear node is called {', '.join(sorted(unknown))}",
            hint="`vitdeploy plan` lists them; names look like blocks.0.attn.qkv/MatMul",
        )
    if not linear:
        raise CalibrationError(
            "the graph holds no Linear layer to quantize",
            hint="give a ViT that `vitdeploy export` wrote",
        )
    float_attention = dict(_float_attention(found, policy, targets, runtime))
    quantized = tuple(node for node in linear if node.name not in policy.keep)
    chosen = tuple(p for p in products if p.name not in float_attention)
    names = {node.name for node in [*quantized, *chosen]}
    first = first_computation(model.graph)
    patches = {str(first.name): _PATCHES} if first is not None and first.op_type == "Conv" else {}
    why = {**float_attention, **patches}
    kept = {
        str(node.name): why.get(str(node.name)) or _reason(node, policy.keep)
        for node in model.graph
        if node.name not in names and _computes(node)
    }
    return QuantizationPlan(quantized, kept, chosen)


def _float_attention(
    found: Sequence[AttentionProducts], policy: Policy, targets: Sequence[Target], runtime: str
) -> Iterator[tuple[str, str]]:
    """The attention products that stay in float, with the reason."""
    for attention in found:
        names = attention.scores.name, attention.mix.name
        if not policy.attention:
            reason = "attention product: left in float on request"
        elif set(names) & set(policy.keep):
            reason = "kept in float on request"
        else:
            reason = _why_not_fused(attention, policy.grid, targets, runtime)
        if reason:
            yield from ((name, reason) for name in names)


def _why_not_fused(
    attention: AttentionProducts, grid: Grid, targets: Sequence[Target], runtime: str
) -> str:
    for target in targets:
        reason = target.why_attention_is_float(
            grid.name, attention.head_size, attention.tokens, runtime
        )
        if reason:
            return f"attention product: {reason}"
    return ""


def _computes(node: ir.Node) -> bool:
    return node.op_type in _WHY_FLOAT or node.op_type in ("MatMul", "Gemm")


def _reason(node: ir.Node, keep: tuple[str, ...]) -> str:
    if node.name in keep:
        return "kept in float on request"
    if is_product(node):
        return "product of two activations that is no attention"
    if node.op_type in ("MatMul", "Gemm"):
        return "not a Linear layer: no constant matrix, or no activation"
    return _WHY_FLOAT[node.op_type]
