"""Findings that make no sense are refused, wherever they come from."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_samples import accuracy, details, report

from vitdeploy.artifacts.files import from_json, to_json
from vitdeploy.benchmarks.accuracy import evaluation
from vitdeploy.benchmarks.accuracy.classes import AccuracyComparison, compare
from vitdeploy.benchmarks.accuracy.features import compare_features
from vitdeploy.benchmarks.accuracy.multilabel import compare_multilabel
from vitdeploy.benchmarks.accuracy.regression import compare_regression
from vitdeploy.benchmarks.report.merge import merge
from vitdeploy.benchmarks.report.read import read_report
from vitdeploy.benchmarks.report.write import write_merged, write_report
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


FOREIGN = report({"int8-fp32": (25, accuracy(9, 7))})
FOREIGN = replace(FOREIGN, rows=(replace(FOREIGN.rows[0], details=details()),))


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        ("rows 0 size_bytes", -5, "rows[0].size_bytes is -5, which is below zero"),
        ("rows 0 speedups 0 ratio", -2.0, "speedups[0].ratio is -2"),
        ("rows 0 details from_files 0 decode_ms", -1.5, "from_files[0].decode_ms is -1.5"),
        ("rows 0 details scenarios streams 0 latencies_ms 3", -0.1, "latencies_ms[3] is -0.1"),
        ("rows 0 details memory 0 peak_bytes", -1, "memory[0].peak_bytes is -1"),
        ("rows 0 accuracy engine_top1", 1.5, "engine_top1 is 1.5, which is no share of 1"),
        ("rows 0 accuracy cosine_min", -1.5, "cosine_min is -1.5, which is no share of 1"),
        ("rows 0 throughput 0 samples_ms 3", 0.0, "samples_ms[3] is 0, which is no time"),
        ("native_top1", -0.2, "native_top1 is -0.2"),
        ("evaluation_images", -3, "evaluation_images is -3"),
        ("environment memory_bytes", -3, "environment.memory_bytes is -3"),
    ],
)
def test_figures_that_cannot_be_are_refused(
    place: str, value: float, said: str, tmp_path: Path
) -> None:
    (path := tmp_path / "report.json").write_text(to_json(FOREIGN), encoding="utf-8")
    assert read_report(path) == FOREIGN
    content = json.loads(path.read_text(encoding="utf-8"))
    *way, last = [int(step) if step.isdecimal() else step for step in place.split()]
    inside = content
    for step in way:
        inside = inside[step]
    assert inside[last] >= 0
    inside[last] = value
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_report(path)
    assert said in str(caught.value)
    assert "vitdeploy report" in str(caught.value.hint)


def test_what_engines_gain_or_lose_entirely_can_be(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    truth = generator.random((200, 6)) < 0.4
    source = (2 * truth - 1 + generator.normal(0, 1.5, truth.shape)).astype(np.float32)
    better = (source + 0.3 * (2 * truth - 1)).astype(np.float32)
    kinds = {
        "fp32": compare_multilabel(source, better, truth),
        "fp16": accuracy(1, 9),
        "bf16": compare_regression(source, -source),
        "int8-fp32": compare_features(source, -source),
    }
    assert kinds["fp32"].loss().high < 0
    assert kinds["bf16"].engine_score < 0
    whole = report({precision: (25, found) for precision, found in kinds.items()})
    (path := tmp_path / "report.json").write_text(to_json(whole), encoding="utf-8")
    assert read_report(path) == whole


def test_what_moves_the_cursor_or_turns_text_around_is_spelled_out(tmp_path: Path) -> None:
    evil = "fast\x1b[2J\u202egnp\x9b"
    foreign = replace(FOREIGN, rows=(replace(FOREIGN.rows[0], name=evil, note=evil),))
    (path := tmp_path / "report.json").write_text(to_json(foreign), encoding="utf-8")
    found = read_report(path)
    assert found.rows[0].name == r"fast\x1b[2J\u202egnp\x9b"
    other = replace(found, environment=replace(found.environment, cpu="B"))
    written = write_merged(merge([found, other]), tmp_path)
    write_report(found, tmp_path / "own")
    for file in (*written.values(), *(tmp_path / "own").iterdir()):
        assert not set(evil[4:] + "\r") & set(file.read_text(encoding="utf-8")) - set("[2Jgnp")
