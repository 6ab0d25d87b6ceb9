"""From nothing to the first answer: import, load and first run, each by itself."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from vitdeploy.artifacts.engine import Engine, write_manifest
from vitdeploy.artifacts.onnx_model import OnnxModel
from vitdeploy.backends import registry
from vitdeploy.backends.base import BuildOptions
from vitdeploy.backends.cold_start import measure_cold_start
from vitdeploy.errors import EngineError


@pytest.fixture(scope="module", params=["onnxruntime", "openvino"])
def engine(
    request: pytest.FixtureRequest,
    fp32_model: OnnxModel,
    tmp_path_factory: pytest.TempPathFactory,
) -> Engine:
    output = tmp_path_factory.mktemp("cold") / "tiny.engine"
    options = BuildOptions(threads=1, batch=(2, 2, 2))
    return registry.get(request.param).build(fp32_model, options, output)


def test_the_parts_of_a_cold_start(engine: Engine) -> None:
    started = time.perf_counter()
    found = measure_cold_start(engine, threads=1)
    wall = time.perf_counter() - started
    assert found.backend == engine.manifest.backend
    assert found.engine_digest == engine.manifest.engine_digest
    assert found.batch == 2
    parts = (found.import_seconds, found.load_seconds, found.first_run_seconds)
    assert all(part > 0 for part in parts)
    assert found.seconds_to_first_answer() == pytest.approx(sum(parts))
    assert found.seconds_to_first_answer() < wall
    # The library is imported in the child, not found in memory as it is here.
    assert found.import_seconds > 0.01


def test_an_engine_that_does_not_start_says_why(engine: Engine, tmp_path: Path) -> None:
    copy = Engine(tmp_path / "a.engine", replace(engine.manifest, backend_version="0.0.1"))
    copy.path.write_bytes(engine.path.read_bytes())
    write_manifest(copy)
    with pytest.raises(EngineError, match=r"a\.engine did not start .*0\.0\.1") as caught:
        measure_cold_start(copy)
    assert caught.value.hint
    with pytest.raises(EngineError, match="no answer within 0 s"):
        measure_cold_start(copy, timeout_seconds=0.01)
