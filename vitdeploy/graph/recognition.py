"""What is known of a ViT's graph by its structure alone: no names, no description."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from vitdeploy.graph.attentions import SCALING, Attention, attention_at
from vitdeploy.graph.gelus import decomposed_gelus
from vitdeploy.graph.half import infer_missing_types
from vitdeploy.graph.linears import is_linear
from vitdeploy.graph.operands import is_over_last_axis, readers, reduced_axes
from vitdeploy.graph.rounding import MOVEMENT

_UNREMARKABLE = frozenset(
    {"Abs", "Add", "Cast", "Clip", "Div", "Mul", "Neg", "Range", "Shape", "Size", "Sub"}
)


@dataclass(frozen=True)
class Recognised:
    """The parts of a ViT found in a graph, by the names of their nodes.

    `patch_embedding` is the first node that computes with the image.
    `gelus` hold the last node of a GELU that is written out. `pooling` are
    means over tokens or pixels. `others` counts operators that compute and
    belong to no part: what a pass over ViTs leaves as it is.
    """

    patch_embedding: str
    layer_norms: tuple[str, ...]
    gelus: tuple[str, ...]
    linears: tuple[str, ...]
    attentions: tuple[Attention, ...]
    pooling: tuple[str, ...]
    others: dict[str, int]

    @property
    def lines(self) -> tuple[str, ...]:
        """For people, a part a line."""
        counts = [
            f"{len(self.layer_norms)} LayerNorm",
            f"{len(self.gelus)} GELU",
            f"{len(self.linears)} Linear",
            f"{len(self.attentions)} attention",
        ]
        others = ", ".join(f"{count} {name}" for name, count in self.others.items())
        return (
            f"recognised: {', '.join(counts)}",
            *_attention_lines(self.attentions),
            f"patch embedding: {self.patch_embedding or 'not recognised'}",
            *([f"pooling: {', '.join(self.pooling)}"] if self.pooling else []),
            f"not recognised: {others or 'nothing'}",
        )


def recognise(model: ir.Model) -> Recognised:
    """Find the parts of a ViT in a float32 graph.

    Standard forms are found in any graph; LayerNorm only as one operator (see
    `vitdeploy.export.passes.layer_norms`).
    """
    infer_missing_types(model)
    graph = model.graph
    linears = [node for node in graph if is_linear(node)]
    attentions = [found for node in graph if (found := attention_at(node)) is not None]
    gelus = [node for node in graph if node.op_type == "Gelu"]
    groups = decomposed_gelus(graph)
    norms = [node for node in graph if _is_layer_norm(node)]
    patches = first_computation(graph)
    pooling = [node for node in graph if _is_pooling(node)]
    in_attention = {
        name for found in attentions for name in (found.scores, found.softmax, found.values)
    }
    parts = {
        *linears,
        *gelus,
        *norms,
        *pooling,
        *(node for group in groups for node in group.nodes),
    }
    others = Counter(
        node.op_type if not node.domain else f"{node.domain}.{node.op_type}"
        for node in graph
        if node not in parts
        and node is not patches
        and node.name not in in_attention
        and node.op_type not in MOVEMENT | _UNREMARKABLE
    )
    return Recognised(
        patch_embedding="" if patches is None else str(patches.name),
        layer_norms=_names(norms),
        gelus=_names([*gelus, *(group.nodes[0] for group in groups)]),
        linears=_names(node for node in linears if node is not patches),
        attentions=tuple(attentions),
        pooling=_names(pooling),
        others=dict(sorted(others.items())),
    )


def _attention_lines(attentions: tuple[Attention, ...]) -> Iterator[str]:
    """Attention by its sizes: 'attention: 12 blocks with 12 heads of 64, 197 tokens'."""
    kinds = Counter(
        (a.heads, a.head_size, a.tokens, a.masked, len(a.projections)) for a in attentions
    )
    for (heads, head_size, tokens, masked, projections), count in kinds.items():
        shape = f"{_known(heads)} heads of {_known(head_size)}, {_known(tokens)} tokens"
        shape += ", masked or biased" if masked else ""
        from_what = {0: "", 1: ", Q, K and V from one Linear"}.get(
            projections, f", Q, K and V from {projections} Linear"
        )
        blocks = "block" if count == 1 else "blocks"
        yield f"attention: {count} {blocks} with {shape}{from_what}"


def _known(number: int | None) -> str:
    return "an unknown number of" if number is None else str(number)


def first_computation(graph: ir.Graph) -> ir.Node | None:
    """The first convolution or Linear that the image reaches, past what moves or scales it."""
    waiting = [use.node for value in graph.inputs for use in value.uses()]
    seen = set(waiting)
    while waiting:
        node = waiting.pop(0)
        if node.op_type == "Conv" or is_linear(node):
            return node
        if node.op_type in MOVEMENT | SCALING or _is_layer_norm(node):
            ahead = [n for value in node.outputs for n in readers(value) if n not in seen]
            seen.update(ahead)
            waiting += ahead
    return None


def _names(nodes: object) -> tuple[str, ...]:
    return tuple(str(node.name) for node in nodes)  # type: ignore[attr-defined]


def _is_layer_norm(node: ir.Node) -> bool:
    """LayerNormalization over the last axis alone, the only one that folding knows."""
    return node.op_type == "LayerNormalization" and not node.domain and is_over_last_axis(node)


def _is_pooling(node: ir.Node) -> bool:
    """A mean over tokens (not over channels, which stand last), or over rows and columns."""
    if node.op_type == "GlobalAveragePool":
        return True
    if node.op_type != "ReduceMean" or node.inputs[0] is None or node.inputs[0].shape is None:
        return False
    rank = len(node.inputs[0].shape)
    axes = {axis % rank for axis in reduced_axes(node)}
    return bool(axes) and (rank - 1 not in axes or (rank == 4 and axes == {2, 3}))
