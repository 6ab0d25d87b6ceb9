"""What is gathered is kept, and found again by all that decides it and by nothing less."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from numpy.typing import NDArray
from PIL import Image

from vitdeploy.artifacts.onnx_model import OnnxModel
from vitdeploy.calibration import statistics
from vitdeploy.calibration.cache import StatisticsCache
from vitdeploy.calibration.gathering import Gathering
from vitdeploy.calibration.image_set import CalibrationSet, choose
from vitdeploy.calibration.quantize import QuantizationOptions, quantize
from vitdeploy.calibration.statistics import BINS
from vitdeploy.errors import CalibrationError
from vitdeploy.graph import files
from vitdeploy.images import ImageSet, scan
from vitdeploy.progress import SILENT, Task


class Passes:
    """A sink that counts the images of each kind of pass."""

    def __init__(self) -> None:
        self.images: Counter[str] = Counter()

    def task(self, description: str, total: int | None = None) -> AbstractContextManager[Task]:
        if description.startswith("calibrating"):
            self.images[description.partition(": ")[2]] += total or 0
        return SILENT.task(description, total)

    def note(self, text: str) -> None:
        pass


WHOLE = {"magnitudes": 20, "histograms": 20, "rows for searches": 20}
AGAIN = {"rows for searches": 20}


@pytest.fixture
def gather(tmp_path: Path) -> Callable[..., Counter[str]]:
    """Quantizes with one cache, and answers what was passed over."""

    def run(
        model: OnnxModel, calibration: CalibrationSet, options: QuantizationOptions | None = None
    ) -> Counter[str]:
        passes = Passes()
        cache = StatisticsCache(tmp_path / "statistics")
        quantize(model, calibration, tmp_path / "out", options, cache=cache, progress=passes)
        return passes.images

    return run


def test_the_second_build_makes_no_pass(
    gather: Callable[..., Counter[str]], model: OnnxModel, calibration: CalibrationSet
) -> None:
    assert gather(model, calibration) == WHOLE
    assert gather(model, calibration) == AGAIN
    backwards = replace(
        calibration,
        images=calibration.images.take(range(19, -1, -1)),
        digests=calibration.digests[::-1],
    )
    assert gather(model, backwards) == AGAIN, "the order decides nothing"


def test_what_is_kept_gives_the_very_same_graph(
    model: OnnxModel, calibration: CalibrationSet, tmp_path: Path
) -> None:
    cache = StatisticsCache(tmp_path / "statistics")
    first = quantize(model, calibration, tmp_path / "a", cache=cache)
    second = quantize(model, calibration, tmp_path / "b", cache=cache)
    none = quantize(model, calibration, tmp_path / "c")
    assert first.path.read_bytes() == second.path.read_bytes() == none.path.read_bytes()


def test_other_ranges_need_no_first_pass_and_absmax_no_second(
    gather: Callable[..., Counter[str]], model: OnnxModel, calibration: CalibrationSet
) -> None:
    absmax = QuantizationOptions(method="absmax")
    assert gather(model, calibration, absmax) == {"magnitudes": 20, "rows for searches": 20}
    assert gather(model, calibration, QuantizationOptions(numbers="fp8")) == AGAIN
    assert "magnitudes" not in gather(model, calibration, QuantizationOptions(method="mse"))


def test_other_folds_are_other_histograms(
    gather: Callable[..., Counter[str]], model: OnnxModel, calibration: CalibrationSet
) -> None:
    gather(model, calibration)
    assert gather(model, calibration, QuantizationOptions(fold=False)) == {
        "histograms": 20,
        "rows for searches": 20,
    }


class Dummy:
    """Counts what is really gathered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        monkeypatch.setattr(statistics, "channel_maxima", self)

    def __call__(self, *_: object, **__: object) -> dict[str, NDArray[np.float32]]:
        self.count += 1
        return {"x": np.full(3, self.count, np.float32)}


@pytest.fixture
def drawn(images: ImageSet, tmp_path: Path) -> CalibrationSet:
    """Images of its own, which a test may change."""
    folder = tmp_path / "drawn"
    folder.mkdir()
    for index, item in enumerate(images.items[:16]):
        (folder / f"{index:02d}.png").write_bytes(item.path.read_bytes())
    return choose(scan(folder), count=16)


def other_weights(model: OnnxModel, folder: Path) -> OnnxModel:
    graph = files.load(model)
    token = graph.graph.initializers["cls_token"]
    assert token.const_value is not None
    token.const_value = ir.Tensor(token.const_value.numpy() + np.float32(1e-3), name="cls_token")
    return files.save(graph, model.description, folder / model.path.name)


