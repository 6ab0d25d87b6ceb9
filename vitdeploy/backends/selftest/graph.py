"""A tiny ViT as an ONNX graph, made without PyTorch: 32 x 32 pixels, 16 tokens, two blocks.

Everything a large one asks of a runtime is there: a convolution into patches,
positions, LayerNormalization, attention of two heads, GELU, a head; any batch.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from vitdeploy.artifacts.files import file_digest
from vitdeploy.artifacts.onnx_model import ModelDescription, OnnxModel
from vitdeploy.artifacts.source import SourceDescription
from vitdeploy.preprocessing import Preprocessing

SIDE = 32
CLASSES = 10
_OPSET = 17
"""What every supported version takes, JetPack 6's TensorRT 10.3 among them."""

_PATCH, _WIDTH, _HEADS, _HIDDEN, _DEPTH = 8, 64, 2, 128, 2
_TOKENS = (SIDE // _PATCH) ** 2
_SEED = 20


def tiny_vit(precision: Literal["fp32", "fp16"], path: Path) -> OnnxModel:
    """Write the graph to `path`. In FP16 it takes and gives float32 all the same."""
    writer = _Writer(np.dtype(np.float16 if precision == "fp16" else np.float32))
    kind = TensorProto.FLOAT16 if precision == "fp16" else TensorProto.FLOAT
    patches = writer.node("Cast", ["pixels"], to=kind)
    patches = writer.node(
        "Conv",
        [patches, writer.weight("patch.weight", (_WIDTH, 3, _PATCH, _PATCH))],
        strides=[_PATCH, _PATCH],
    )
    patches = writer.reshaped(patches, (0, _WIDTH, _TOKENS))
    tokens = writer.node("Transpose", [patches], perm=[0, 2, 1])
    positions = writer.constant("positions", writer.drawn((1, _TOKENS, _WIDTH), 0.5))
    tokens = writer.node("Add", [tokens, positions])
    for index in range(_DEPTH):
        name = f"blocks.{index}"
        tokens = writer.node("Add", [tokens, _attention(writer, tokens, f"{name}.attn")])
        tokens = writer.node("Add", [tokens, _mlp(writer, tokens, f"{name}.mlp")])
    pooled = writer.node("ReduceMean", [tokens], axes=[1], keepdims=0)
    logits = writer.linear(writer.normalized(pooled, "norm"), "head", _WIDTH, CLASSES)
    writer.nodes.append(
        helper.make_node("Cast", [logits], ["logits"], name="cast_out", to=TensorProto.FLOAT)
    )
    onnx.save(writer.model(), str(path))
    return OnnxModel(path, file_digest(path), _described(precision))


def images(count: int) -> NDArray[np.float32]:
    """(count, 3, 32, 32), the same ones each time: each of its own colour, with noise, so that
    their logits differ."""
    generator = np.random.default_rng(_SEED + 1)
    colours = generator.normal(size=(count, 3, 1, 1))
    noise = generator.normal(size=(count, 3, SIDE, SIDE))
    return (colours + noise / 2).astype(np.float32)


class _Writer:
    """Nodes and weights as they are written; weights keep the size of what they multiply."""

    def __init__(self, dtype: np.dtype) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self._weights: dict[str, NDArray[Any]] = {}
        self._dtype = dtype
        self._generator = np.random.default_rng(_SEED)

    def drawn(self, shape: tuple[int, ...], scale: float = 1.0) -> NDArray[Any]:
        return (self._generator.normal(size=shape) * scale).astype(self._dtype)

    def constant(self, name: str, value: NDArray[Any]) -> str:
        self._weights[name] = value
        return name

    def weight(self, name: str, shape: tuple[int, ...]) -> str:
        summed = shape[0] if len(shape) == 2 else math.prod(shape[1:])
        return self.constant(name, self.drawn(shape, 1 / math.sqrt(summed)))

    def node(self, kind: str, inputs: list[str], **attributes: Any) -> str:
        name = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name

    def nodes_of(self, kind: str, inputs: list[str], outputs: int, **attributes: Any) -> list[str]:
        name = f"{kind.lower()}_{len(self.nodes)}"
        names = [f"{name}.{index}" for index in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, name=name, **attributes))
        return names

    def reshaped(self, value: str, shape: tuple[int, ...]) -> str:
        name = self.constant(f"shape_{len(self.nodes)}", np.array(shape, np.int64))
        return self.node("Reshape", [value, name])

    def linear(self, value: str, name: str, width: int, out: int) -> str:
        product = self.node("MatMul", [value, self.weight(f"{name}.weight", (width, out))])
        return self.node("Add", [product, self.constant(f"{name}.bias", self.drawn((out,), 0.1))])

    def normalized(self, value: str, name: str) -> str:
        scale = self.constant(f"{name}.weight", np.ones(_WIDTH, self._dtype))
        shift = self.constant(f"{name}.bias", np.zeros(_WIDTH, self._dtype))
        return self.node("LayerNormalization", [value, scale, shift], axis=-1)

    def model(self) -> onnx.ModelProto:
        pixels = helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["n", 3, SIDE, SIDE])
        logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", CLASSES])
        weights = [numpy_helper.from_array(value, name) for name, value in self._weights.items()]
        graph = helper.make_graph(self.nodes, "selftest", [pixels], [logits], weights)
        opsets = [helper.make_opsetid("", _OPSET)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def _attention(writer: _Writer, tokens: str, name: str) -> str:
    size = _WIDTH // _HEADS
    normed = writer.normalized(tokens, f"{name}.norm")
    joined = writer.linear(normed, f"{name}.qkv", _WIDTH, 3 * _WIDTH)
    heads = writer.reshaped(joined, (0, _TOKENS, 3 * _HEADS, size))
    heads = writer.node("Transpose", [heads], perm=[0, 2, 1, 3])
    thirds = writer.constant(f"{name}.thirds", np.full(3, _HEADS, np.int64))
    query, key, value = writer.nodes_of("Split", [heads, thirds], 3, axis=1)
    scale = writer.constant(f"{name}.scale", np.array(size**-0.5, writer.drawn(()).dtype))
    query = writer.node("Mul", [query, scale])
    key = writer.node("Transpose", [key], perm=[0, 1, 3, 2])
    scores = writer.node("Softmax", [writer.node("MatMul", [query, key])], axis=-1)
    mixed = writer.node("Transpose", [writer.node("MatMul", [scores, value])], perm=[0, 2, 1, 3])
    return writer.linear(
        writer.reshaped(mixed, (0, _TOKENS, _WIDTH)), f"{name}.proj", _WIDTH, _WIDTH
    )


def _mlp(writer: _Writer, tokens: str, name: str) -> str:
    hidden = writer.linear(writer.normalized(tokens, f"{name}.norm"), name, _WIDTH, _HIDDEN)
    dtype = writer.drawn(()).dtype

    def number(what: str, value: float) -> str:
        return writer.constant(f"{name}.{what}", np.array(value, dtype))

    # GELU as it is written below opset 20.
    share = writer.node("Erf", [writer.node("Div", [hidden, number("root", math.sqrt(2))])])
    share = writer.node("Add", [share, number("one", 1.0)])
    active = writer.node("Mul", [writer.node("Mul", [hidden, share]), number("half", 0.5)])
    return writer.linear(active, f"{name}.out", _HIDDEN, _WIDTH)


def _described(precision: Literal["fp32", "fp16"]) -> ModelDescription:
    source = SourceDescription(
        name="selftest",
        library="vitdeploy",
        architecture="selftest",
        model_kwargs={},
        native_resolution=(SIDE, SIDE),
        in_chans=3,
        labels=tuple(f"class {index}" for index in range(CLASSES)),
        weights_digest="",
        preprocessing=Preprocessing(),
    )
    return ModelDescription(
        source=source,
        resolution=(SIDE, SIDE),
        precision=precision,
        opset=_OPSET,
        input_name="pixels",
        output_name="logits",
    )
