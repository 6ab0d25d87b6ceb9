"""INT8 attention of a graph that was planned for another runtime or size is said before a build."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from trt_graphs import needs_rtx

from vitdeploy.artifacts.onnx_model import OnnxModel, Quantization, read_onnx_model
from vitdeploy.backends.base import BuildOptions
from vitdeploy.backends.tensorrt.attention import why_not_fused
from vitdeploy.backends.tensorrt.backend import TensorRTBackend
from vitdeploy.backends.tensorrt.flavour import TENSORRT_RTX
from vitdeploy.calibration.plan import plan
from vitdeploy.calibration.qdq import insert_qdq
from vitdeploy.demo import assets
from vitdeploy.graph import files
from vitdeploy.progress import SILENT
from vitdeploy.target import parse_targets

ORIN = parse_targets("sm87")


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> OnnxModel:
    """The demo (heads of 32, 145 tokens) with its attention in INT8, for TensorRT."""
    model = read_onnx_model(assets.GRAPH)
    graph = files.load(model)
    chosen = plan(graph, targets=ORIN, runtime="tensorrt")
    assert chosen.products
    names = tuple(graph_node.name or "" for graph_node in graph.graph)
    insert_qdq(graph, chosen, dict.fromkeys(chosen.activations, 0.05))
    files.unused_initializers_removed(graph)
    in_int8 = Quantization("mse", 1, (), quantized=names, kept={})
    description = replace(model.description, precision="int8-fp32", quantization=in_int8)
    return files.save(graph, description, tmp_path_factory.mktemp("int8") / "int8.onnx")


def test_attention_that_is_fused_is_not_spoken_of(quantized: OnnxModel) -> None:
    assert list(why_not_fused(quantized, ORIN, "tensorrt")) == []


def test_attention_in_vain_is_said_once_for_all_targets(quantized: OnnxModel) -> None:
    targets = parse_targets("sm86,sm89")
    (line,) = why_not_fused(quantized, targets, "tensorrt-rtx")
    assert "int8.onnx has INT8 attention that sm86, sm89 may compute slower than FP16" in line
    assert "weights only" in line
    assert "--target sm86,sm89" in line


def test_attention_left_in_float_is_not_spoken_of(quantized: OnnxModel) -> None:
    found = quantized.description.quantization
    assert found is not None
    linear = tuple(name for name in found.quantized if "/MatMul" not in name)
    description = replace(quantized.description, quantization=replace(found, quantized=linear))
    left = replace(quantized, description=description)
    assert list(why_not_fused(left, ORIN, "tensorrt-rtx")) == []


def test_too_many_tokens_are_named(quantized: OnnxModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitdeploy.target._INT8_TOKENS", 100)
    (line,) = why_not_fused(quantized, ORIN, "tensorrt")
    assert "up to 100 tokens, not for 145" in line


def test_a_graph_that_is_not_quantized_is_not_read(tmp_path: Path) -> None:
    model = read_onnx_model(assets.GRAPH)
    absent = replace(model, path=tmp_path / "absent.onnx")
    assert list(why_not_fused(absent, ORIN, "tensorrt")) == []


@needs_rtx
def test_it_is_said_before_the_build(quantized: OnnxModel, tmp_path: Path) -> None:
    said: list[str] = []

    class Notes:
        def task(self, description: str, total: int | None = None) -> Any:
            said.append("the build")
            return SILENT.task(description, total)

        def note(self, text: str) -> None:
            said.append(text)

    backend = TensorRTBackend(TENSORRT_RTX, has_driver=lambda: False)
    options = BuildOptions(targets=parse_targets("sm89"), batch=(1, 1, 1))
    backend.build(quantized, options, tmp_path / "int8.engine", Notes())
    assert said[-1] == "the build"
    assert ["INT8 attention that sm89 may compute slower" in text for text in said] == [
        False,
        True,
        False,
    ]
