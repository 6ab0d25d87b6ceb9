"""`pipeline.run`: what fails on the way is a row of the report, and the others go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from vitdeploy import api, pipeline
from vitdeploy.api import judging
from vitdeploy.artifacts import reference
from vitdeploy.artifacts.engine import Engine
from vitdeploy.artifacts.onnx_model import read_onnx_model
from vitdeploy.demo import assets
from vitdeploy.errors import EngineError, GateFailedError
from vitdeploy.images import scan

pytest.importorskip("openvino", reason="openvino: not installed")


class NoNumbers:
    name = "broken"

    def run(self, batch: NDArray) -> NDArray[np.float32]:
        return np.full((len(batch), 10), np.nan, np.float32)


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Backends that were timed; OpenVINO's engines answer no numbers."""
    real, seen = api.load_engine, []

    def loaded(engine: Engine, **options: Any) -> Any:
        broken = engine.manifest.backend == "openvino"
        return NoNumbers() if broken else real(engine, **options)

    def benchmark(engines: Any, *_: Any, **__: Any) -> None:
        seen.extend(engine.manifest.backend for engine in engines)

    monkeypatch.setattr(judging, "load_engine", loaded)
    monkeypatch.setattr(api, "benchmark", benchmark)
    return seen


def run(backends: list[str], folder: Path, **options: Any) -> Any:
    graph = read_onnx_model(assets.GRAPH)
    labels = graph.description.source.labels
    images = scan(assets.images_folder("evaluation"), labels=labels).take(range(0, 2000, 100))
    stored = reference.load(assets.reference_path(assets.RESOLUTION))
    baseline = api.baseline_from_reference(stored, graph.description, images)
    judgement = pipeline.Judgement(baseline=baseline, images=images)
    plans = [pipeline.EnginePlan(backend, graph) for backend in backends]
    return pipeline.run(plans, judgement, folder, **options)


def test_a_void_comparison_is_a_failed_row_and_is_not_timed(
    timed: list[str], tmp_path: Path
) -> None:
    report = run(["openvino", "tensorrt", "onnxruntime"], tmp_path, keep_going=True)
    states = {row.backend: row.status for row in report.rows}
    assert states == {"openvino": "failed", "tensorrt": "failed", "onnxruntime": "ok"}
    assert timed == ["onnxruntime"]
    notes = {row.backend: row.note for row in report.rows}
    assert "finite" in notes["openvino"]
    assert "tensorrt" in notes["tensorrt"].lower()


def test_it_ends_the_run_where_nobody_asked_to_go_on(timed: list[str], tmp_path: Path) -> None:
    with pytest.raises(GateFailedError, match="finite"):
        run(["openvino", "onnxruntime"], tmp_path)
    assert not timed


def test_nothing_left_is_an_error(timed: list[str], tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="no engine of the plan") as caught:
        run(["openvino", "tensorrt"], tmp_path, keep_going=True)
    assert "FP32 on OpenVINO" in str(caught.value)
    assert not timed
