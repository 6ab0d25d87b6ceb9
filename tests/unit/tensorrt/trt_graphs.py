"""Small graphs as TensorRT sees them: dynamic batch, 3x4x4 images, ten classes."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from vitdeploy.artifacts.files import file_digest
from vitdeploy.artifacts.onnx_model import ModelDescription, OnnxModel, Precision
from vitdeploy.artifacts.source import SourceDescription
from vitdeploy.preprocessing import Preprocessing

SHAPE = (3, 4, 4)

_HAS_WHEEL = platform.system() in ("Linux", "Windows") and platform.machine() in (
    "x86_64",
    "AMD64",
    "aarch64",
)
needs_rtx = pytest.mark.skipif(not _HAS_WHEEL, reason="tensorrt-rtx: no wheel for this platform")
"""For tests that build with TensorRT-RTX; where there is a wheel they fail without it."""


def describe(precision: Precision, opset: int = 20) -> ModelDescription:
    source = SourceDescription(
        name="tiny",
        library="test",
        architecture="tiny",
        model_kwargs={},
        native_resolution=(4, 4),
        in_chans=3,
        labels=tuple("abcdefghij"),
        weights_digest="0" * 64,
        preprocessing=Preprocessing(),
    )
    return ModelDescription(
        source=source,
        resolution=(4, 4),
        precision=precision,
        opset=opset,
        input_name="pixels",
        output_name="logits",
    )


def save(proto: onnx.ModelProto, path: Path, precision: Precision) -> OnnxModel:
    onnx.save(proto, str(path))
    return OnnxModel(path, file_digest(path), describe(precision))


def transformer_head(
    precision: Precision, *, opset: int = 20, zero_point: NDArray[Any] | None = None
) -> onnx.ModelProto:
    """Flatten, MatMul, LayerNormalization, MatMul (quantized in the int8 precisions), Gelu.

    `zero_point` is that of the activation; its type is the quantized type.
    """
    dtype = np.float16 if precision.endswith("fp16") else np.float32
    generator = np.random.default_rng(0)
    weights: dict[str, NDArray[Any]] = {
        "embed.weight": (generator.normal(size=(48, 32)) / 7).astype(dtype),
        "norm.weight": np.ones(32, dtype),
        "norm.bias": np.zeros(32, dtype),
        "flat_shape": np.array([0, 48], np.int64),
    }
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    node = helper.make_node
    nodes = [
        node("Cast", ["pixels"], ["typed"], name="cast_in", to=kind),
        node("Reshape", ["typed", "flat_shape"], ["flat"], name="flatten"),
        node("MatMul", ["flat", "embed.weight"], ["embedded"], name="embed"),
        node(
            "LayerNormalization", ["embedded", "norm.weight", "norm.bias"], ["normed"], name="norm"
        ),
    ]
    left, right = "normed", "head.weight"
    if precision.startswith("int8"):
        quantized, extra = _quantized(dtype, generator, zero_point)
        nodes += quantized
        weights.update(extra)
        left, right = "normed_dq", "head_dq"
    else:
        weights["head.weight"] = (generator.normal(size=(32, 10)) / 6).astype(dtype)
    last = node("MatMul", [left, right], ["classified"], name="head")
    if opset >= 20:
        nodes += [last, node("Gelu", ["classified"], ["activated"], name="gelu")]
    else:
        nodes += [last, node("Relu", ["classified"], ["activated"], name="relu")]
    nodes.append(node("Cast", ["activated"], ["logits"], name="cast_out", to=TensorProto.FLOAT))
    return model_of(nodes, weights, opset)


def qlinear_matmul() -> onnx.ModelProto:
    """What ONNX Runtime's own quantizer writes, and TensorRT does not take."""
    weights: dict[str, NDArray[Any]] = {
        "scale": np.array(0.1, np.float32),
        "zero": np.array(0, np.int8),
        "weight": np.ones((48, 10), np.int8),
        "flat_shape": np.array([0, 48], np.int64),
    }
    node = helper.make_node
    pair = ["scale", "zero"]
    nodes = [
        node("Reshape", ["pixels", "flat_shape"], ["flat"], name="flatten"),
        node("QuantizeLinear", ["flat", *pair], ["flat_q"], name="flat/quantize"),
        node(
            "QLinearMatMul",
            ["flat_q", *pair, "weight", *pair, *pair],
            ["classified"],
            name="blocks.0/qlinear",
        ),
        node("DequantizeLinear", ["classified", *pair], ["logits"], name="dequantize"),
    ]
    return model_of(nodes, weights, 19)


def model_of(
    nodes: list[onnx.NodeProto], weights: dict[str, NDArray[Any]], opset: int
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["n", *SHAPE])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 10])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def _quantized(
    dtype: Any, generator: np.random.Generator, zero_point: NDArray[Any] | None
) -> tuple[list[onnx.NodeProto], dict[str, NDArray[Any]]]:
    zero = np.array(0, np.int8) if zero_point is None else zero_point
    weights: dict[str, NDArray[Any]] = {
        "normed_scale": np.array(0.02, dtype),
        "normed_zero": zero,
        "head.weight_q": generator.integers(-127, 128, (32, 10)).astype(np.int8),
        "head.weight_scale": np.full(10, 0.001, dtype),
        "head.weight_zero": np.zeros(10, np.int8),
    }
    scale = ["normed_scale", "normed_zero"]
    node = helper.make_node
    nodes = [
        node("QuantizeLinear", ["normed", *scale], ["normed_q"], name="normed/quantize"),
        node("DequantizeLinear", ["normed_q", *scale], ["normed_dq"], name="normed/dequantize"),
        node(
            "DequantizeLinear",
            ["head.weight_q", "head.weight_scale", "head.weight_zero"],
            ["head_dq"],
            name="head.weight/dequantize",
            axis=1,
        ),
    ]
    return nodes, weights
