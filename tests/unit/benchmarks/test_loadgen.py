"""MLPerf LoadGen as the driver: it finds what vitdeploy's own does, and ends as it does."""

from __future__ import annotations

import platform
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from vitdeploy.benchmarks.speed import loadgen
from vitdeploy.benchmarks.speed.driving import OwnDriver
from vitdeploy.benchmarks.speed.latencies import percentile
from vitdeploy.benchmarks.speed.scenarios import ScenarioConfig
from vitdeploy.errors import EngineError, UnstableMeasurementError

IMAGES = np.zeros((64, 3, 4, 4), np.float32)
ONE = IMAGES[:1]


class Sleeper:
    """Takes `ms` by the real clock, as LoadGen has no other."""

    name = "sleeper"

    def __init__(self, ms: float) -> None:
        self.ms = ms

    def run(self, batch: NDArray) -> NDArray[np.float32]:
        time.sleep(self.ms / 1000)
        return np.zeros((len(batch), 10), np.float32)


HAS_NO_WHEEL = platform.machine() == "aarch64" or sys.version_info >= (3, 14)


INTERRUPTED = """
import signal, time
import numpy as np
from vitdeploy.benchmarks.speed.loadgen import LoadGenDriver
from vitdeploy.benchmarks.speed.scenarios import ScenarioConfig

# Python leaves an interrupt ignored where a shell started it behind `&`.
signal.signal(signal.SIGINT, signal.default_int_handler)
ONE = np.zeros((1, 3, 2, 2), np.float32)
runs = []

class Interrupting:
    name = "interrupting"

    def run(self, batch):
        runs.append(len(batch))
        if len(runs) == 3:
            signal.raise_signal(signal.SIGINT)
        time.sleep(0.005)
        return np.zeros((len(batch), 2), np.float32)

driver, config = LoadGenDriver(), ScenarioConfig(min_queries=300, min_seconds=0)
try:
    driver.stream(Interrupting(), ONE, queries=400, seconds=0)
except KeyboardInterrupt:
    print("stream" if len(runs) < 50 else f"{len(runs)} runs")
runs.clear()
try:
    driver.serve(Interrupting(), ONE, 500.0, config)
except KeyboardInterrupt:
    print("serve")
"""


class TestLoadGen:
    """MLPerf's own driver finds what ours finds."""

    @pytest.fixture(autouse=True)
    def _needs_loadgen(self) -> None:
        if HAS_NO_WHEEL:
            pytest.importorskip("mlperf_loadgen", reason="no wheel for this platform")

    def test_it_is_what_drives(self) -> None:
        assert loadgen.best_driver().name == "MLPerf LoadGen"

    @pytest.mark.slow  # in real time: another process at work moves both apart
    @pytest.mark.parametrize("images", [1, 8])
    def test_streams_agree(self, images: int) -> None:
        ours, theirs = (
            percentile(
                driver.stream(Sleeper(6), IMAGES[:images], queries=60, seconds=0), 0.5
            ).value_ms
            for driver in (OwnDriver(), loadgen.LoadGenDriver())
        )
        assert 6 <= ours < 9
        assert theirs == pytest.approx(ours, rel=0.15)

    @pytest.mark.slow  # in real time, as above
    def test_servers_agree_on_what_waiting_costs(self) -> None:
        """Load one half of a queue: half of the queries wait, and one in ten for longer than
        another query takes."""
        config = ScenarioConfig(min_queries=300, min_seconds=0, bound_ms=1e6)
        found = [
            driver.serve(Sleeper(5), ONE, 100.0, config)
            for driver in (OwnDriver(), loadgen.LoadGenDriver())
        ]
        assert [len(latencies) for latencies in found] == [300, 300]
        ours, theirs = (percentile(latencies, 0.9).value_ms for latencies in found)
        assert min(ours, theirs) > 8
        assert theirs == pytest.approx(ours, rel=0.5)

    def test_what_fails_in_the_session_is_raised_here(self) -> None:
        class Broken(Sleeper):
            def run(self, batch: NDArray) -> NDArray[np.float32]:
                raise EngineError("lost", hint="find it")

        driver = loadgen.LoadGenDriver()
        with pytest.raises(EngineError, match="lost"):
            driver.stream(Broken(1), ONE, queries=5, seconds=0)
        with pytest.raises(EngineError, match="lost"):
            driver.serve(Broken(1), ONE, 500.0, ScenarioConfig(min_queries=5, min_seconds=0))

    def test_an_interrupt_ends_the_run_and_nothing_is_ended_twice(self, tmp_path: Path) -> None:
        """LoadGen's memory would break; what was not run yet is not run any more.

        In a process of its own: an interrupt that came late would end the tests.
        """
        script = tmp_path / "interrupted.py"
        script.write_text(INTERRUPTED, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, str(script)], capture_output=True, text=True, timeout=300, check=False
        )
        assert (done.returncode, done.stdout.split()) == (0, ["stream", "serve"]), done.stderr

    @pytest.mark.slow  # in real time, as above
    def test_it_ends_after_the_seconds_given(self) -> None:
        """Two or three of a hundred queries are answered by then; only those are counted."""
        config = ScenarioConfig(min_queries=100, min_seconds=0)
        start = time.perf_counter()
        waited = loadgen.LoadGenDriver().serve(Sleeper(100), ONE, 1000.0, config, seconds=0.25)
        assert time.perf_counter() - start < 8  # all of them would take ten
        assert len(waited) in (2, 3)

    def test_what_waits_is_run_together_here_too(self) -> None:
        sizes: list[int] = []

        class Counting(Sleeper):
            def run(self, batch: NDArray) -> NDArray[np.float32]:
                sizes.append(len(batch))
                return super().run(batch)

        config = ScenarioConfig(min_queries=60, min_seconds=0)
        waited = loadgen.LoadGenDriver().serve(Counting(10), IMAGES[:4], 300.0, config)
        assert len(waited) == sum(sizes) == 60
        assert max(sizes) == 4


def test_a_trace_without_queries_is_no_finding() -> None:
    with pytest.raises(UnstableMeasurementError, match="no finished query"):
        loadgen.read_trace('{"traceEvents":[\n{"name":"Wait","ph":"X"},\n')
