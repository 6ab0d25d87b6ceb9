"""`vitdeploy report` of reports: merging, and the exit code for CI."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from report_samples import L4, accuracy, report

from vitdeploy.artifacts.engine import Engine
from vitdeploy.artifacts.files import to_json
from vitdeploy.benchmarks.findings import write_finding
from vitdeploy.benchmarks.report.model import Report
from vitdeploy.benchmarks.speed.throughput import (
    BenchmarkResult,
    Measurement,
    ThroughputComparison,
)
from vitdeploy.cli import cli
from vitdeploy.cli.report import _benchmark
from vitdeploy.errors import GateFailedError, InputError

FINE = accuracy(9, 7)
BEFORE = report({"int8-fp32": (25, FINE)}, seed=1)


def written(folder: Path, name: str, content: Report) -> str:
    path = folder / name
    path.write_text(to_json(content), encoding="utf-8")
    return str(path)


def run(*arguments: str):
    return CliRunner().invoke(cli, ["report", *arguments], catch_exceptions=True)


def test_two_devices_become_one_comparison(tmp_path: Path) -> None:
    on_gpu = report({"fp16": (4, FINE)}, environment=L4, backend="tensorrt", targets=("sm89",))
    names = written(tmp_path, "cpu.json", BEFORE), written(tmp_path, "l4.json", on_gpu)
    found = run(*names, "-o", str(tmp_path / "out"))
    assert found.exit_code == 0, found.output
    assert "FP16 on TensorRT (sm89) is the fastest" in found.output
    for name in ("merged.md", "merged.html"):
        assert "at 224x224 in 2 environments" in (tmp_path / "out" / name).read_text()
    found = run(*names, "--json", "-o", str(tmp_path / "out"))
    devices = json.loads(found.stdout)["devices"]
    assert [device["name"] for device in devices] == ["A CPU @ 2.5 GHz, 4 cores", "NVIDIA L4"]


def test_one_machine_is_one_device(tmp_path: Path) -> None:
    on_openvino = report({"int8-fp32": (20, FINE)}, backend="openvino", created="2026-05-06")
    paths = written(tmp_path, "a.json", BEFORE), written(tmp_path, "b.json", on_openvino)
    found = run(*paths, "--json", "-o", str(tmp_path / "out"))
    (device,) = json.loads(found.stdout)["devices"]
    engines = [row["name"] for each in device["reports"] for row in each["rows"]]
    assert engines == ["INT8 on ONNX Runtime", "INT8 on OpenVINO"]
    newer = written(tmp_path, "c.json", replace(BEFORE, created="2026-05-06"))
    found = run(paths[0], newer, "-o", str(tmp_path / "none"))
    assert isinstance(found.exception, InputError)
    assert f"{paths[0]} and {newer} both tell of INT8 on ONNX Runtime" in str(found.exception)
    assert not (tmp_path / "none").exists()


def test_a_report_is_not_merged_with_itself(tmp_path: Path) -> None:
    path = written(tmp_path, "cpu.json", BEFORE)
    copy = written(tmp_path, "copy.json", BEFORE)
    told = {path: f"{path} is given twice", copy: f"{path} and {copy} are the same"}
    for other, said in told.items():
        found = run(path, other, "-o", str(tmp_path / "out"))
        assert isinstance(found.exception, InputError)
        assert said in str(found.exception)
    assert not (tmp_path / "out").exists()


def test_other_images_are_not_merged(tmp_path: Path) -> None:
    other = replace(BEFORE, images_digest="00" * 32)
    found = run(written(tmp_path, "a.json", BEFORE), written(tmp_path, "b.json", other))
    assert isinstance(found.exception, InputError)
    assert "the images differ" in str(found.exception)


def test_a_regression_is_listed_and_fails(tmp_path: Path) -> None:
    later = report({"int8-fp32": (30, FINE)}, seed=2)
    old, new = written(tmp_path, "old.json", BEFORE), written(tmp_path, "new.json", later)
    found = run(new, "--baseline", old, "-o", str(tmp_path))
    assert isinstance(found.exception, GateFailedError)
    assert found.exception.exit_code == 10
    assert "INT8 on ONNX Runtime, speed at batch 8:" in found.output
    assert "worse" in found.output
    kept = json.loads((tmp_path / "regressions.json").read_text())
    assert kept["changes"][0]["judgement"] == "worse"


def test_nothing_worse_passes(tmp_path: Path) -> None:
    later = report({"int8-fp32": (25, FINE)}, seed=2, busy=1.3)
    old, new = written(tmp_path, "old.json", BEFORE), written(tmp_path, "new.json", later)
    found = run(new, "--baseline", old, "-o", str(tmp_path))
    assert found.exit_code == 0, found.output
    assert "compared by the source in the same rounds" in found.output


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["a.json", "b.engine"], "not both"),
        (["a.json"], "one report is nothing to merge"),
        (["a.json", "b.json", "--baseline", "c.json"], "with one report"),
        (["a.json", "--baseline", "./a.json"], "is the report that it is compared with"),
        (["a.engine", "--baseline", "x/../out/report.json", "-o", "out"], "would be overwritten"),
        (["--baseline", "report/report.json"], "would be overwritten by the new report"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: list[str], why: str) -> None:
    found = run(*arguments)
    assert found.exit_code == 2
    assert why in " ".join(found.output.split())


def test_timings_of_another_folder_are_left_out_aloud(tmp_path: Path) -> None:
    manifest: Any = SimpleNamespace(engine_digest="00" * 32)
    engines = [Engine(tmp_path / folder / "x.engine", manifest) for folder in "aab"]
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "benchmark.json").write_text("{}")
    said: list[str] = []
    assert _benchmark(engines, said.append) is None
    assert said == [
        f"left out: {tmp_path / 'b' / 'benchmark.json'} is of another run: report on each folder, "
        "and merge those",
        "not timed yet: run `vitdeploy benchmark`",
    ]


def test_what_only_an_earlier_run_timed_is_said(tmp_path: Path) -> None:
    def run_of(engines: str, *batches: int) -> BenchmarkResult:
        timed = (
            tuple(Measurement(name, batch, 1, 1, (1.0,)) for name in engines) for batch in batches
        )
        turns = zip(batches, timed, strict=True)
        compared = tuple(ThroughputComparison(b, found, (), True, 0.0) for b, found in turns)
        return BenchmarkResult(tuple(engines), False, engines[0], compared, resolution=(8, 8))

    model = SimpleNamespace(resolution=(8, 8))
    manifests: list[Any] = [SimpleNamespace(engine_digest=d, model=model) for d in "ab"]
    engines = [Engine(tmp_path / f"{m.engine_digest}.engine", m) for m in manifests]
    newest = run_of("a", 8)
    for run in (run_of("ab", 1, 8), newest):
        write_finding(tmp_path / "benchmark.json", run, lambda _: None)
    said: list[str] = []
    assert _benchmark(engines, said.append) == newest
    (line,) = said
    assert "timed a.engine at batch 1, b.engine at batch 1, b.engine at batch 8 in an" in line
