"""A graph may have more outputs, in any order: what is answered is the one described."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from vitdeploy.artifacts.engine import Engine
from vitdeploy.artifacts.onnx_model import OnnxModel
from vitdeploy.backends import registry
from vitdeploy.backends.base import BuildOptions
from vitdeploy.errors import EngineError
from vitdeploy.graph import files
from vitdeploy.models.source import SourceModel


@pytest.fixture(scope="module")
def two_outputs(fp32_model: OnnxModel, tmp_path_factory: pytest.TempPathFactory) -> OnnxModel:
    """The tokens that the last LayerNorm answers stand before the logits."""
    graph = files.load(fp32_model)
    tokens = [node for node in graph.graph if node.op_type == "LayerNormalization"][-1].outputs[0]
    graph.graph.outputs.insert(0, tokens)
    path = tmp_path_factory.mktemp("two") / "two.onnx"
    return files.save(graph, fp32_model.description, path)


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_the_described_output_is_answered(
    backend: str, two_outputs: OnnxModel, tiny_source: SourceModel, tmp_path: Path
) -> None:
    runtime = registry.get(backend)
    engine = runtime.build(two_outputs, BuildOptions(threads=1), tmp_path / "two.engine")
    pixels = np.random.default_rng(5).normal(size=(3, 3, 32, 48)).astype(np.float32)
    answered = runtime.load(engine, threads=1).run(pixels)
    expected = tiny_source.logits(pixels)
    np.testing.assert_allclose(answered, expected, atol=1e-4 * float(expected.std()))
    # Taken by its place, another output would have been the answer.
    tokens = two_outputs.description
    first = next(iter(files.load(two_outputs).graph.outputs)).name
    model = replace(tokens, output_name=str(first))
    other = runtime.load(Engine(engine.path, replace(engine.manifest, model=model)), threads=1)
    assert other.run(pixels).shape != expected.shape


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_an_output_that_is_not_there_is_refused(
    backend: str, fp32_model: OnnxModel, tmp_path: Path
) -> None:
    runtime = registry.get(backend)
    engine = runtime.build(fp32_model, BuildOptions(threads=1), tmp_path / "a.engine")
    model = replace(fp32_model.description, output_name="nowhere")
    with pytest.raises(EngineError, match="no output 'nowhere'") as caught:
        runtime.load(Engine(engine.path, replace(engine.manifest, model=model)), threads=1)
    assert caught.value.hint
