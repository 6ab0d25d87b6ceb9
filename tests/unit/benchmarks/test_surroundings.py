"""What stands beside timings, on an engine that is really built; and the way from files."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

import vitdeploy.benchmarks.speed.end_to_end as under_test
from vitdeploy import api
from vitdeploy.artifacts.engine import Engine
from vitdeploy.artifacts.onnx_model import read_onnx_model
from vitdeploy.backends import registry
from vitdeploy.benchmarks.speed import surroundings
from vitdeploy.benchmarks.speed.driving import OwnDriver
from vitdeploy.benchmarks.speed.end_to_end import measure_end_to_end
from vitdeploy.benchmarks.speed.machine import EnergyMeter, observe
from vitdeploy.benchmarks.speed.roofline import MachinePeak
from vitdeploy.benchmarks.speed.scenario_runs import run_scenarios
from vitdeploy.benchmarks.speed.scenarios import ScenarioConfig
from vitdeploy.benchmarks.speed.surroundings import Machine, noise, with_surroundings, work_beside
from vitdeploy.benchmarks.speed.throughput import (
    BenchmarkResult,
    Measurement,
    ThroughputComparison,
    TimedEngine,
)
from vitdeploy.demo import assets
from vitdeploy.errors import InputError, UnstableMeasurementError
from vitdeploy.images import scan

PEAK = MachinePeak(100.0, 400.0, 20.0, "a test")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = tmp_path_factory.mktemp("engine")
    for path in assets.GRAPH.parent.glob(f"{assets.GRAPH.stem}*"):
        shutil.copy(path, folder)
    graph = read_onnx_model(folder / assets.GRAPH.name)
    return api.build_engine(graph, registry.get("onnxruntime"), folder)


def timed(engine: Engine, ms: float) -> BenchmarkResult:
    measured = Measurement("engine", 1, 1, 1, (ms, ms))
    return BenchmarkResult(
        (engine.manifest.engine_digest,),
        False,
        "engine",
        (ThroughputComparison(1, (measured,), (), True, 0.0),),
        engines=(TimedEngine("onnxruntime", "fp32"),),
    )


def surrounded(engine: Engine, ms: float, root: Path) -> BenchmarkResult:
    machine = Machine(threads=1, meter=EnergyMeter(root=root), peak=lambda: PEAK)
    return with_surroundings(timed(engine, ms), [engine], [], observe(1), machine=machine)


def test_each_engine_has_its_share_and_its_memory(engine: Engine, tmp_path: Path) -> None:
    found = surrounded(engine, 100.0, tmp_path)
    work = work_beside(engine)
    assert work is not None
    (share,) = found.shares
    assert share.share == pytest.approx(sum(work.macs.values()) / 100e9 / 0.1)
    (memory,) = found.memory
    assert memory.peak_bytes > engine.size_bytes
    assert [conditions.threads for conditions in found.conditions] == [1, 1]
    assert found.energy == ()


def test_a_system_that_tells_no_memory_is_no_error(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(surroundings, "can_tell", lambda: False)
    assert surrounded(engine, 100.0, tmp_path).memory == ()


def test_a_timing_no_machine_could_reach_is_refused(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(UnstableMeasurementError, match="did not wait"):
        surrounded(engine, 0.05, tmp_path)


def test_a_peak_measured_on_a_busy_machine_is_measured_again(
    engine: Engine, tmp_path: Path
) -> None:
    """At a tenth of the peak the engine would seem impossible; the better figures count."""
    busy = MachinePeak(10.0, 40.0, 25.0, "a test")
    peaks = iter([busy, busy, PEAK])
    work = work_beside(engine)
    assert work is not None
    ms = 1000 * sum(work.macs.values()) / 50e9  # half of the peak
    machine = Machine(
        threads=1, meter=EnergyMeter(root=tmp_path), clock=lambda: 0.0, peak=lambda: next(peaks)
    )
    found = with_surroundings(timed(engine, ms), [engine], [], observe(1), machine=machine)
    assert found.peak == MachinePeak(100.0, 400.0, 25.0, "a test")
    assert [share.share for share in found.shares] == [pytest.approx(0.5)]


def test_an_engine_apart_from_its_graph_has_no_share(engine: Engine, tmp_path: Path) -> None:
    for path in (engine.path, engine.path.with_suffix(".json")):
        shutil.copy(path, tmp_path)
    apart = Engine(tmp_path / engine.path.name, engine.manifest)
    assert work_beside(apart) is None
    assert surrounded(apart, 0.05, tmp_path).shares == ()


class Clocked:
    """A session, an image decoder and a clock; each takes its time of the same clock."""

    name = "clocked"

    def __init__(self) -> None:
        self.now, self.images = 0.0, 0

    def clock(self) -> float:
        return self.now

    def run(self, batch: NDArray) -> NDArray[np.float32]:
        self.now += 0.004 * len(batch)
        self.images += len(batch)
        return np.zeros((len(batch), 10), np.float32)


@pytest.fixture
def few(tmp_path: Path) -> Path:
    for i in range(6):
        place = tmp_path / "images" / f"class {i % 2}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((20, 30, 3), 40 * i, np.uint8)).save(place / f"{i}.png")
    return tmp_path / "images"


def test_stages_are_told_apart(engine: Engine, few: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Clocked()
    decode = under_test.decode

    def slow(path: Path) -> Image.Image:
        session.now += 0.007
        return decode(path)

    monkeypatch.setattr(under_test, "decode", slow)
    found = measure_end_to_end(engine, session, scan(few), 2, clock=session.clock)
    assert found.decode_ms == pytest.approx(7)
    assert found.engine_ms == pytest.approx(4)
    assert found.prepare_ms == pytest.approx(0)
    assert session.images == 12  # all of them twice
    assert found.images_per_second == pytest.approx(1 / 0.004)
    assert found.in_words().endswith("the engine 4 ms: decoding takes most")
    with pytest.raises(InputError, match="do not fill a batch of 8"):
        measure_end_to_end(engine, session, scan(few), 8)


def test_scenarios_stay_within_the_batches_of_the_engine(engine: Engine) -> None:
    session = Clocked()
    largest: list[int] = []

    def run(batch: NDArray) -> NDArray[np.float32]:
        largest.append(len(batch))
        return Clocked.run(session, batch)

    monkey = type("Watched", (), {"name": "watched", "run": staticmethod(run)})()
    driver = OwnDriver(session.clock, lambda s: setattr(session, "now", session.now + s))
    config = ScenarioConfig(min_seconds=0, max_seconds=1, bound_ms=60, largest_batch=256)
    chosen = ("single-stream", "multi-stream", "offline", "server")
    found = run_scenarios(engine, monkey, chosen, config, driver)
    assert max(largest) <= engine.manifest.batch[2] == 64
    assert [len(stream.latencies_ms) > 0 for stream in found.streams] == [True, True]
    assert found.offline is not None
    assert found.offline.enough().batch == 1
    assert found.server is not None
    assert len(found.in_words()) == 4
    assert noise(engine, 2).shape == (2, 3, 192, 192)
