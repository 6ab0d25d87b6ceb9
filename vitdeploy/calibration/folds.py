"""Folding channel outliers away, exactly: what one tensor is divided by, the next weight takes on.

LayerNorm's gamma and beta are divided and the rows of the Linear behind it
multiplied (RepQ-ViT, arXiv 2212.08254; SmoothQuant, arXiv 2211.10438); so are
the value projection's columns, which attention only averages over tokens, and
the rows of the projection behind the attention. Where there is nothing before to
divide, as behind a GELU, one multiplication of the tensor is inserted instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vitdeploy.calibration.channels import ChannelTracer, Read, moved_from
from vitdeploy.calibration.linear import LinearNode
from vitdeploy.graph.edits import store


@dataclass(frozen=True)
class DividedInput:
    """An input of a node that is divided along an axis: a weight, a bias, gamma or beta."""

    node: str
    index: int
    axis: int


@dataclass(frozen=True, eq=False)
class Fold:
    """A place where a tensor's channels can be scaled without changing what the graph computes.

    `activation` is the tensor that gets smaller, of K channels; channel k of it
    is channel `channels[k]` of the inputs that are `divided`. The rows of the
    `readers`' weights take the scales on. Between a value projection and the
    layer behind, `projected` is what the projection answers, of the same
    channels, and `mixed` the moved copy of it that attention multiplies.
    """

    kind: Literal["layer norm", "value", "inserted"]
    source: str
    activation: str
    channels: NDArray[np.int64]
    divided: tuple[DividedInput, ...]
    readers: tuple[LinearNode, ...]
    projected: str = ""
    mixed: str = ""


def find_folds(model: ir.Model, linears: Sequence[LinearNode], image: NDArray) -> list[Fold]:
    """Every place to fold, LayerNorms first. `image` is one input of the graph, (1, ...).

    There is none where the LayerNorm's output, or the values, are read by anything but
    the Linear layers behind (features, another branch, a layer whose weight is
    shared), and where channels are mixed on the way.
    """
    finder = _FoldFinder(model, linears, image)
    found = [finder.behind_norm(node) for node in finder.norms]
    found += [finder.behind_product(node) for node in finder.products]
    return [fold for fold in found if fold is not None]


def find_insertions(
    model: ir.Model, linears: Sequence[LinearNode], folds: Sequence[Fold]
) -> list[Fold]:
    """Every input of Linear layers with weights of their own that no fold makes smaller.

    Dividing there costs an operator: one that runtimes compute together with
    the GELU or the like before it.
    """
    weights = {node.name: node.inputs[1] for node in model.graph if len(node.inputs) > 1}
    values = {value.name: value for node in model.graph for value in node.outputs}
    readers: dict[str, list[LinearNode]] = {}
    for linear in linears:
        readers.setdefault(linear.activation, []).append(linear)
    for fold in folds:
        readers.pop(fold.activation, None)
    found = []
    for name, layers in readers.items():
        own = all((weight := weights[layer.name]) and len(weight.uses()) == 1 for layer in layers)
        if own and not values[name].is_graph_output():
            channels = np.arange(_array(weights[layers[0].name]).shape[1 - layers[0].weight_axis])
            found.append(Fold("inserted", name, name, channels, (), tuple(layers)))
    return found


def apply_fold(model: ir.Model, fold: Fold, scales: NDArray[np.float32]) -> None:
    """Divide by `scales` (K,) before and multiply behind, in place."""
    if fold.kind == "inserted":
        _insert_division(model.graph, fold, scales)
    nodes = {node.name: node for node in model.graph}
    for part in fold.divided:
        node = nodes[part.node]
        array = _array(node.inputs[part.index])
        divisor = np.ones(array.shape[part.axis], dtype=np.float64)
        divisor[fold.channels] = scales
        _replace(model.graph, node, part.index, array / _along(divisor, part.axis, array.ndim))
    for reader in fold.readers:
        node = nodes[reader.name]
        weight = _array(node.inputs[1])
        rows = _along(scales.astype(np.float64), 1 - reader.weight_axis, 2)
        _replace(model.graph, node, 1, weight * rows)


class _FoldFinder:
    def __init__(self, model: ir.Model, linears: Sequence[LinearNode], image: NDArray) -> None:
        self._nodes = {node.name: node for node in model.graph}
        self._linear_of = {self._nodes[linear.name]: linear for linear in linears}
        values = {value.name: value for node in model.graph for value in node.outputs}
        self._linear_with_output = {values[linear.output]: linear for linear in linears}
        self.norms = [node for node in model.graph if node.op_type == "LayerNormalization"]
        behind = [_product_behind(values[linear.activation]) for linear in linears]
        self.products = list(dict.fromkeys(node for node in behind if node is not None))
        sources = [node.outputs[0] for node in self.norms]
        for product in self.products:
            assert product.inputs[1] is not None
            sources += [product.outputs[0], product.inputs[1], moved_from(product.inputs[1])]
        self._tracer = ChannelTracer(model, sources, image)

    def behind_norm(self, node: ir.Node) -> Fold | None:
        size = self._shape(node.outputs[0])[-1]
        if not all(value is None or _is_vector(value, size) for value in node.inputs[1:]):
            return None
        readers = self._linear_readers(self._tracer.reads(node.outputs[0]))
        if readers is None:
            return None
        linears, channels = readers
        divided = tuple(
            DividedInput(str(node.name), index, 0)
            for index, value in enumerate(node.inputs)
            if index > 0 and value is not None
        )
        return Fold("layer norm", str(node.name), linears[0].activation, channels, divided, linears)

    def behind_product(self, product: ir.Node) -> Fold | None:
        """From the value projection through the averaging product to the projection behind."""
        values = product.inputs[1]
        assert values is not None
        source = moved_from(values)
        linear = self._linear_with_output.get(source)
        if linear is None or len(self._shape(values)) < 3 or not self._is_own_weight(linear):
            return None
        if not linear.bias and len(self._nodes[linear.name].inputs) > 2:
            return None  # Gemm adds something else than one number for each channel
        here = [read for read in self._tracer.reads(source) if read.node is product]
        if len(here) != 1 or here[0].index != 1:
            return None
        arrived = here[0].channels
        if (arrived == 0).any() or (arrived != arrived[..., :1, :]).any():
            return None  # a channel of v is not one channel of the projection for all tokens
        if not self._values_go_nowhere_else(source, product, arrived):
            return None
        averaged = np.broadcast_to(arrived[..., :1, :], self._shape(product.outputs[0]))
        readers = self._linear_readers(self._tracer.reads(product.outputs[0], averaged))
        if readers is None:
            return None
        linears, channels = readers
        node = self._nodes[linear.name]
        divided = (
            DividedInput(linear.name, 1, linear.weight_axis),
            *self._divided_bias(node, linear),
        )
        return Fold(
            "value",
            linear.name,
            linears[0].activation,
            channels,
            divided,
            linears,
            projected=linear.output,
            mixed=str(values.name),
        )

    def _shape(self, value: ir.Value) -> tuple[int, ...]:
        return self._tracer.shape(value)

    def _values_go_nowhere_else(
        self, source: ir.Value, product: ir.Node, arrived: NDArray[np.int64]
    ) -> bool:
        return not any(
            read.node is not product and np.isin(read.channels, arrived).any()
            for read in self._tracer.reads(source)
        )

    def _linear_readers(
        self, reads: list[Read]
    ) -> tuple[tuple[LinearNode, ...], NDArray[np.int64]] | None:
        """The Linear layers that are all who read, and the channels, each once, that they see."""
        if not reads or len({read.value for read in reads}) != 1:
            return None
        if any(read.index != 0 or read.node not in self._linear_of for read in reads):
            return None
        linears = tuple(self._linear_of[read.node] for read in reads if read.node is not None)
        channels = reads[0].columns()
        if channels is None or len(np.unique(channels)) != len(channels):
            return None
        if not all(self._is_own_weight(linear) for linear in linears):
            return None
        return linears, channels

    def _is_own_weight(self, linear: LinearNode) -> bool:
        weight = self._nodes[linear.name].inputs[1]
        assert weight is not None
        return len(weight.uses()) == 1

    def _divided_bias(self, node: ir.Node, linear: LinearNode) -> tuple[DividedInput, ...]:
        if not linear.bias:
            return ()
        adder = node if node.op_type == "Gemm" else node.outputs[0].consumers()[0]
        (index,) = [
            i for i, v in enumerate(adder.inputs) if v is not None and v.name == linear.bias
        ]
        return (DividedInput(str(adder.name), index, len(_shape_of(adder.inputs[index])) - 1),)


def _insert_division(graph: ir.Graph, fold: Fold, scales: NDArray[np.float32]) -> None:
    """The readers get the divided tensor, under the name that the tensor had."""
    value = next(v for node in graph for v in node.outputs if v.name == fold.activation)
    readers = {reader.name for reader in fold.readers}
    uses = [use for use in value.uses() if use.node.name in readers and use.idx == 0]
    value.name = f"{fold.activation}_undivided"
    factors = (1 / scales).astype(np.float32)
    constant = store(graph, f"{fold.activation}_factors", factors)
    node = ir.node("Mul", [value, constant], name=f"{fold.activation}/divide")
    divided = node.outputs[0]
    divided.name, divided.dtype, divided.shape = fold.activation, ir.DataType.FLOAT, value.shape
    producer = value.producer()
    assert producer is not None  # linear_nodes takes computed activations only
    graph.insert_after(producer, node)
    for use in uses:
        use.node.replace_input_with(use.idx, divided)


def _product_behind(activation: ir.Value) -> ir.Node | None:
    """The product of two computed values that `activation` is a moved copy of."""
    producer = moved_from(activation).producer()
    if producer is None or producer.op_type != "MatMul":
        return None
    if any(value is None or value.producer() is None for value in producer.inputs):
        return None
    return producer


def _is_vector(value: ir.Value, size: int) -> bool:
    """A constant with one number for each channel."""
    tensor = value.const_value
    constant = value.is_initializer() and not value.is_graph_input()
    return constant and tensor is not None and tuple(tensor.shape) == (size,)


def _array(value: ir.Value | None) -> NDArray:
    assert value is not None
    assert value.const_value is not None
    return value.const_value.numpy()


def _shape_of(value: ir.Value | None) -> tuple[int, ...]:
    return _array(value).shape


def _along(vector: NDArray, axis: int, rank: int) -> NDArray:
    shape = [1] * rank
    shape[axis] = -1
    return vector.reshape(shape)


def _replace(graph: ir.Graph, node: ir.Node, index: int, array: NDArray) -> None:
    """Give a node its own copy of a constant: others may read the same one (shared gammas)."""
    old = node.inputs[index]
    assert old is not None
    if len(old.uses()) == 1:
        old.const_value = ir.Tensor(array.astype(np.float32), name=old.name)
        return
    new = store(graph, f"{old.name}_of_{node.name}", array.astype(np.float32))
    node.replace_input_with(index, new)
