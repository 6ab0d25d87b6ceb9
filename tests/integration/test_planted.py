"""INT8 keeps the answers of models that are as hard to quantize as large ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import planted_models
import pytest
from numpy.typing import NDArray
from planted_models import agreement, entropy_bits

from vitdeploy.artifacts.onnx_model import OnnxModel
from vitdeploy.backends.onnxruntime_ import GraphSession
from vitdeploy.calibration.image_set import CalibrationSet, choose
from vitdeploy.calibration.quantize import QuantizationOptions, quantize
from vitdeploy.demo import assets
from vitdeploy.export.export import ExportOptions, export
from vitdeploy.graph import files
from vitdeploy.images import batches, image_digest, scan
from vitdeploy.models.load import ModelRequest, load_source

COUNT = 1000


@dataclass(frozen=True)
class Plant:
    """What is done to the graph, and the agreement INT8 must keep."""

    plant: Callable[[ir.Model], None]
    least: float


PLANTS = {
    "nothing": Plant(lambda graph: None, 0.995),
    "norm 20": Plant(lambda graph: planted_models.norm_outliers(graph, 20), 0.995),
    "norm 50": Plant(lambda graph: planted_models.norm_outliers(graph, 50), 0.995),
    "norm 100": Plant(lambda graph: planted_models.norm_outliers(graph, 100), 0.995),
    "gelu 20": Plant(lambda graph: planted_models.gelu_outliers(graph, 20), 0.995),
    "gelu 100": Plant(lambda graph: planted_models.gelu_outliers(graph, 100), 0.995),
    "logits 2": Plant(lambda graph: planted_models.large_logits(graph, 2), 0.98),
    "logits 3": Plant(lambda graph: planted_models.large_logits(graph, 3), 0.98),
}

QUICK = ("nothing", "norm 100", "gelu 100", "logits 3")
"""The hardest of each kind."""
QUICK_FIRST = [
    pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in PLANTS
]


@dataclass(frozen=True)
class Evaluated:
    """A float model, and what it answers on the evaluation images."""

    model: OnnxModel
    logits: NDArray[np.float32]


class Bench:
    """The demo at its native size, images, and planted copies, each made once."""

    def __init__(self, folder: Path) -> None:
        source = load_source(ModelRequest(name=str(assets.CHECKPOINT)))
        self.folder = folder
        self.demo = export(source, ExportOptions(), folder)
        labels = source.description.labels
        pictures = scan(assets.images_folder("calibration"), labels=labels)
        self.calibration: CalibrationSet = choose(pictures, count=128)
        everything = scan(assets.images_folder("evaluation"), labels=labels)
        step = len(everything) // COUNT
        self.evaluation = everything.take(range(0, step * COUNT, step))
        preprocessing = source.description.preprocessing
        size = self.demo.description.resolution
        self.pixels = np.concatenate(list(batches(self.evaluation, preprocessing, size, 50)))
        self._made: dict[str, Evaluated] = {}

    def answers(self, model: OnnxModel) -> NDArray[np.float32]:
        session = GraphSession(model.path, threads=1)
        return np.concatenate([session.run(self.pixels[i : i + 50]) for i in range(0, COUNT, 50)])

    def planted(self, name: str) -> Evaluated:
        if name not in self._made:
            graph = files.load(self.demo)
            PLANTS[name].plant(graph)
            path = self.folder / f"{name.replace(' ', '_')}.onnx"
            model = files.save(graph, self.demo.description, path)
            self._made[name] = Evaluated(model, self.answers(model))
        return self._made[name]

    def int8(self, name: str, options: QuantizationOptions, folder: Path) -> NDArray[np.float32]:
        return self.answers(quantize(self.planted(name).model, self.calibration, folder, options))


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("planted"))


def test_calibration_and_evaluation_are_apart(bench: Bench) -> None:
    digests = set(bench.calibration.digests)
    assert not digests & {image_digest(item.path) for item in bench.evaluation.items}


@pytest.mark.parametrize("name", QUICK_FIRST)
def test_int8_agrees_with_its_float_model(name: str, bench: Bench, tmp_path: Path) -> None:
    exact = bench.planted(name).logits
    assert entropy_bits(exact) >= 0.5 * entropy_bits(bench.planted("nothing").logits)
    answered = bench.int8(name, QuantizationOptions(), tmp_path)
    assert agreement(answered, exact) >= PLANTS[name].least


@pytest.mark.parametrize("factor", [pytest.param(50, marks=pytest.mark.slow), 100])
def test_outliers_behind_norms_change_nothing_in_float(factor: int, bench: Bench) -> None:
    exact, planted = bench.planted("nothing").logits, bench.planted(f"norm {factor}").logits
    assert np.abs(planted - exact).max() <= 1e-4 * exact.std()


@pytest.mark.parametrize("name", ["gelu 100", "logits 3"])
def test_the_other_plants_leave_a_model_that_answers(name: str, bench: Bench) -> None:
    """Float against float: what is planted bends the model, and does not break it."""
    exact, planted = bench.planted("nothing").logits, bench.planted(name).logits
    assert 0.7 <= agreement(planted, exact) < 1


@pytest.mark.parametrize("method", [pytest.param("absmax", marks=pytest.mark.slow), "mse"])
def test_without_folding_the_same_check_is_red(method: str, bench: Bench, tmp_path: Path) -> None:
    """The plants are hard: what most tools do loses one answer in ten."""
    options = replace(QuantizationOptions(), method=method, fold=False, correct_bias=False)  # type: ignore[arg-type]
    answered = bench.int8("norm 100", options, tmp_path)
    assert agreement(answered, bench.planted("norm 100").logits) < 0.9
