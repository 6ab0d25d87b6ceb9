"""The self-test finds what it is there to find, on every backend that runs here."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray
from trt_graphs import needs_rtx

from vitdeploy import api, environment
from vitdeploy.backends import registry
from vitdeploy.backends.base import Availability
from vitdeploy.backends.onnxruntime_ import GraphSession
from vitdeploy.backends.selftest.graph import CLASSES, images, tiny_vit
from vitdeploy.backends.selftest.run import selftest
from vitdeploy.cli.selftest import command
from vitdeploy.errors import GateFailedError, MissingDependencyError
from vitdeploy.target import parse_targets


@pytest.fixture(scope="module")
def logits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, NDArray[np.float32]]:
    folder = tmp_path_factory.mktemp("selftest")
    found = {}
    for precision in ("fp32", "fp16"):
        model = tiny_vit(precision, folder / f"{precision}.onnx")
        onnx.checker.check_model(str(model.path), full_check=True)
        found[precision] = GraphSession(model.path).run(images(64))
    return found


def test_the_graph_answers_differently_to_each_image(
    logits: dict[str, NDArray[np.float32]],
) -> None:
    """One that answers alike to all would agree with anything."""
    found = logits["fp32"]
    assert found.shape == (64, CLASSES)
    shares = np.bincount(found.argmax(1), minlength=CLASSES) / 64
    assert np.count_nonzero(shares) >= 4
    assert shares.max() < 0.6
    assert found.std(axis=0).min() > 0.05


def test_fp16_is_far_within_its_limit(logits: dict[str, NDArray[np.float32]]) -> None:
    difference = np.abs(logits["fp16"] - logits["fp32"]).max() / logits["fp32"].std(axis=0).mean()
    assert 0 < difference < 0.02


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_backends_of_this_machine_pass(name: str) -> None:
    ticks = iter(range(10_000))
    found = selftest(registry.get(name), clock=lambda: next(ticks) / 1000)
    assert found.comparison is not None
    assert found.comparison.max_error < 1e-4
    assert found.comparison.agreement == 1
    assert found.passed
    assert found.latency_ms == {"1": pytest.approx(1), "8": pytest.approx(1)}
    block = found.block()
    for part in (found.version, environment.describe().cpu, "onnxruntime 1.", "PASSED"):
        assert part in block


@needs_rtx
@pytest.mark.skipif(environment.has_nvidia_driver(), reason="gpu: tests/gpu runs it there")
def test_rtx_builds_and_says_that_nothing_was_run() -> None:
    found = selftest(registry.get("tensorrt-rtx"))
    assert found.targets == ("sm86", "sm89", "sm120")
    assert found.comparison is None
    assert found.size_bytes > 300_000
    assert "NOT RUN: no NVIDIA GPU" in found.block()
    assert "PASSED" not in found.block()
    one = selftest(registry.get("tensorrt-rtx"), parse_targets("sm89"))
    assert one.targets == ("sm89",)
    assert one.size_bytes < found.size_bytes


class Defective:
    """ONNX Runtime whose sessions spoil what they answer."""

    name = "onnxruntime"

    def __init__(self, spoil: Callable[[NDArray], NDArray]) -> None:
        self._real: Any = registry.get("onnxruntime")
        self._spoil = spoil
        self.closed = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def load(self, engine: Any, *, threads: int | None = None, alone: bool = True) -> Any:
        self._session = self._real.load(engine)
        return self

    def run(self, batch: NDArray) -> NDArray:
        return self._spoil(self._session.run(batch))

    def close(self) -> None:
        self.closed += 1


def swapped(logits: NDArray) -> NDArray:
    return logits[:, ::-1]


def not_a_number(logits: NDArray) -> NDArray:
    return np.where(np.arange(len(logits))[:, None] == 0, np.nan, logits)


def of_the_first(logits: NDArray) -> NDArray:
    return np.repeat(logits[:1], len(logits), axis=0)


class OneBuffer:
    """Answers that a later run writes over."""

    def __init__(self) -> None:
        self._buffer = np.zeros((64, CLASSES), np.float32)

    def __call__(self, logits: NDArray) -> NDArray:
        self._buffer[: len(logits)] = logits
        return self._buffer[: len(logits)]


@pytest.mark.parametrize("spoil", [swapped, not_a_number, of_the_first, OneBuffer()])
def test_planted_defects_fail(spoil: Callable[[NDArray], NDArray]) -> None:
    backend = Defective(spoil)
    found = selftest(backend)
    assert found.comparison is not None
    assert not found.passed
    assert found.comparison.max_error > 0.1
    assert found.block().endswith("FAILED")
    assert backend.closed == 1


def test_a_backend_that_is_not_here_is_a_missing_dependency(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = registry.get("openvino")
    monkeypatch.setattr(backend, "probe", lambda: Availability(False, reason="not installed"))
    with pytest.raises(MissingDependencyError, match="not installed"):
        selftest(backend)


def test_the_command_prints_the_block_and_json() -> None:
    shown = CliRunner().invoke(command, ["--backend", "onnxruntime"], standalone_mode=False)
    assert shown.exception is None
    assert "PASSED" in shown.output
    told = CliRunner().invoke(command, ["--backend", "onnxruntime", "--json"])
    record = json.loads(told.stdout)
    assert record["passed"] is True
    assert record["comparison"]["images"] == 28


def test_the_command_fails_where_the_answers_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "choose_backend", lambda *_: (Defective(swapped), "planted"))
    result = CliRunner().invoke(command, [], standalone_mode=False)
    assert isinstance(result.exception, GateFailedError)
    assert "FAILED" in result.output


def test_the_engine_of_the_test_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    result = selftest(registry.get("onnxruntime"))
    assert replace(result, latency_ms={}).passed
    assert list(tmp_path.iterdir()) == []
