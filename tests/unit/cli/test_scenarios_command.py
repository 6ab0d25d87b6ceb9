"""`vitdeploy benchmark --scenario`: found, told and kept beside the engine."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from click.testing import CliRunner

from vitdeploy import api
from vitdeploy.artifacts.files import from_json, to_json
from vitdeploy.artifacts.onnx_model import read_onnx_model
from vitdeploy.backends import registry
from vitdeploy.benchmarks.speed import loadgen
from vitdeploy.benchmarks.speed.driving import OwnDriver
from vitdeploy.benchmarks.speed.scenarios import ScenarioResult
from vitdeploy.cli import cli
from vitdeploy.demo import assets


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at the clock is 2 ms after the last one: nothing depends on the machine."""
    ticks = count()
    driver = OwnDriver(lambda: 0.002 * next(ticks), lambda _: None)
    monkeypatch.setattr(loadgen, "best_driver", lambda: driver)


@pytest.mark.usefixtures("steady")
def test_each_scenario_is_told_and_kept(tmp_path: Path) -> None:
    engine = api.build_engine(read_onnx_model(assets.GRAPH), registry.get("onnxruntime"), tmp_path)
    asked = ["--scenario", "single-stream", "--seconds", "1"]
    found = CliRunner().invoke(cli, ["benchmark", str(engine.path), *asked])
    assert found.exit_code == 0, found.output
    assert "queries are sent by vitdeploy" in found.output
    assert "single-stream: p50 2 ms (2 to 2), p90 2 ms (2 to 2), p99 2 ms" in found.output
    kept = engine.path.with_name(engine.path.stem + ".scenarios.json")
    result = from_json(kept.read_text(encoding="utf-8"), ScenarioResult, origin="kept")
    assert [stream.scenario for stream in result.streams] == ["single-stream"]
    assert [stream.batch for stream in result.streams] == [1]
    assert result.engine_digest == engine.manifest.engine_digest
    page = reported(engine.path, tmp_path / "report")
    assert "| FP32 on ONNX Runtime | single-stream | 2 ms (2 to 2) |" in page
    kept.write_text(to_json(replace(result, engine_digest="00" * 32)), encoding="utf-8")
    assert "is of an older build of this engine" in reported(engine.path, tmp_path / "later")


def reported(engine: Path, folder: Path) -> str:
    """The Markdown that `vitdeploy report` makes of an engine."""
    found = CliRunner().invoke(cli, ["report", str(engine), "-o", str(folder)])
    assert found.exit_code == 0, found.output
    return (folder / "report.md").read_text(encoding="utf-8")


def test_an_unknown_scenario_is_refused() -> None:
    found = CliRunner().invoke(cli, ["benchmark", "--scenario", "offlne"])
    assert found.exit_code == 2
    assert "single-stream" in found.output


def test_records_are_json(tmp_path: Path) -> None:
    text = json.dumps({"engine_digest": "a", "streams": [], "offline": None, "server": None,
                       "schema_version": 1})  # fmt: skip
    assert from_json(text, ScenarioResult, origin="x") == ScenarioResult("a")
