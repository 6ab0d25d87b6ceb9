"""The channel tracer against PyTorch's own Reshape, Transpose, Slice, ... on the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from tiny_families import tiny
from torch.nn import functional
from written_graphs import CHANNELS, PIXELS, TOKENS, written

from vitdeploy.calibration.channels import ChannelTracer, Read, moved_from

SHAPE = (1, 2, 3, 4)
NUMBERS = np.broadcast_to(np.arange(1, SHAPE[-1] + 1), SHAPE)


@dataclass
class Chain:
    """Operators of a graph, and the same done by PyTorch to the channels' numbers."""

    draw: Callable[[st.SearchStrategy[Any]], Any]
    numbers: torch.Tensor
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    name: str = "source"

    def add(self, kind: str, answer: torch.Tensor, *settings: Any, **attributes: Any) -> None:
        """One operator whose first input is what there is so far."""
        self.add_to([self.name], kind, answer, *settings, **attributes)

    def add_to(
        self, data: list[str], kind: str, answer: torch.Tensor, *settings: Any, **attributes: Any
    ) -> None:
        names = [*data]
        for setting in settings:
            names.append("" if setting is None else f"setting_{len(self.constants)}")
            if setting is not None:
                array = np.asarray(setting, np.int64)
                self.constants.append(numpy_helper.from_array(array, names[-1]))
        outputs = attributes.pop("outputs", [f"value_{len(self.nodes)}"])
        index = attributes.pop("taken", 0)
        node = helper.make_node(kind, names, outputs, f"{kind}_{len(self.nodes)}", **attributes)
        self.nodes.append(node)
        self.name, self.numbers = outputs[index], answer

    def axis(self) -> int:
        return self.draw(st.integers(0, self.numbers.ndim - 1))

    def size(self, axis: int) -> int:
        return self.numbers.shape[axis]

    def model(self) -> ir.Model:
        """From `pixels` through `source` (computed) to `end` (computed)."""
        nodes = [
            helper.make_node("Tanh", ["pixels"], ["source"], "first"),
            *self.nodes,
            helper.make_node("Neg", [self.name], ["end"], "last"),
        ]
        floats = onnx.TensorProto.FLOAT
        graph = helper.make_graph(
            nodes,
            "chain",
            [helper.make_tensor_value_info("pixels", floats, SHAPE)],
            [helper.make_tensor_value_info("end", floats, [None] * self.numbers.ndim)],
            self.constants,
        )
        opsets = [helper.make_opsetid("", 20)]
        return ir.from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=9))


