"""The main job, as `make demo` runs it: promises about the embedded model are kept."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from vitdeploy.benchmarks.report.markdown import table_rows
from vitdeploy.benchmarks.report.model import Report, ReportRow
from vitdeploy.benchmarks.report.read import read_report

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = tmp_path_factory.mktemp("demo")
    command = [sys.executable, "-m", "vitdeploy", "demo", "--seconds", "5"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("report.json", "report.md", "report.html"):
        assert (folder / "report" / name).stat().st_size > 1000
    page = (folder / "report" / "report.html").read_text("utf-8")
    # Namespaces are names, not addresses; nothing else may point out of the page.
    assert set(re.findall(r"https?://[^\s\"'<)]+", page)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    return read_report(folder / "report" / "report.json")


def int8_rows(report: Report) -> list[ReportRow]:
    return [row for row in report.rows if row.precision == "int8-fp32"]


def test_the_source_is_a_real_classifier(report: Report) -> None:
    assert report.evaluation_images == 2000
    assert report.native_top1 is not None
    assert report.native_top1 >= 0.9
    assert report.source_top1 is not None
    assert report.source_top1 >= 0.88
    entropies = [row.accuracy.source_entropy_bits for row in report.rows if row.accuracy]
    assert min(entropies) > 3.0


def test_int8_agrees_with_the_source(report: Report) -> None:
    rows = int8_rows(report)
    assert {row.backend for row in rows} == {"onnxruntime", "openvino"}
    for row in rows:
        assert row.accuracy is not None
        assert row.accuracy.agreement >= 0.99
        assert row.accuracy.drop_upper_points is not None
        assert row.accuracy.drop_upper_points <= 0.5
        assert row.accuracy.verdict == "pass"


def test_every_engine_that_runs_here_was_timed_against_pytorch(report: Report) -> None:
    for row in report.rows:
        if row.status == "ok":
            assert [speedup.batch for speedup in row.speedups] == [1, 8]
            assert {speedup.baseline for speedup in row.speedups} == {"PyTorch eager fp32"}


def test_tensorrt_rtx_engines_were_built_for_three_gpus(report: Report) -> None:
    rows = [row for row in report.rows if row.backend == "tensorrt-rtx"]
    assert [(row.precision, row.targets) for row in rows] == [
        ("fp16", ("sm86", "sm89", "sm120")),
        ("int8-fp16", ("sm86", "sm89", "sm120")),
    ]
    assert all(row.status in ("built", "ok") and row.size_bytes for row in rows)


def test_the_readme_shows_the_table_the_demo_prints(report: Report) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    block = re.search(r"<!-- demo table -->\n(.*?)<!-- end", readme, flags=re.DOTALL)
    assert block is not None
    shown = [
        [cell.strip() for cell in line.strip("|\n ").split("|")] for line in block[1].split("\n")
    ]
    shown = [cells for cells in shown if len(cells) > 1]
    header, rows = table_rows(report)
    assert shown[0] == list(header)
    # Timings differ from run to run, accuracy by an image or two from CPU to CPU.
    assert [cells[0] for cells in shown[2:]] == [row[0] for row in rows]
    for cells, row in zip(shown[2:], rows, strict=True):
        assert points(cells[2]) == pytest.approx(points(row[2]), abs=0.2)


def points(cell: str) -> float:
    """'91.35 %' becomes 91.35, a dash 0."""
    return float(cell.removesuffix(" %")) if cell.endswith("%") else 0.0