def other_interpolation(model: OnnxModel, folder: Path) -> OnnxModel:
    source = model.description.source
    preprocessing = replace(source.preprocessing, interpolation="nearest")
    source = replace(source, preprocessing=preprocessing)
    return replace(model, description=replace(model.description, source=source))


def other_size(model: OnnxModel, folder: Path) -> OnnxModel:
    return replace(model, description=replace(model.description, resolution=(48, 32)))


@pytest.mark.parametrize("change", [other_weights, other_interpolation, other_size])
def test_another_model_is_gathered_anew(
    change: Callable[[OnnxModel, Path], OnnxModel],
    model: OnnxModel,
    drawn: CalibrationSet,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gathered = Dummy(monkeypatch)
    cache = StatisticsCache(tmp_path / "statistics")
    graph = files.load(model)
    for one in (model, change(model, tmp_path), model):
        Gathering(model=one, calibration=drawn, cache=cache).maxima(graph, ["x"])
    assert gathered.count == 2
    moved = tmp_path / "moved.onnx"
    moved.write_bytes(model.path.read_bytes())
    same = replace(model, path=moved)
    found = Gathering(model=same, calibration=drawn, cache=cache).maxima(graph, ["x"])
    assert gathered.count == 2, "the path decides nothing"
    np.testing.assert_array_equal(found["x"], [1, 1, 1])


def test_another_image_of_the_same_name_is_gathered_anew(
    model: OnnxModel, drawn: CalibrationSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gathered = Dummy(monkeypatch)
    cache = StatisticsCache(tmp_path / "statistics")
    graph = files.load(model)
    Gathering(model=model, calibration=drawn, cache=cache).maxima(graph, ["x"])
    Image.new("RGB", (48, 32), (1, 2, 3)).save(drawn.images.items[0].path)
    again = choose(drawn.images, count=16)
    assert {item.path for item in again.images.items} == {i.path for i in drawn.images.items}
    Gathering(model=model, calibration=again, cache=cache).maxima(graph, ["x"])
    assert gathered.count == 2


def test_other_tensors_are_gathered_anew(
    model: OnnxModel, drawn: CalibrationSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gathered = Dummy(monkeypatch)
    gathering = Gathering(
        model=model, calibration=drawn, cache=StatisticsCache(tmp_path / "statistics")
    )
    for tensors in (["x"], ["x", "y"], ["x"]):
        gathering.maxima(files.load(model), tensors)
    assert gathered.count == 2


def test_images_that_change_during_the_pass_leave_nothing(
    model: OnnxModel, drawn: CalibrationSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def swapped(*_: object, **__: object) -> dict[str, NDArray[np.float32]]:
        Image.new("RGB", (48, 32), (9, 9, 9)).save(drawn.images.root / "03.png")
        return {"x": np.ones(3, np.float32)}

    monkeypatch.setattr(statistics, "channel_maxima", swapped)
    folder = tmp_path / "statistics"
    gathering = Gathering(model=model, calibration=drawn, cache=StatisticsCache(folder))
    with pytest.raises(CalibrationError, match=r"03\.png has changed"):
        gathering.maxima(files.load(model), ["x"])
    assert not folder.exists() or not list(folder.iterdir())


def test_histograms_are_found_by_folds_and_by_ranges(
    model: OnnxModel, drawn: CalibrationSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 0

    def counted(*_: object, **__: object) -> dict[str, statistics.ActivationStatistics]:
        nonlocal count
        count += 1
        return {"x": statistics.ActivationStatistics(2.0, np.full(BINS, count, np.int64))}

    monkeypatch.setattr(statistics, "histograms", counted)
    gathering = Gathering(
        model=model, calibration=drawn, cache=StatisticsCache(tmp_path / "statistics")
    )
    graph = files.load(model)
    ones = np.ones(4, np.float32)
    seen = [
        gathering.histograms(graph, {"x": largest}, folded)["x"]
        for largest, folded in (
            (2.0, {}),
            (2.0, {"x": ones}),
            (2.0, {"x": 2 * ones}),
            (2.0, {"y": ones}),
            (2.0000002, {}),
            (2.0, {"x": ones.copy()}),
            (2.0, {}),
        )
    ]
    assert [int(found.histogram[0]) for found in seen] == [1, 2, 3, 4, 5, 2, 1]
    assert [found.absmax for found in seen] == [2.0] * 4 + [2.0000002] + [2.0] * 2


def test_without_a_cache_nothing_is_kept(
    model: OnnxModel, drawn: CalibrationSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    gathered = Dummy(monkeypatch)
    for _ in range(2):
        Gathering(model=model, calibration=drawn).maxima(files.load(model), ["x"])
    assert gathered.count == 2
