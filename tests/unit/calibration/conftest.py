"""A tiny ViT's graph, and folders of images to calibrate it with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch
from patterned import Patterned, patterned
from PIL import Image
from unit_gain import random_vit

from vitdeploy.artifacts.onnx_model import OnnxModel
from vitdeploy.calibration.image_set import CalibrationSet, choose
from vitdeploy.export.export import ExportOptions, export
from vitdeploy.graph import files
from vitdeploy.images import ImageSet, scan
from vitdeploy.models.source import SourceModel

SIZE = (32, 48)
KWARGS = {"img_size": list(SIZE), "depth": 2, "embed_dim": 96, "num_heads": 3, "num_classes": 10}


@pytest.fixture(scope="session")
def source() -> SourceModel:
    """Random weights of unit gain: logits differ from image to image."""
    torch.set_num_threads(1)
    return random_vit(model_kwargs=KWARGS)


@pytest.fixture(scope="session")
def model(source: SourceModel, tmp_path_factory: pytest.TempPathFactory) -> OnnxModel:
    return export(source, ExportOptions(), tmp_path_factory.mktemp("graph"))


@pytest.fixture
def graph(model: OnnxModel) -> ir.Model:
    """Loaded anew for each test, which may change it."""
    return files.load(model)


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> ImageSet:
    """Forty images in two classes, each unlike the others in brightness and contrast."""
    root = tmp_path_factory.mktemp("images")
    generator = np.random.default_rng(0)
    for index in range(40):
        folder: Path = root / ("dark" if index % 2 else "light")
        folder.mkdir(exist_ok=True)
        mean, deviation = generator.uniform(40, 215), generator.uniform(5, 60)
        pixels = generator.normal(mean, deviation, (*SIZE, 3)).clip(0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{index:03d}.png")
    return scan(root)


@pytest.fixture(scope="session")
def calibration(images: ImageSet) -> CalibrationSet:
    """Twenty images: two full batches of eight and a partial one."""
    return choose(images, count=20, seed=3)


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Patterned:
    """A model whose answers mean something, for what judges answers."""
    return patterned(tmp_path_factory.mktemp("patterned"))
