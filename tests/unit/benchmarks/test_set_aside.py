"""A finding never silently takes the place of one that tells more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from report_samples import details

from vitdeploy.artifacts.files import from_json, read_text
from vitdeploy.benchmarks.findings import newest_first, read_finding, write_finding
from vitdeploy.benchmarks.speed.machine import Energy
from vitdeploy.benchmarks.speed.memory import PeakMemory
from vitdeploy.benchmarks.speed.scenarios import ScenarioResult, StreamResult
from vitdeploy.benchmarks.speed.throughput import (
    BenchmarkResult,
    Measurement,
    ThroughputComparison,
)


def run_of(engines: str, batches: tuple[int, ...] = (1, 8)) -> BenchmarkResult:
    """Timings of engines whose digests are single letters, beside PyTorch."""
    return BenchmarkResult(
        tuple(engines), True, "PyTorch",
        tuple(
            ThroughputComparison(
                batch, tuple(Measurement(name, batch, 1, 1, (2.0, 2.0)) for name in "s" + engines),
                (), True, 0.0,
            )
            for batch in batches
        ),
        resolution=(32, 32),
    )  # fmt: skip


BOTH = run_of("ab")
UNSETTLED = replace(
    BOTH, comparisons=tuple(replace(c, stable=False, drift=0.2) for c in BOTH.comparisons)
)
MEMORY = (PeakMemory("a", 8, 2, 1),)


@pytest.mark.parametrize(
    ("older", "newer", "replaced"),
    [
        (BOTH, BOTH, True),
        (run_of("a"), BOTH, True),
        (BOTH, run_of("a"), False),
        (BOTH, run_of("ab", (8,)), False),
        (BOTH, replace(BOTH, resolution=(64, 64)), False),
        (replace(BOTH, memory=MEMORY), BOTH, False),
        (BOTH, replace(BOTH, memory=MEMORY), True),
        (BOTH, replace(run_of("ab"), has_source=False, comparisons=tuple(
            replace(c, measurements=c.measurements[1:]) for c in BOTH.comparisons)), False),
        (BOTH, UNSETTLED, False),
        (UNSETTLED, BOTH, True),
        (replace(BOTH, energy=(Energy("a", 8, 0.1, 5.0, 2.0, "RAPL"),)), BOTH, False),
    ],
    ids=["same", "more", "fewer engines", "fewer batches", "size", "no memory", "memory", "alone",
         "unsettled", "settled", "no energy"],
)  # fmt: skip
def test_a_run_that_measured_less_leaves_the_older_one(
    older: BenchmarkResult, newer: BenchmarkResult, replaced: bool, tmp_path: Path
) -> None:
    path, said = tmp_path / "benchmark.json", []
    write_finding(path, older, said.append)
    write_finding(path, newer, said.append)
    kept = [read_finding(each, BenchmarkResult, said.append) for each in newest_first(path)]
    assert kept == ([newer] if replaced else [newer, older])
    told = "in place of an older one" if replaced else "benchmark-1.json, which tells what the new"
    assert told in " ".join(said)


def test_the_newest_comes_first_and_nothing_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "benchmark.json"
    for engine in "abcdefghijkl":
        write_finding(path, run_of(engine), lambda _: None)
    found = [from_json(read_text(each, what="x"), BenchmarkResult, origin="x")
             for each in newest_first(path)]  # fmt: skip
    assert [run.engine_digests for run in found] == [(name,) for name in reversed("abcdefghijkl")]
    (tmp_path / "benchmark-x.json").touch()
    (tmp_path / "my-benchmark-3.json").touch()
    assert len(newest_first(path)) == 12


@pytest.mark.parametrize("content", [b'{"schema_version": 99}', b"\xff\xfe damaged"])
def test_what_this_version_does_not_read_is_kept_as_it_is(content: bytes, tmp_path: Path) -> None:
    path, said = tmp_path / "benchmark.json", []
    path.write_bytes(content)
    (tmp_path / "benchmark-999999999.json").write_text("taken")
    write_finding(path, BOTH, said.append)
    kept = tmp_path / "benchmark-1000000000.json"
    assert kept.read_bytes() == content
    assert f"kept: {kept}, which this version does not read" in said
    assert newest_first(path)[1] == kept
    assert read_finding(path, BenchmarkResult, said.append) == BOTH


def test_scenarios_that_were_not_run_again_stay() -> None:
    older = details().scenarios
    assert older is not None
    assert older.server is not None
    stream = replace(older.streams[0], latencies_ms=tuple(np.ones(400).tolist()))
    again = ScenarioResult(older.engine_digest, (stream,)).with_older(older)
    assert {s.scenario: s for s in again.streams}["single-stream"] == stream
    assert {s.scenario for s in again.streams} == {"single-stream", "multi-stream"}
    assert (again.offline, again.server) == (older.offline, older.server)
    assert again.supersedes(older)
    rebuilt = ScenarioResult("00", (stream,))
    assert rebuilt.with_older(older) == rebuilt
    stricter = replace(again, server=replace(older.server, bound_ms=1.0)).with_older(older)
    assert stricter.server is not None
    assert stricter.server.bound_ms == 1.0
    assert not stricter.supersedes(older)
    assert isinstance(again.streams[0], StreamResult)
