"""Where the channels of a value stand after it has been moved about: numbers are sent along."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from vitdeploy.backends.onnxruntime_ import GraphSession
from vitdeploy.graph import files
from vitdeploy.graph.rounding import MOVEMENT


@dataclass(frozen=True)
class Read:
    """An operator that computes with a value that came to it, or the graph's output (None).

    `channels` is what arrived there: of each number, one plus the channel it
    had at the start; 0 where it came from padding.
    """

    node: ir.Node | None
    index: int
    value: ir.Value
    channels: NDArray[np.int64]

    def columns(self) -> NDArray[np.int64] | None:
        """(channels,) for the last axis: the channel of the start that stands at each.

        None where one holds several, or none.
        """
        rows = self.channels.reshape(-1, self.channels.shape[-1])
        largest = rows.max(axis=0)
        if (largest == 0).any() or ((rows != largest) & (rows != 0)).any():
            return None
        return largest - 1


class ChannelTracer:
    """Follows values through operators that only move numbers (Reshape, Transpose, Slice, ...).

    The graph is run once, on one image, for the shapes that `values` and the
    moves have.
    """

    def __init__(self, model: ir.Model, values: list[ir.Value], image: NDArray) -> None:
        self._order = {node: index for index, node in enumerate(model.graph)}
        self._opset = model.graph.opset_imports.get("", 20)
        wanted = dict.fromkeys(values)
        for node in model.graph:
            if node.op_type in MOVEMENT:
                wanted.update(dict.fromkeys(_computed_settings(node)))
        self._known = _observed(model, list(wanted), image)

    def shape(self, value: ir.Value) -> tuple[int, ...]:
        """Of one of `values`, at batch 1."""
        return self._known[value].shape

    def reads(self, source: ir.Value, numbers: NDArray[np.int64] | None = None) -> list[Read]:
        """Everyone who computes with `source`, directly or after it was only moved.

        Without `numbers` every channel (last axis) of it holds its index plus one. An operator
        that mixes it with other numbers (Concat with another tensor, a Pad that is not of
        zeros) computes with it.
        """
        if numbers is None:
            shape = self.shape(source)
            numbers = np.broadcast_to(np.arange(1, shape[-1] + 1), shape)
        arrived = {source: numbers}
        moves = self._moves_of(source)
        done: set[ir.Node] = set()
        while moves:
            _, node = heapq.heappop(moves)
            if node in done or not self._is_carried(node, arrived):
                continue
            done.add(node)
            for value, array in zip(node.outputs, self._moved(node, arrived), strict=True):
                arrived[value] = array
                for entry in self._moves_of(value):
                    heapq.heappush(moves, entry)
        return [read for value in arrived for read in _terminal(value, arrived[value], done)]

    def _moves_of(self, value: ir.Value) -> list[tuple[int, ir.Node]]:
        # A node inside an If or Loop is not followed: it computes with the value, whatever it is.
        readers = {use.node for use in value.uses() if use.node in self._order}
        moves = [node for node in readers if node.op_type in MOVEMENT]
        return sorted((self._order[node], node) for node in moves)

    def _is_carried(self, node: ir.Node, arrived: dict[ir.Value, NDArray[np.int64]]) -> bool:
        if node.op_type == "Pad" and not _pads_with_zeros(node):
            return False
        return all(node.inputs[index] in arrived for index in _data_inputs(node))

    def _moved(
        self, node: ir.Node, arrived: dict[ir.Value, NDArray[np.int64]]
    ) -> list[NDArray[np.int64]]:
        """The operator's own meaning, by ONNX's reference implementation."""
        inputs = {
            str(value.name): arrived[value] if value in arrived else self._setting(value)
            for value in node.inputs
            if value is not None
        }
        proto = ir.to_proto(node)
        if node.op_type == "Pad":
            proto.input[2:3] = [""] * len(proto.input[2:3])  # its type is the data's own
        return ReferenceEvaluator(proto, opsets={"": self._opset}).run(None, inputs)  # type: ignore[return-value]

    def _setting(self, value: ir.Value) -> NDArray:
        if value.const_value is not None:
            return value.const_value.numpy()
        return self._known[value]


def moved_from(value: ir.Value) -> ir.Value:
    """The value that `value` is a moved copy of; itself where its producer computes."""
    while True:
        producer = value.producer()
        if producer is None or producer.op_type not in MOVEMENT or not producer.inputs:
            return value
        indices = _data_inputs(producer)
        data = producer.inputs[indices[0]]
        if data is None or len(indices) != 1:
            return value
        value = data


def _data_inputs(node: ir.Node) -> tuple[int, ...]:
    """The inputs whose numbers an operator carries; the others only say where to."""
    if node.op_type == "Concat":
        return tuple(range(len(node.inputs)))
    return (1, 2) if node.op_type == "Where" else (0,)


def _computed_settings(node: ir.Node) -> list[ir.Value]:
    carried = _data_inputs(node)
    return [
        value
        for index, value in enumerate(node.inputs)
        if value is not None and index not in carried and value.const_value is None
    ]


def _pads_with_zeros(node: ir.Node) -> bool:
    mode = node.attributes.get("mode")
    if mode is not None and mode.as_string() != "constant":
        return False
    value = node.inputs[2] if len(node.inputs) > 2 else None
    return value is None or (value.const_value is not None and not value.const_value.numpy().any())


def _terminal(value: ir.Value, array: NDArray[np.int64], carriers: set[ir.Node]) -> list[Read]:
    found = [
        Read(use.node, use.idx, value, array)
        for use in value.uses()
        if use.node not in carriers or use.idx not in _data_inputs(use.node)
    ]
    return [*found, Read(None, 0, value, array)] if value.is_graph_output() else found


def _observed(model: ir.Model, values: list[ir.Value], image: NDArray) -> dict[ir.Value, NDArray]:
    """What computed `values` hold for one image."""
    computed = [value for value in values if value.producer() is not None]
    if not computed:
        return {}
    observed = model.clone()
    by_name = {value.name: value for node in observed.graph for value in node.outputs}
    observed.graph.outputs[:] = [by_name[value.name] for value in computed]
    answers = GraphSession(files.runnable(observed)).run_all(image)
    return dict(zip(computed, answers, strict=True))
