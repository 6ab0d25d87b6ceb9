"""The two products of attention as things to quantize."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from vitdeploy.artifacts.onnx_model import OnnxModel, load_proto
from vitdeploy.graph.attentions import attention_at
from vitdeploy.graph.shapes import Shape, concrete_shapes
from vitdeploy.graph.skeleton import skeleton_of


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


def attention_products(
    model: ir.Model, largest: Mapping[str, Shape] | None = None
) -> Iterator[AttentionProducts]:
    """Every attention of two MatMuls, in graph order; a single operator is left as it is.

    `largest` holds shapes by value (see `largest_shapes`); without them the graph's own are taken.
    """
    largest = largest or {}
    nodes = {node.name: node for node in model.graph}
    for node in model.graph:
        found = attention_at(node)
        if found is None or found.scores == found.values:
            continue
        scores, mix = nodes[found.scores], nodes[found.values]
        if is_product(scores) and is_product(mix):
            left, right = _product(scores), _product(mix)
            shape, queries = largest.get(_answer(scores), ()), largest.get(left.factors[0], ())
            tokens = shape[-1] if shape else found.tokens or 0
            head_size = queries[-1] if queries else found.head_size or 0
            yield AttentionProducts(left, right, head_size, tokens)


def largest_shapes(model: OnnxModel) -> Mapping[str, Shape]:
    """What is known of the values' shapes at the largest size that a graph takes, one image.

    A graph for 224 to 512 pixels at patch 16 has 197 to 1,025 tokens: the shapes
    hold 1,025. Empty where the graph contradicts itself.
    """
    description = model.description
    sizes = description.resolution_range
    height, width = description.resolution if sizes is None else sizes.high
    shape = 1, description.source.in_chans, height, width
    if description.input_format == "uint8-nhwc":
        shape = 1, height, width, description.source.in_chans
    skeleton = skeleton_of(load_proto(model.path), model.path.parent)
    return concrete_shapes(skeleton, {description.input_name: shape}).shapes


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


def _answer(node: ir.Node) -> str:
    return str(node.outputs[0].name)
