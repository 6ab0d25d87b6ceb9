"""Engines of the self-test's graph for the GPU that is here, and what they are held against."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from vitdeploy import environment
from vitdeploy.artifacts.engine import Engine, read_engine
from vitdeploy.backends import registry
from vitdeploy.backends.base import BuildOptions
from vitdeploy.backends.onnxruntime_ import GraphSession
from vitdeploy.backends.selftest.graph import images, tiny_vit
from vitdeploy.backends.tensorrt.options import TensorRTOptions

LIMIT = 0.05
SEVERAL = TensorRTOptions(batches=((1, 1, 1), (2, 4, 8)))


def backend_here(name: str) -> Any:
    """The backend; a skip with its reason where there is no GPU, or it is not installed."""
    if not environment.has_nvidia_driver():
        pytest.skip("gpu: no NVIDIA driver is here")
    backend = registry.get(name)
    found = backend.probe()
    if not found.available:
        pytest.skip(f"{name}: {found.reason}")
    return backend


def build(backend: Any, folder: Path, asked: TensorRTOptions = SEVERAL) -> Engine:
    """An engine beside its graph, read back from its files."""
    model = tiny_vit("fp16", folder / "selftest.onnx")
    options = BuildOptions(batch=(1, 4, 8), tensorrt=asked)
    return read_engine(backend.build(model, options, folder / "selftest.engine").path)


def expected(pixels: NDArray[np.float32], folder: Path) -> NDArray[np.float32]:
    return GraphSession(tiny_vit("fp32", folder / "reference.onnx").path).run(pixels)


def distance(given: NDArray[np.float32], folder: Path, pixels: NDArray[np.float32]) -> float:
    """The largest difference from ONNX Runtime over the deviation of the logits."""
    deviation = expected(images(64), folder).std(axis=0).mean()
    return float(np.abs(given - expected(pixels, folder)).max() / deviation)