def reshape(chain: Chain) -> None:
    total = chain.numbers.numel()
    first = chain.draw(st.sampled_from([n for n in range(1, total + 1) if total % n == 0]))
    rest = total // first
    second = chain.draw(st.sampled_from([n for n in range(1, rest + 1) if rest % n == 0]))
    shape = [first, second, rest // second]
    chain.add("Reshape", chain.numbers.reshape(shape), shape)


def transpose(chain: Chain) -> None:
    order = chain.draw(st.permutations(range(chain.numbers.ndim)))
    chain.add("Transpose", chain.numbers.permute(order), perm=order)


def slice_(chain: Chain) -> None:
    axis = chain.axis()
    start = chain.draw(st.integers(0, chain.size(axis) - 1))
    end = chain.draw(st.integers(start + 1, chain.size(axis)))
    step = chain.draw(st.integers(1, 3))
    where = [slice(None)] * axis + [slice(start, end, step)]
    chain.add("Slice", chain.numbers[tuple(where)], [start], [end], [axis], [step])


def gather(chain: Chain) -> None:
    axis = chain.axis()
    one = st.integers(0, chain.size(axis) - 1)
    indices = chain.draw(st.lists(one, min_size=1, max_size=5))
    chain.add("Gather", chain.numbers.index_select(axis, torch.tensor(indices)), indices, axis=axis)


def gather_one(chain: Chain) -> None:
    """A single index takes the axis away."""
    if chain.numbers.ndim < 2:
        return
    axis = chain.axis()
    index = chain.draw(st.integers(0, chain.size(axis) - 1))
    chain.add("Gather", chain.numbers.select(axis, index), index, axis=axis)


def split(chain: Chain) -> None:
    axis = chain.axis()
    first = chain.draw(st.integers(0, chain.size(axis)))
    sizes = [first, chain.size(axis) - first]
    taken = chain.draw(st.sampled_from([i for i, size in enumerate(sizes) if size]))
    parts = torch.split(chain.numbers, sizes, axis)
    names = [f"part_{len(chain.nodes)}_{i}" for i in range(2)]
    chain.add("Split", parts[taken], sizes, axis=axis, outputs=names, taken=taken)


def concat(chain: Chain) -> None:
    """Two moved copies of one value side by side: what stood before, turned about, and itself."""
    axis, old = chain.axis(), chain.name
    before = chain.numbers
    turned = before.flip(axis)
    backwards = list(range(chain.size(axis)))[::-1]
    chain.add("Gather", turned, backwards, axis=axis)
    data = [chain.name, old]
    chain.add_to(data, "Concat", torch.cat([turned, before], axis), axis=axis)


def pad(chain: Chain) -> None:
    pads = chain.draw(st.lists(st.integers(0, 2), min_size=2 * chain.numbers.ndim,
                               max_size=2 * chain.numbers.ndim))  # fmt: skip
    rank = chain.numbers.ndim
    by_axis = [pads[axis + end * rank] for axis in reversed(range(rank)) for end in (0, 1)]
    chain.add("Pad", functional.pad(chain.numbers, by_axis), pads)


def unsqueeze(chain: Chain) -> None:
    axis = chain.draw(st.integers(0, chain.numbers.ndim))
    chain.add("Unsqueeze", chain.numbers.unsqueeze(axis), [axis])


def expand(chain: Chain) -> None:
    shape = [2, *chain.numbers.shape]
    chain.add("Expand", chain.numbers.expand(shape), shape)


MOVES = (reshape, transpose, slice_, gather, gather_one, split, concat, pad, unsqueeze, expand)


@st.composite
def chains(draw: Any) -> Chain:
    chain = Chain(draw, torch.from_numpy(NUMBERS.copy()))
    for _ in range(draw(st.integers(1, 6))):
        move = draw(st.sampled_from(MOVES))
        if chain.numbers.numel() <= 400:
            move(chain)
    return chain


def reads_of(model: ir.Model, image: NDArray[np.float32], value: str = "source") -> list[Read]:
    source = next(v for node in model.graph for v in node.outputs if v.name == value)
    return ChannelTracer(model, [source], image).reads(source)


@settings(max_examples=250, deadline=None)
@given(chains())
def test_random_chains_arrive_as_pytorch_moves_them(chain: Chain) -> None:
    (read,) = [
        read
        for read in reads_of(chain.model(), np.zeros(SHAPE, np.float32))
        if read.node is not None and read.node.name == "last"
    ]
    expected = chain.numbers.numpy()
    np.testing.assert_array_equal(read.channels, expected)
    columns = brute_columns(expected)
    found = read.columns()
    if columns is None:
        assert found is None
    else:
        np.testing.assert_array_equal(found, columns)


def brute_columns(numbers: NDArray[np.int64]) -> list[int] | None:
    """Column by column: the one channel it holds beside padding."""
    found = []
    for column in range(numbers.shape[-1]):
        held = {int(n) for n in numbers[..., column].reshape(-1)} - {0}
        if len(held) != 1:
            return None
        found.append(held.pop() - 1)
    return found


def test_a_tracer_that_forgets_the_order_is_seen() -> None:
    """Mutation: channels of a transposed value as if it had not been turned."""
    chain = Chain(lambda _: None, torch.from_numpy(NUMBERS.copy()))
    chain.add("Transpose", chain.numbers.permute(0, 3, 2, 1), perm=[0, 3, 2, 1])
    (read,) = reads_of(chain.model(), np.zeros(SHAPE, np.float32))
    assert read.columns() is None
    assert Read(None, 0, read.value, NUMBERS).columns() is not None


FOLLOWED = {
    "a shape that is computed": (
        "shape = Shape (start)\n[moved] moved = Reshape (start, shape)\n[end] logits = Neg (moved)",
        "end",
    ),
    "an identity": ("moved = Identity (start)\n[end] logits = Neg (moved)", "end"),
    "a tile": (
        "twice = Constant <value_ints = [1, 1, 2, 1]> ()\n moved = Tile (start, twice)\n"
        "[end] logits = Neg (moved)",
        "end",
    ),
    "a choice between two copies": (
        "other = Identity (start)\n moved = Where (yes, start, other)\n[end] logits = Neg (moved)",
        "end",
    ),
}
MIXED = {
    "another tensor beside it": (
        "other = Neg (start)\n[end] logits = Concat <axis = 2> (start, other)",
        0,
    ),
    "a pad of ones": (
        "pads = Constant <value_ints = [0, 0, 1, 0, 0, 0, 0, 0]> ()\n"
        "[end] logits = Pad (start, pads, one)",
        0,
    ),
    "a pad by reflection": (
        "pads = Constant <value_ints = [0, 0, 1, 0, 0, 0, 0, 0]> ()\n"
        '[end] logits = Pad <mode = "reflect"> (start, pads)',
        0,
    ),
    "a choice between it and another": (
        "other = Neg (start)\n[end] logits = Where (yes, other, start)",
        2,
    ),
    "a sum": ("[end] logits = Add (start, start)", 0),
}
OTHERS: dict[str, NDArray] = {"one": np.array(1.0), "yes": np.ones((1, 1, TOKENS, 1), np.bool_)}


def written_with(body: str) -> ir.Model:
    return written(body, **{name: array for name, array in OTHERS.items() if name in body})


class TestReads:
    @pytest.mark.parametrize("name", FOLLOWED)
    def test_followed(self, name: str) -> None:
        body, end = FOLLOWED[name]
        (read,) = [
            read for read in reads_of(written_with(body), PIXELS[:1], "start")
            if read.node is None or read.node.op_type != "Shape"
        ]  # fmt: skip
        assert read.node is not None
        assert read.node.name == end
        np.testing.assert_array_equal(read.columns(), np.arange(CHANNELS))

    @pytest.mark.parametrize("name", MIXED)
    def test_whoever_mixes_it_with_other_numbers_reads_it(self, name: str) -> None:
        body, index = MIXED[name]
        found = reads_of(written_with(body), PIXELS[:1], "start")
        (read, *_) = [r for r in found if r.node is not None and r.node.name == "end"]
        assert read.index == index
        assert read.value.name == "start"

    def test_both_factors_are_read(self) -> None:
        found = reads_of(written("[end] logits = Add (start, start)"), PIXELS[:1], "start")
        assert sorted(read.index for read in found) == [0, 1]

    def test_a_shape_is_a_reader_too(self) -> None:
        """It reads no numbers, but who asks for all readers is told of it."""
        body = FOLLOWED["a shape that is computed"][0]
        found = reads_of(written_with(body), PIXELS[:1], "start")
        assert {r.node.op_type for r in found if r.node is not None} == {"Shape", "Neg"}

    def test_an_output_of_the_graph_is_a_read_by_nobody(self) -> None:
        outputs = "float[n, 1, t, c] logits, float[n, 1, t, c] moved"
        model = written("moved = Identity (start)\n logits = Neg (moved)", outputs)
        found = reads_of(model, PIXELS[:1], "start")
        assert {read.node.name if read.node else None for read in found} == {"Neg_2", None}

    def test_numbers_used_as_places_are_read(self) -> None:
        """What says where to take numbers from is itself no number that is moved."""
        body = "few = Cast <to = 7> (start)\n[end] logits = Gather <axis = 2> (start, few)"
        model = written(body, "float[n, 1, a, b, c, d, e] logits")
        found = reads_of(model, PIXELS[:1], "few")
        assert [(r.node.name, r.index) for r in found if r.node is not None] == [("end", 1)]


class TestMovedFrom:
    def test_back_through_moves_of_one_value(self) -> None:
        model = written(
            "a = Identity (start)\n b = Transpose <perm = [0, 1, 3, 2]> (a)\n logits = Neg (b)"
        )
        values = {v.name: v for node in model.graph for v in node.outputs}
        assert moved_from(values["b"]).name == "start"
        assert moved_from(values["start"]).name == "start"
        assert moved_from(values["logits"]).name == "logits"

    def test_not_through_what_brings_two_together(self) -> None:
        model = written("both = Concat <axis = 2> (start, start)\n logits = Neg (both)")
        values = {v.name: v for node in model.graph for v in node.outputs}
        assert moved_from(values["both"]).name == "both"


def heads_of(name: str, projection: str, channels: slice) -> NDArray[np.int64]:
    """Where the values' channels stand in the product behind the attention."""
    graph = tiny(name).graph
    node = next(n for n in graph.graph if n.name == projection)
    source = node.outputs[0].consumers()[0].outputs[0]
    found = ChannelTracer(graph, [source], tiny(name).one).reads(source)
    wanted = set(range(channels.start + 1, channels.stop + 1))
    (read,) = [
        read for read in found
        if read.index == 1 and read.node is not None and read.node.op_type == "MatMul"
        and set(np.unique(read.channels)) == wanted
    ]  # fmt: skip
    return read.channels


@pytest.mark.parametrize(
    ("name", "projection", "heads", "size", "channels"),
    [
        ("vit", "blocks.0.attn.qkv/MatMul", 3, 16, slice(96, 144)),
        ("swin-padded", "layers.0.blocks.1.attn.qkv/MatMul", 2, 8, slice(32, 48)),
        ("transformers-vit", "vit.layers.0.attention.v_proj/MatMul", 4, 8, slice(0, 32)),
    ],
)
def test_values_reach_their_heads(
    name: str, projection: str, heads: int, size: int, channels: slice
) -> None:
    """As the libraries lay them out: head after head, each with its own channels."""
    found = heads_of(name, projection, channels)
    numbers = np.arange(channels.start + 1, channels.stop + 1).reshape(heads, 1, size)
    np.testing.assert_array_equal(found, np.broadcast_to(numbers, found.shape))
