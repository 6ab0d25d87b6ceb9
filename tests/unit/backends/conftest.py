"""A tiny ViT as source, fp32 graph, fp16 graph and Linear-only INT8 graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from unit_gain import random_vit

from vitdeploy.artifacts.onnx_model import OnnxModel, with_description
from vitdeploy.calibration.plan import plan
from vitdeploy.calibration.qdq import insert_qdq
from vitdeploy.calibration.statistics import _session_with_outputs
from vitdeploy.export.export import ExportOptions, export
from vitdeploy.export.precision import to_half
from vitdeploy.graph import files
from vitdeploy.models.source import SourceModel

SIZE = (32, 48)


@pytest.fixture(scope="session")
def tiny_source() -> SourceModel:
    """Random weights of unit gain: logits differ from image to image."""
    kwargs = {"img_size": list(SIZE), "depth": 2, "embed_dim": 48, "num_heads": 3}
    return random_vit(num_classes=10, model_kwargs=kwargs)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("backends")


@pytest.fixture(scope="session")
def fp32_model(tiny_source: SourceModel, folder: Path) -> OnnxModel:
    return export(tiny_source, ExportOptions(), folder)


@pytest.fixture(scope="session")
def int8_model(fp32_model: OnnxModel, folder: Path) -> OnnxModel:
    """Ranges of a few random images: enough to hold runtimes against each other."""
    graph = files.load(fp32_model)
    chosen = plan(graph)
    pixels = np.random.default_rng(0).normal(size=(8, 3, *SIZE)).astype(np.float32)
    observed = _session_with_outputs(graph, chosen.activations, "whole").run_all(pixels)
    scales = {
        name: float(np.abs(values).max()) / 127
        for name, values in zip(chosen.activations, observed, strict=True)
    }
    files.unused_initializers_removed(insert_qdq(graph, chosen, scales))
    description = with_description(fp32_model, precision="int8-fp32")
    return files.save(graph, description, folder / "tiny_int8.onnx")


@pytest.fixture(scope="session")
def fp16_model(fp32_model: OnnxModel, folder: Path) -> OnnxModel:
    return to_half(fp32_model, folder)
