"""Engines that answer something else than logits, through the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import DEMO_TOML, Outcome, run

from vitdeploy.artifacts.files import read_text
from vitdeploy.demo import assets


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("outputs")
    (folder / "vitdeploy.toml").write_text(DEMO_TOML, encoding="utf-8")
    return folder


def engine_of(output: str, place: Path, *options: str) -> tuple[Outcome, Path]:
    cache = place / "cache"
    exported = run(["export", "--output", output, "--out", output], place, cache)
    assert exported.code == 0, exported.errors
    (graph,) = (place / output).glob("*.onnx")
    arguments = ["build-engine", str(graph), "--backend", "onnxruntime", "-o", output]
    built = run(arguments, place, cache)
    assert built.code == 0, built.errors
    (engine,) = (place / output).glob("*.engine")
    return run(["evaluate", str(engine), *options], place, cache), engine


def test_probabilities_are_compared_with_the_sources_own(place: Path, few: Path) -> None:
    """Against logits the largest difference would be many deviations."""
    options = ("--data", str(few), "--max-drop", "20")
    outcome, engine = engine_of("probabilities", place, *options)
    assert outcome.code == 0, outcome.errors
    found = read_text(engine.with_suffix(".accuracy.json"), what="findings")
    assert '"agreement": 1.0' in found
    assert '"cosine_min": 0.9999' in found or '"cosine_min": 1.0' in found


def test_features_are_judged_by_direction_and_neighbours(place: Path) -> None:
    for folder in sorted(assets.images_folder("evaluation").iterdir()):
        for path in sorted(folder.iterdir())[:16]:  # flat: features have no classes
            (place / "flat").mkdir(exist_ok=True)
            (place / "flat" / f"{folder.name}-{path.name}").write_bytes(path.read_bytes())
    outcome, engine = engine_of("features", place, "--data", "flat")
    assert outcome.code == 0, outcome.errors
    assert "centred cosine: 1.00000" in outcome.output
    found = json.loads(read_text(engine.with_suffix(".accuracy.json"), what="findings"))
    assert found["comparison"]["kind"] == "features"
    assert found["comparison"]["neighbours_kept"] > 0.99
    reported = run(["report", str(engine)], place, place / "cache")
    assert reported.code == 0, reported.errors
    assert "keeps a mean cosine of 1.0000" in reported.output
