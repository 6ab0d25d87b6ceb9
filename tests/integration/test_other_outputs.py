"""Engines that answer something else than logits, through the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import DEMO_TOML, Outcome, require_one_error, run

from vitdeploy.artifacts.files import read_text


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("outputs")
    (folder / "vitdeploy.toml").write_text(DEMO_TOML, encoding="utf-8")
    return folder


def engine_of(output: str, place: Path) -> tuple[Outcome, Path]:
    cache = place / "cache"
    exported = run(["export", "--output", output, "--out", output], place, cache)
    assert exported.code == 0, exported.errors
    (graph,) = (place / output).glob("*.onnx")
    arguments = ["build-engine", str(graph), "--backend", "onnxruntime", "-o", output]
    built = run(arguments, place, cache)
    assert built.code == 0, built.errors
    (engine,) = (place / output).glob("*.engine")
    return run(["evaluate", str(engine)], place, cache), engine


def test_probabilities_are_compared_with_the_sources_own(place: Path) -> None:
    """Against logits the largest difference would be many deviations."""
    outcome, engine = engine_of("probabilities", place)
    assert outcome.code == 0, outcome.errors
    found = read_text(engine.with_suffix(".accuracy.json"), what="findings")
    assert '"agreement": 1.0' in found
    assert '"cosine_min": 0.9999' in found or '"cosine_min": 1.0' in found


def test_features_are_not_judged_by_their_largest_column(place: Path) -> None:
    outcome, _ = engine_of("features", place)
    require_one_error(outcome, 2, "answers features", "benchmark")
