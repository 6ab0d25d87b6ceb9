"""INT8 on a model whose residual stream and class token carry thousands."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from massive_activations import largest_residuals, with_massive_activations
from numpy.typing import NDArray
from planted_models import agreement, entropy_bits

from vitdeploy.artifacts.onnx_model import OnnxModel
from vitdeploy.backends.onnxruntime_ import GraphSession
from vitdeploy.calibration.image_set import choose
from vitdeploy.calibration.quantize import quantize
from vitdeploy.demo import assets
from vitdeploy.export.export import ExportOptions, export
from vitdeploy.images import ImageSet, batches, scan
from vitdeploy.models.load import ModelRequest, load_source
from vitdeploy.models.source import SourceModel, weights_digest

COUNT = 1000

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Massive:
    """The demo and its massive copy on the evaluation images; `float_model` is the copy's graph."""

    demo: NDArray[np.float32]
    float_model: OnnxModel
    pixels: NDArray[np.float32]
    classes: NDArray[np.int64]
    residuals: torch.Tensor

    def answers(self, model: OnnxModel) -> NDArray[np.float32]:
        session = GraphSession(model.path, threads=1)
        return np.concatenate([session.run(self.pixels[i : i + 50]) for i in range(0, COUNT, 50)])

    def top1(self, logits: NDArray[np.float32]) -> float:
        return float((logits.argmax(-1) == self.classes).mean())


def pixels_of(images: ImageSet, source: SourceModel) -> NDArray[np.float32]:
    preprocessing = source.description.preprocessing
    return np.concatenate(list(batches(images, preprocessing, source.resolution, 50)))


@pytest.fixture(scope="module")
def massive(tmp_path_factory: pytest.TempPathFactory) -> Massive:
    torch.set_num_threads(1)
    source = load_source(ModelRequest(name=str(assets.CHECKPOINT)))
    labels = source.description.labels
    taught = torch.from_numpy(
        pixels_of(scan(assets.images_folder("calibration"), labels=labels), source)
    )
    module = with_massive_activations(source.module, taught)
    digest = weights_digest(module.state_dict())
    description = replace(source.description, weights_digest=digest)
    everything = scan(assets.images_folder("evaluation"), labels=labels)
    step = len(everything) // COUNT
    evaluation = everything.take(range(0, step * COUNT, step))
    pixels = pixels_of(evaluation, source)
    with torch.inference_mode():
        demo = torch.cat([source.module(part) for part in torch.from_numpy(pixels).split(50)])
    folder = tmp_path_factory.mktemp("massive")
    changed = replace(source, module=module, description=description)
    return Massive(
        demo.numpy(),
        export(changed, ExportOptions(), folder),
        pixels,
        np.array(evaluation.label_indices()),
        largest_residuals(module, taught[:8]),
    )


def test_every_block_carries_thousands_and_the_class_token_twice_that(massive: Massive) -> None:
    class_token, patches = massive.residuals[:, 0], massive.residuals[:, 1:]
    assert float(patches.min()) > 1000
    assert float((class_token / patches.amax(1)).min()) > 1.5


def test_the_float_model_still_answers(massive: Massive) -> None:
    """With one class alone, any agreement would be free."""
    exact = massive.answers(massive.float_model)
    assert massive.top1(exact) >= 0.95 * massive.top1(massive.demo)
    assert entropy_bits(exact) >= 0.5 * entropy_bits(massive.demo)


def test_int8_agrees_with_its_float_model(massive: Massive, tmp_path: Path) -> None:
    images = scan(
        assets.images_folder("calibration"),
        labels=massive.float_model.description.source.labels,
    )
    int8 = quantize(massive.float_model, choose(images, count=128), tmp_path)
    exact, answered = massive.answers(massive.float_model), massive.answers(int8)
    assert agreement(answered, exact) >= 0.98
    assert massive.top1(answered) >= massive.top1(exact) - 0.01
