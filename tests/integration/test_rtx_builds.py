"""Real models through TensorRT-RTX's parser and builder, which need no GPU.

Without TensorRT-RTX these fail: a build that was never tried proves nothing.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from command_line import GRAPH, require_one_error, run
from onnx import numpy_helper
from unit_gain import random_vit

from vitdeploy.artifacts.engine import Engine, read_engine
from vitdeploy.artifacts.files import file_digest
from vitdeploy.artifacts.onnx_model import OnnxModel, read_onnx_model, with_description
from vitdeploy.backends import registry
from vitdeploy.backends.base import BuildOptions
from vitdeploy.calibration.plan import plan
from vitdeploy.calibration.qdq import insert_qdq
from vitdeploy.demo import assets
from vitdeploy.errors import EngineError, InputError
from vitdeploy.export.export import ExportOptions, export
from vitdeploy.export.precision import to_half
from vitdeploy.graph import files
from vitdeploy.models.source import SourceModel
from vitdeploy.target import parse_targets

SEVERAL = BuildOptions(targets=parse_targets("sm86,sm89,sm120"), batch=(1, 4, 16))
ONE = BuildOptions(targets=parse_targets("sm89"), batch=(1, 4, 16))


def build(model: OnnxModel, folder: Path, options: BuildOptions = SEVERAL) -> Engine:
    return registry.get("tensorrt-rtx").build(model, options, folder / "out" / "model.engine")


def int8_of(model: OnnxModel, folder: Path) -> OnnxModel:
    """INT8 with made-up ranges: a build asks for the form, not for the accuracy."""
    graph = files.load(model)
    chosen = plan(graph)
    scales = dict.fromkeys(chosen.activations, 0.05)
    files.unused_initializers_removed(insert_qdq(graph, chosen, scales))
    description = with_description(model, precision="int8-fp32")
    return files.save(graph, description, folder / "int8.onnx")


@pytest.fixture(scope="module")
def demo() -> OnnxModel:
    return read_onnx_model(assets.GRAPH)


@pytest.fixture(scope="module")
def vit() -> SourceModel:
    """ViT-Ti/16 with weights large enough for its logits to vary."""
    return random_vit(num_classes=1000)


@pytest.fixture(scope="module", params=[224, pytest.param(384, marks=pytest.mark.slow)])
def vit_graph(
    request: pytest.FixtureRequest, vit: SourceModel, tmp_path_factory: pytest.TempPathFactory
) -> OnnxModel:
    size = (request.param, request.param)
    return export(vit, ExportOptions(resolution=size), tmp_path_factory.mktemp("vit"))


def check_built(engine: Engine, model: OnnxModel) -> None:
    assert read_engine(engine.path) == engine
    assert engine.manifest.backend == "tensorrt-rtx"
    assert engine.manifest.model_digest == model.digest
    assert engine.manifest.settings["strongly_typed"] is True
    # The weights are inside: less than half of them would mean that a part is missing.
    assert engine.size_bytes > 0.5 * model.size_bytes


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8-fp16"])
def test_the_demo_builds_for_three_gpus(precision: str, demo: OnnxModel, tmp_path: Path) -> None:
    model = int8_of(demo, tmp_path) if precision.startswith("int8") else demo
    if precision.endswith("fp16"):
        model = to_half(model, tmp_path)
    assert model.description.precision == precision
    engine = build(model, tmp_path)
    check_built(engine, model)
    assert engine.manifest.targets == ("sm86", "sm89", "sm120")


@pytest.mark.parametrize("precision", ["fp16", "int8-fp16"])
def test_vit_tiny_builds(precision: str, vit_graph: OnnxModel, tmp_path: Path) -> None:
    model = int8_of(vit_graph, tmp_path) if precision.startswith("int8") else vit_graph
    model = to_half(model, tmp_path)
    check_built(build(model, tmp_path, ONE), model)


def changed(model: OnnxModel, folder: Path, change: Callable[[onnx.ModelProto], None]) -> OnnxModel:
    proto = copy.deepcopy(onnx.load(str(model.path)))
    change(proto)
    path = folder / "changed.onnx"
    onnx.save(proto, str(path))
    return replace(model, path=path, digest=file_digest(path))


def unsigned(proto: onnx.ModelProto) -> None:
    """uint8 with zero point 128, as ONNX Runtime's own quantizer writes activations."""
    zeros = {n.input[2] for n in proto.graph.node if n.op_type == "QuantizeLinear"}
    for tensor in proto.graph.initializer:
        if tensor.name in zeros:
            tensor.CopyFrom(numpy_helper.from_array(np.array(128, np.uint8), tensor.name))
    del proto.graph.value_info[:]


