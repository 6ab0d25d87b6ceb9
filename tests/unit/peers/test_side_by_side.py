"""The harness of peers: one that fails is a row, figures are its own, the page is the records'."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.peers import child, record
from tests.peers.child import last_words
from tests.peers.leads import Compared, columns_lost
from tests.peers.record import Cost, PeerRecord, Setting
from tests.peers.registry import PEERS, Peer
from tests.peers.render import rendered
from tests.peers.runs import Bench, run_peer
from tests.peers.subjects import SUBJECTS, Prepared
from vitdeploy.artifacts.files import from_json
from vitdeploy.demo import assets

DEMO = replace(SUBJECTS["demo"], judged=False)
SETTING = Setting(
    date="2026-01-01", load=0.0, machine="one", cores=2, threads=1, python="3.11", versions={}
)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """The demo without images: enough for what fails, and for what is only measured."""
    prepared = Prepared(tmp_path / "demo")
    prepared.folder.mkdir()
    shutil.copyfile(assets.GRAPH, prepared.model_path)
    return Bench(subject=DEMO, prepared=prepared, threads=1)


@pytest.mark.parametrize(
    ("module", "function", "said"),
    [
        ("not_installed_anywhere", "quantize", "No module named 'not_installed_anywhere'"),
        ("tests.unit.peers.broken_peers", "refuse", "ValueError: cannot quantize a Gelu"),
        ("tests.unit.peers.broken_peers", "crash", "SIGABRT"),
    ],
)
def test_a_peer_that_fails_is_a_record_with_its_words(
    module: str, function: str, said: str, bench: Bench
) -> None:
    peer = Peer(
        key="broken", title="broken", module=module, function=function, packages=(), setting=""
    )
    found = run_peer(bench, peer)
    assert said in found.error
    assert (found.cost, found.answers, found.acceptance) == (None, (), None)


def test_peak_memory_is_not_the_parents(bench: Bench, tmp_path: Path) -> None:
    """What getrusage calls the largest size would count this array in."""
    held = np.ones(2**27, np.float32)
    folders = str(bench.prepared.folder), str(tmp_path)
    error = child.run(
        "tests.peers.worker", "tests.peers.float_:copy", *folders, log=tmp_path / "log", threads=1
    )
    assert error == ""
    cost = from_json((tmp_path / "cost.json").read_text("utf-8"), Cost, origin="cost")
    assert cost.imported_bytes <= cost.peak_bytes < held.nbytes
    assert cost.size_bytes == assets.GRAPH.stat().st_size


def test_a_failed_peer_stays_in_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    record.write(_row("modelopt", error="ImportError: no libcudart"))
    page = rendered()
    assert page.count("| NVIDIA Model Optimizer | failed |") == 1
    assert "ImportError: no libcudart" in page
    for subject in SUBJECTS.values():
        assert subject.title[1:] in page
    for peer in PEERS.values():
        assert page.count(f"\n| {peer.title} |") == len(SUBJECTS)


def test_the_page_is_made_of_the_records() -> None:
    page = Path(__file__).parents[3] / "docs" / "peers.md"
    assert page.read_text("utf-8") == rendered()


def test_every_column_we_lose_is_named() -> None:
    rows = {
        "float": _row("float", megabytes=0.1),
        "vitdeploy": _row("vitdeploy", megabytes=2.0, cpu=5.0),
        "ort-static": _row("ort-static", megabytes=1.0, cpu=5.01),
        "modelopt": _row("modelopt", error="failed"),
        "nncf-onnx": None,
    }
    title, line = columns_lost([Compared(DEMO, rows)])
    assert title.startswith("- **file size**: ")
    assert line == (
        "  - demo: ONNX Runtime static, default with 1.00 MB before vitdeploy with 2.00 MB"
    )


def test_without_a_figure_of_our_own_nothing_is_led() -> None:
    rows = {"vitdeploy": _row("vitdeploy", error="refused"), "ort-static": _row("ort-static")}
    assert any("vitdeploy has no figure" in line for line in columns_lost([Compared(DEMO, rows)]))


def test_last_words_are_the_error_itself() -> None:
    printed = "loading\nTraceback (most recent call last):\n  File x\n    y\nKeyError: 'a'\n\n"
    assert last_words(printed) == "KeyError: 'a'"
    assert last_words("") == "it said nothing"


def _row(peer: str, *, megabytes: float = 1.0, cpu: float = 5.0, error: str = "") -> PeerRecord:
    row = PeerRecord(subject="demo", peer=peer, images=128, setting=SETTING, error=error)
    if error:
        return row
    cost = Cost(
        file="x.onnx",
        wall_seconds=1.0,
        cpu_seconds=cpu,
        peak_bytes=1000,
        imported_bytes=500,
        size_bytes=int(megabytes * 1e6),
    )
    return replace(row, cost=cost)
