"""Findings that make no sense are refused, wherever they come from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vitdeploy.artifacts.files import from_json, to_json
from vitdeploy.benchmarks.accuracy import evaluation
from vitdeploy.benchmarks.accuracy.classes import AccuracyComparison, compare
from vitdeploy.benchmarks.speed.throughput import BenchmarkResult, Measurement, ThroughputComparison
from vitdeploy.errors import InputError
from vitdeploy.images import ImageItem, ImageSet


def timed(**changes: Any) -> Measurement:
    fields = {"name": "a", "batch": 1, "warmups": 1, "repeats": 1, "samples_ms": (1.0, 2.0)}
    return Measurement(**(fields | changes))


def benchmark(*counts: int, engines: int = 1, has_source: bool = True) -> BenchmarkResult:
    comparisons = tuple(
        ThroughputComparison(1, tuple(timed(name=str(i)) for i in range(count)), (), True, 0.0)
        for count in counts
    )
    return BenchmarkResult(tuple("e" * engines), has_source, "source", comparisons)


class TestTimings:
    def test_whole_ones_are_read_back(self) -> None:
        found = benchmark(2, 2)
        assert from_json(to_json(found), BenchmarkResult, origin="x") == found
        assert found.measurements_of("e") == (timed(name="1"), timed(name="1"))

    @pytest.mark.parametrize(
        "change",
        [{"samples_ms": ()}, {"samples_ms": (0.0,)}, {"samples_ms": (-1.0, 2.0)}, {"batch": 0}],
        ids=str,
    )
    def test_no_time_is_no_timing(self, change: dict[str, Any]) -> None:
        with pytest.raises(InputError, match="above zero"):
            timed(**change)

    @pytest.mark.parametrize(("counts", "engines"), [((), 1), ((1,), 1), ((2, 3), 1), ((1,), 0)])
    def test_every_engine_has_its_measurement(self, counts: tuple[int, ...], engines: int) -> None:
        with pytest.raises(InputError, match="sessions"):
            benchmark(*counts, engines=engines)

    def test_a_damaged_file_is_named(self) -> None:
        text = to_json(benchmark(2)).replace("1.0", "0.0").replace("2.0", "0.0")
        with pytest.raises(InputError, match=r"benchmark\.json .*above zero"):
            from_json(text, BenchmarkResult, origin="benchmark.json")


def compared() -> AccuracyComparison:
    logits = np.eye(3, dtype=np.float32)[np.arange(60) % 3]
    other = logits.copy()
    other[0] = other[1]
    return compare(logits, other, None)


@pytest.mark.parametrize("change", [{"images": 0}, {"max_drop_points": 0.0}], ids=str)
def test_a_comparison_of_nothing_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="above zero"):
        replace(compared(), **change)


@pytest.mark.parametrize(
    ("labels", "answered"), [(("a", "b", "c"), "b"), ((), "1"), (("a",), None)]
)
def test_names_of_classes_are_all_there_or_numbers(
    tmp_path: Path, labels: tuple[str, ...], answered: str | None
) -> None:
    from PIL import Image

    Image.new("RGB", (8, 8)).save(tmp_path / "0.png")
    images = ImageSet(tmp_path, (ImageItem(tmp_path / "0.png"),) * 60)
    source, engine = np.eye(3, dtype=np.float32)[[0] * 60], np.eye(3, dtype=np.float32)[[1] * 60]
    given = ("engine", compared(), source, engine, images, labels)
    if answered is None:
        with pytest.raises(InputError, match="answers 3 classes and has names for 1"):
            evaluation.flips_of(*given)
        return
    (flip,) = evaluation.flips_of(*given)
    assert flip.engine_prediction == answered
