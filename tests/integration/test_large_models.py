"""More than one ONNX file can hold: 2.5 GB of weights, exported and quantized."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from unit_gain import random_vit

from vitdeploy.artifacts.onnx_model import external_data_path
from vitdeploy.backends.onnxruntime_ import GraphSession
from vitdeploy.calibration.image_set import choose
from vitdeploy.calibration.quantize import quantize
from vitdeploy.export.export import ExportOptions, export
from vitdeploy.images import batches, scan

WIDE = {"img_size": [32, 32], "depth": 1, "embed_dim": 7168, "num_heads": 56, "num_classes": 10}


@pytest.mark.slow
def test_a_model_above_two_gigabytes_is_quantized(tmp_path: Path) -> None:
    """One block of width 7,168; takes minutes and 14 GB of memory."""
    folder = tmp_path / "images"
    folder.mkdir()
    generator = np.random.default_rng(0)
    for index in range(20):
        mean, deviation = generator.uniform(40, 215), generator.uniform(5, 60)
        pixels = generator.normal(mean, deviation, (32, 32, 3)).clip(0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{index}.png")
    model = export(random_vit(model_kwargs=WIDE), ExportOptions(), tmp_path)
    assert external_data_path(model.path).stat().st_size > 2**31
    images = scan(folder)
    int8 = quantize(model, choose(images, count=20), tmp_path)
    assert int8.size_bytes < 0.3 * model.size_bytes
    preprocessing = model.description.source.preprocessing
    inputs = next(batches(images, preprocessing, (32, 32), 20))
    exact, answered = (GraphSession(found.path).run(inputs) for found in (model, int8))
    assert exact.std() > 0.1
    assert np.abs(answered - exact).max() < 0.1 * exact.std()
