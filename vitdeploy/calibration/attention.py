"""The two products of attention as things to quantize."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from vitdeploy.graph.attentions import attention_at


@dataclass(frozen=True)
class ProductNode:
    """A product of two activations; `factors` are the tensors it multiplies."""

    name: str
    factors: tuple[str, str]


@dataclass(frozen=True)
class AttentionProducts:
    """softmax(queries x keys) x values. 0 stands for a size that the graph leaves open."""

    scores: ProductNode
    mix: ProductNode
    head_size: int
    tokens: int


def attention_products(model: ir.Model) -> Iterator[AttentionProducts]:
    """Every attention of two MatMuls, in graph order; a single operator is left as it is."""
    nodes = {node.name: node for node in model.graph}
    for node in model.graph:
        found = attention_at(node)
        if found is None or found.scores == found.values:
            continue
        scores, mix = nodes[found.scores], nodes[found.values]
        if is_product(scores) and is_product(mix):
            yield AttentionProducts(
                _product(scores), _product(mix), found.head_size or 0, found.tokens or 0
            )


def is_product(node: ir.Node) -> bool:
    """Whether a node multiplies two activations."""
    return node.op_type == "MatMul" and all(
        value is not None and value.producer() is not None for value in node.inputs[:2]
    )


def _product(node: ir.Node) -> ProductNode:
    left, right = node.inputs[:2]
    assert left is not None
    assert right is not None
    return ProductNode(str(node.name), (str(left.name), str(right.name)))