def asymmetric(proto: onnx.ModelProto) -> None:
    """int8 whose zero point is not zero."""
    zeros = {n.input[2] for n in proto.graph.node if n.op_type == "QuantizeLinear"}
    for tensor in proto.graph.initializer:
        if tensor.name in zeros:
            tensor.CopyFrom(numpy_helper.from_array(np.array(7, np.int8), tensor.name))


def mixed_types(proto: onnx.ModelProto) -> None:
    """One float32 weight between float16 values."""
    tensor = next(t for t in proto.graph.initializer if t.name.endswith("qkv.bias"))
    wide = numpy_helper.to_array(tensor).astype(np.float32)
    tensor.CopyFrom(numpy_helper.from_array(wide, tensor.name))
    del proto.graph.value_info[:]


@pytest.mark.parametrize("defect", [unsigned, asymmetric, mixed_types])
def test_planted_defects_are_refused(
    defect: Callable[[onnx.ModelProto], None], demo: OnnxModel, tmp_path: Path
) -> None:
    good = to_half(int8_of(demo, tmp_path), tmp_path)
    wrong = changed(good, tmp_path, defect)
    with pytest.raises((EngineError, InputError)) as caught:
        build(wrong, tmp_path, ONE)
    assert caught.value.hint
    assert not list((tmp_path / "out").glob("*"))


def test_an_unsupported_operator_is_named_with_its_node(demo: OnnxModel, tmp_path: Path) -> None:
    graph = files.load(demo)
    normalized = next(node for node in graph.graph if node.op_type == "LayerNormalization")
    output = normalized.outputs[0]
    readers = list(output.uses())
    odd = ir.node("Det", [output], name="blocks.0.norm1/Unsupported", domain="made.up")
    graph.graph.insert_after(normalized, odd)
    odd.outputs[0].name = "odd"
    for node, index in readers:
        node.replace_input_with(index, odd.outputs[0])
    graph.opset_imports["made.up"] = 1
    model = files.save(graph, demo.description, tmp_path / "odd.onnx")
    with pytest.raises((EngineError, InputError), match="Det") as caught:
        build(model, tmp_path, ONE)
    assert "blocks.0.norm1/Unsupported" in str(caught.value)
    assert not list((tmp_path / "out").glob("*"))


TOO_MUCH = {
    "--version-compat": "builds no engine for other versions of itself",
    "--target sm86 --fp8": "the graph is fp8-fp16, which sm86 cannot compute",
}


@pytest.mark.parametrize("asked", TOO_MUCH)
def test_what_cannot_be_built_is_refused_before_a_graph_is_quantized(
    asked: str, tmp_path: Path, cache: Path
) -> None:
    given = ["build-engine", GRAPH, "--int8", "--calib", "demo", "--backend", "tensorrt-rtx"]
    given += [] if "--target" in asked else ["--target", "sm89"]
    if "--fp8" in asked:
        given.remove("--int8")
    outcome = run([*given, *asked.split(), "-o", "out"], tmp_path, cache)
    assert outcome.code in (2, 3, 6)
    require_one_error(outcome, outcome.code, TOO_MUCH[asked])
    assert not list(tmp_path.glob("out/*"))


@pytest.mark.parametrize(
    ("asked", "profiles"),
    [
        ("--batch 1:1:1,1:8:64 --opt-level 1 --workspace 256", [(1, 1, 1), (1, 8, 64)]),
        ("--minShapes=input:1x3x192x192 --maxShapes=input:4x3x192x192", [(1, 4, 4)]),
    ],
)
def test_the_command_builds_the_profiles_it_is_told(
    asked: str, profiles: list[tuple[int, int, int]], tmp_path: Path, cache: Path
) -> None:
    given = ["build-engine", GRAPH, "--backend", "tensorrt-rtx", "--target", "sm89"]
    built = run([*given, *asked.split(), "-o", ".", "--json"], tmp_path, cache)
    assert built.code == 0, built.errors
    manifest = read_engine(tmp_path / json.loads(built.output)["path"]).manifest
    assert manifest.settings["profiles"] == [
        [[n, 3, 192, 192] for n in profile] for profile in profiles
    ]
