"""Half-precision graphs through TensorRT-RTX's parser and builder, with nodes in float32 too."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import pytest

from vitdeploy.artifacts.onnx_model import OnnxModel, read_onnx_model, with_description
from vitdeploy.backends import registry
from vitdeploy.backends.base import BuildOptions
from vitdeploy.calibration.plan import plan
from vitdeploy.calibration.qdq import insert_qdq
from vitdeploy.demo import assets
from vitdeploy.export.passes.half import to_half_types
from vitdeploy.export.precision import to_half
from vitdeploy.graph import files
from vitdeploy.graph.half import BF16, FP16, HalfType
from vitdeploy.target import parse_targets

TARGETS = BuildOptions(targets=parse_targets("sm86,sm89,sm120"), batch=(1, 4, 16))


@pytest.fixture(scope="module")
def demo() -> OnnxModel:
    return read_onnx_model(assets.GRAPH)


def built(model: OnnxModel, folder: Path) -> None:
    backend = registry.get("tensorrt-rtx")
    engine = backend.build(model, TARGETS, folder / "out" / "model.engine")
    assert engine.manifest.targets == ("sm86", "sm89", "sm120")
    assert engine.size_bytes > 0.5 * model.size_bytes


def typed(
    graph: ir.Model, half: HalfType, keep: set[str], model: OnnxModel, folder: Path
) -> OnnxModel:
    retyped = to_half_types(graph, half, keep=keep)
    description = with_description(model, precision=half.name)
    return files.save(retyped, description, folder / "typed.onnx")


def block_of(graph: ir.Model, *kinds: str) -> set[str]:
    return {
        str(node.name)
        for node in graph.graph
        if str(node.name).startswith("blocks.1") and node.op_type in kinds
    }


def test_a_judged_bf16_graph_builds(demo: OnnxModel, tmp_path: Path) -> None:
    model = to_half(demo, tmp_path, precision="bf16")
    assert model.description.forecast is not None
    built(model, tmp_path)


@pytest.mark.parametrize("half", [FP16, BF16], ids=["fp16", "bf16"])
@pytest.mark.parametrize(
    "kinds",
    [("LayerNormalization", "Add"), ("MatMul",), ("Softmax", "Gelu", "Mul")],
    ids=["stream", "products", "elementwise"],
)
def test_graphs_with_nodes_in_float32_build(
    kinds: tuple[str, ...], half: HalfType, demo: OnnxModel, tmp_path: Path
) -> None:
    graph = files.load(demo)
    keep = block_of(graph, *kinds)
    assert len(keep) >= 2
    if half is BF16:
        keep |= {str(node.name) for node in graph.graph if node.op_type == "Conv"}
    model = typed(graph, half, keep, demo, tmp_path)
    kinds_found = {v.dtype for node in files.load(model).graph for v in node.outputs}
    assert {ir.DataType.FLOAT, half.data_type} <= kinds_found
    built(model, tmp_path)


def test_an_int8_graph_with_a_product_in_float32_builds(demo: OnnxModel, tmp_path: Path) -> None:
    graph = files.load(demo)
    chosen = plan(graph)
    insert_qdq(graph, chosen, dict.fromkeys(chosen.activations, 0.05))
    keep = {next(node.name for node in chosen.linear if "blocks.1.mlp.fc2" in node.name)}
    model = typed(graph, FP16, keep, demo, tmp_path)
    (product,) = (node for node in files.load(model).graph if node.name in keep)
    assert product.outputs[0].dtype == ir.DataType.FLOAT
    built(model, tmp_path)
