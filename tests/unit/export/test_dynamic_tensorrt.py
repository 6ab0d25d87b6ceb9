"""TensorRT-RTX takes graphs for a range of sizes, which needs no GPU.

Without TensorRT-RTX these fail: a build that was never tried proves nothing.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tiny_vits import NATIVE, lively

from vitdeploy.artifacts.onnx_model import ModelDescription, OnnxModel, ResolutionRange
from vitdeploy.backends import registry
from vitdeploy.backends.base import BuildOptions
from vitdeploy.backends.tensorrt.backend import _request
from vitdeploy.backends.tensorrt.flavour import TENSORRT_RTX
from vitdeploy.errors import EngineError
from vitdeploy.export.dynamic.sizes import best_size, range_of
from vitdeploy.export.passes.module_names import name_nodes_by_module
from vitdeploy.export.trace import trace, trace_dynamic
from vitdeploy.graph import files
from vitdeploy.models.source import SourceModel
from vitdeploy.target import parse_targets

SEVERAL = BuildOptions(targets=parse_targets("sm86,sm89,sm120"), batch=(1, 4, 16))


def described(source: SourceModel, sizes: ResolutionRange) -> ModelDescription:
    return ModelDescription(
        source=source.description,
        resolution=best_size(source, sizes),
        precision="fp32",
        opset=20,
        input_name="input",
        output_name="logits",
        resolution_range=sizes,
    )


def saved(source: SourceModel, sizes: ResolutionRange, folder: Path) -> OnnxModel:
    graph = name_nodes_by_module(trace_dynamic(source, sizes))
    return files.save(graph, described(source, sizes), folder / "dynamic.onnx")


@pytest.mark.parametrize(
    ("name", "kwargs", "step"),
    [
        ("vit_tiny_patch16_224", {"img_size": NATIVE}, 16),
        ("vit_small_patch16_dinov3", {"img_size": 64}, 16),
        pytest.param("eva02_tiny_patch14_224", {"img_size": 56}, 14, marks=pytest.mark.slow),
        pytest.param(
            "vit_small_patch16_rope_mixed_224", {"img_size": 64}, 16, marks=pytest.mark.slow
        ),
    ],
)
def test_one_engine_for_every_size(name: str, kwargs: dict, step: int, tmp_path: Path) -> None:
    source = lively(name, **kwargs)
    model = saved(source, range_of(source, (2 * step, 2 * step), (8 * step, 8 * step)), tmp_path)
    engine = registry.get("tensorrt-rtx").build(model, SEVERAL, tmp_path / "out" / "dynamic.engine")
    assert engine.manifest.targets == ("sm86", "sm89", "sm120")
    assert engine.manifest.model.resolution_range == model.description.resolution_range
    # The weights are inside.
    assert engine.size_bytes > 0.5 * model.size_bytes


def test_the_profile_spans_the_range(tmp_path: Path) -> None:
    source = lively(img_size=NATIVE)
    description = described(source, range_of(source, (32, 48), (128, 96)))
    model = OnnxModel(tmp_path / "a.onnx", "", description)
    request = _request(TENSORRT_RTX, model, SEVERAL, (), tmp_path / "a.engine")
    assert request.smallest_image == (3, 32, 48)
    assert request.image_shape == (3, *NATIVE)
    assert request.largest_image == (3, 128, 96)
    fixed = replace(model, description=replace(description, resolution_range=None))
    request = _request(TENSORRT_RTX, fixed, SEVERAL, (), tmp_path / "a.engine")
    assert request.smallest_image == request.image_shape == request.largest_image


def test_a_graph_of_one_size_described_as_dynamic_is_refused(tmp_path: Path) -> None:
    source = lively(img_size=NATIVE)
    sizes = range_of(source, (32, 32), (128, 128))
    graph = name_nodes_by_module(trace(source))
    model = files.save(graph, described(source, sizes), tmp_path / "fixed.onnx")
    with pytest.raises(EngineError, match="description says") as caught:
        registry.get("tensorrt-rtx").build(model, SEVERAL, tmp_path / "out" / "a.engine")
    assert "128" in str(caught.value)
