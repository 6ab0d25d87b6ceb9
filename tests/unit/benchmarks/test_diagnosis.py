"""`diagnose` names the stage and the layer that a fault was planted in, and no other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch
from bench_model import Bench
from patterned import SIZE
from unit_gain import random_vit

from vitdeploy import api
from vitdeploy.artifacts.onnx_model import OnnxModel
from vitdeploy.backends.base import BuildOptions
from vitdeploy.backends.onnxruntime_ import OnnxRuntimeBackend
from vitdeploy.backends.torch_layers import observe_source
from vitdeploy.benchmarks.diagnosis.diagnose import Stage, bound_between, diagnose
from vitdeploy.benchmarks.diagnosis.layers import layer_errors
from vitdeploy.benchmarks.diagnosis.stages import (
    engine_stage,
    graph_of,
    graph_stage,
    input_of,
    lineage,
)
from vitdeploy.calibration.precision import PrecisionRequest, with_precision
from vitdeploy.errors import GateFailedError
from vitdeploy.export.export import ExportOptions, export
from vitdeploy.export.precision import to_half
from vitdeploy.graph import files
from vitdeploy.images import ImageSet
from vitdeploy.models.source import SourceModel

LAYERS = ["blocks.0.mlp.fc1", "blocks.1.attn.proj"]


@pytest.fixture(scope="module")
def images(bench: Bench) -> ImageSet:
    return bench.images.take(range(0, 600, 75))


@pytest.fixture(scope="module")
def graphs(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> dict[str, OnnxModel]:
    """fp32, fp16, int8 and int8 with fp16 in one folder."""
    folder = tmp_path_factory.mktemp("stages")
    fp32 = files.save(files.load(bench.model), bench.model.description, folder / "fp32.onnx")
    request = PrecisionRequest(
        precision="int8", calibration=bench.images.take(range(1, 600, 9)), calibration_count=32
    )
    int8 = with_precision(fp32, request, folder)
    halves = [to_half(graph, folder, images=bench.images.take(range(8))) for graph in (fp32, int8)]
    found = (fp32, int8, *halves)
    return {graph.description.precision: graph for graph in found}


def broken(model: OnnxModel, layer: str, path: Path) -> OnnxModel:
    """The weight of one layer with its input channels in another order."""
    graph = files.load(model)
    node = next(n for n in graph.graph if n.name == f"{layer}/MatMul")
    weight = node.inputs[1]
    assert weight is not None
    while weight.const_value is None:  # behind a DequantizeLinear in quantized graphs
        producer = weight.producer()
        assert producer is not None
        weight = producer.inputs[0]
        assert weight is not None
    rolled = np.roll(weight.const_value.numpy(), 1, axis=0)
    weight.const_value = ir.Tensor(rolled, dtype=weight.const_value.dtype, name=weight.name)
    return files.save(graph, model.description, path)


def test_sound_stages_hold(graphs: dict[str, OnnxModel], images: ImageSet) -> None:
    chain = lineage(graphs["int8-fp16"], pytest.fail)
    assert [graph.description.precision for graph in chain] == ["fp32", "int8-fp32", "int8-fp16"]
    found = diagnose([graph_stage(graph, images, threads=1) for graph in chain])
    assert found.departing is None
    assert [stage.departs for stage in found.stages] == [False, False]
    assert all(stage.error > 1e-5 for stage in found.stages)
    assert "no stage departs" in found.in_words()


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("precision", ["fp16", "int8-fp32", "int8-fp16"])
def test_the_broken_layer_of_a_graph_is_named(
    graphs: dict[str, OnnxModel], images: ImageSet, tmp_path: Path, precision: str, layer: str
) -> None:
    chain = lineage(graphs[precision], pytest.fail)
    chain[-1] = broken(chain[-1], layer, tmp_path / "broken.onnx")
    found = diagnose([graph_stage(graph, images, threads=1) for graph in chain])
    assert found.departing == found.stages[-1]
    assert found.first is not None
    assert found.first.layer == f"{layer}/MatMul"
    # Up to channel scales, values that have nothing to do with the exact ones differ by 1.
    assert found.first.error > 0.8
    assert layer in found.in_words()


def test_a_fault_of_an_early_stage_is_not_blamed_on_a_late_one(
    graphs: dict[str, OnnxModel], images: ImageSet, tmp_path: Path
) -> None:
    chain = lineage(graphs["fp16"], pytest.fail)
    worse = broken(chain[0], LAYERS[0], tmp_path / "fp32.onnx")
    half = broken(chain[1], LAYERS[0], tmp_path / "fp16.onnx")
    stages = [graph_stage(graph, images, threads=1) for graph in (chain[0], worse, half)]
    found = diagnose(stages)
    assert [stage.departs for stage in found.stages] == [True, False]
    assert found.departing == found.stages[0]


def test_an_engine_and_its_graph(
    graphs: dict[str, OnnxModel], images: ImageSet, tmp_path: Path
) -> None:
    model = files.save(
        files.load(graphs["fp32"]), graphs["fp32"].description, tmp_path / "fp32.onnx"
    )
    engine = api.build_engine(model, OnnxRuntimeBackend(), tmp_path, BuildOptions(threads=1))
    graph = graph_of(engine)
    assert graph is not None
    session = api.load_engine(engine, threads=1)
    stages = [
        graph_stage(graph, images, threads=1),
        engine_stage(engine, session, graph, images, threads=1),
    ]
    sound = diagnose(stages)
    assert sound.departing is None
    wrong = replace(stages[1], answers=np.roll(stages[1].answers, 1, axis=1))
    found = diagnose([stages[0], wrong])
    assert found.departing is not None
    assert found.first is None
    assert "no single layer does" in found.in_words()
    sealed = diagnose([stages[0], replace(wrong, observe=None)])
    assert "cannot be looked into" in sealed.in_words()


@pytest.fixture(scope="module")
def source() -> SourceModel:
    torch.set_num_threads(1)
    small = {"depth": 2, "embed_dim": 96, "num_heads": 3, "num_classes": 10}
    return random_vit(model_kwargs={"img_size": list(SIZE), **small})


def test_the_broken_layer_of_an_export_is_named(
    source: SourceModel, images: ImageSet, tmp_path: Path
) -> None:
    model = export(source, ExportOptions(), tmp_path)
    inputs = input_of(model.description, images)
    first = Stage("PyTorch", None, source.logits(inputs), lambda: observe_source(source, inputs))
    sound = diagnose([first, graph_stage(model, images, threads=1)])
    assert sound.departing is None
    layer = LAYERS[1]
    other = graph_stage(broken(model, layer, tmp_path / "broken.onnx"), images, threads=1)
    found = diagnose([first, other])
    assert found.first is not None
    assert found.first.layer == layer
    compared = {entry.layer: entry.error for entry in found.layers}
    assert {"blocks.0", "blocks.0.mlp.fc2", "norm", "head"} <= set(compared)
    assert compared["blocks.0"] < 1e-4 < 1 < compared[layer]


def test_nan_answers_depart(images: ImageSet) -> None:
    exact = np.random.default_rng(0).normal(size=(8, 5)).astype(np.float32)
    stages = [Stage("a", "fp32", exact), Stage("b", "fp16", np.full((8, 5), np.nan, np.float32))]
    found = diagnose(stages)
    assert found.departing is not None
    assert np.isfinite(found.stages[0].error)
    assert found.stages[0].agreement == 0
    with pytest.raises(GateFailedError, match="not finite"):
        diagnose(stages[::-1])


def test_bounds_follow_what_changes() -> None:
    assert bound_between(None, "fp32") == bound_between("fp32", "fp32") == 1e-3
    assert bound_between("fp32", "int8-fp16") == 0.2
    assert bound_between("int8-fp32", "int8-fp16") == 0.045


def test_channel_scales_are_no_error_only_where_asked() -> None:
    exact = {"norm": np.random.default_rng(0).normal(size=(4, 7, 6)).astype(np.float32)}
    given = {"norm": exact["norm"] * np.array([1, 1, 0.05, 1, 9, 1], np.float32)}
    assert layer_errors(exact, given)[0][1] > 1
    assert layer_errors(exact, given, up_to_channel_scales=True)[0][1] < 1e-6
    rolled = {"norm": np.roll(exact["norm"], 1, axis=-1)}
    assert layer_errors(exact, rolled, up_to_channel_scales=True)[0][1] > 0.9
