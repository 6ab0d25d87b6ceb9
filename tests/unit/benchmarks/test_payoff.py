"""Whether INT8 paid, what memory an engine takes, and a fair PyTorch to compare with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from report_samples import report

import vitdeploy.benchmarks.speed.engines as under_test
from vitdeploy import api
from vitdeploy.artifacts.engine import Engine
from vitdeploy.artifacts.files import from_json, to_json
from vitdeploy.artifacts.onnx_model import read_onnx_model
from vitdeploy.backends import registry
from vitdeploy.benchmarks.report.figures import payoff_sentences
from vitdeploy.benchmarks.report.html import to_html
from vitdeploy.benchmarks.report.markdown import to_markdown
from vitdeploy.benchmarks.speed.engines import measure_engines
from vitdeploy.benchmarks.speed.memory import peak_memory
from vitdeploy.benchmarks.speed.payoff import payoffs
from vitdeploy.benchmarks.speed.throughput import (
    BenchmarkResult,
    Measurement,
    ThroughputComparison,
    TimedEngine,
    TimingConfig,
    measure_interleaved,
)
from vitdeploy.demo import assets
from vitdeploy.errors import EngineError
from vitdeploy.models.load import ModelRequest

NOISE = np.random.default_rng(0).lognormal(0, 0.05, 24)


def timed(name: str, ms: float, batch: int = 8) -> Measurement:
    own = np.random.default_rng(len(name)).lognormal(0, 0.01, 24)
    return Measurement(name, batch, 1, 1, tuple((ms * NOISE * own).tolist()))


def result(engines: Mapping[tuple[str, str], float], forms: Mapping[str, float]) -> BenchmarkResult:
    measured = [timed(name, ms) for name, ms in forms.items()]
    measured += [timed(" ".join(key), ms) for key, ms in engines.items()]
    return BenchmarkResult(
        tuple(map(str, range(len(engines)))),
        bool(forms),
        "PyTorch eager fp32",
        (ThroughputComparison(8, tuple(measured), (), True, 0.0),),
        tuple(forms)[1:],
        tuple(TimedEngine(*key) for key in engines),
    )


class TestPayoff:
    def test_int8_has_to_beat_the_best_float(self) -> None:
        found = result(
            {("tensorrt", "fp32"): 60, ("tensorrt", "fp16"): 30, ("tensorrt", "int8-fp16"): 20}, {}
        )
        (payoff,) = payoffs(found)
        assert payoff.paid is True
        assert payoff.float_precision == "fp16"
        assert payoff.ratio is not None
        assert payoff.ratio[0] == pytest.approx(1.5, rel=0.02)
        assert [precision for precision, _ in payoff.ms_per_image] == ["fp32", "fp16", "int8-fp16"]
        assert payoff.in_words().startswith("TensorRT at batch 8: INT8 with FP16 paid, 1.")

    def test_slower_int8_did_not_pay_and_a_tie_is_no_answer(self) -> None:
        slow = payoffs(result({("openvino", "fp32"): 20, ("openvino", "int8-fp32"): 24}, {}))[0]
        assert slow.paid is False
        assert "did not pay, 0.8" in slow.in_words()
        tie = payoffs(result({("openvino", "fp32"): 20, ("openvino", "int8-fp32"): 20.0}, {}))[0]
        assert tie.paid is None
        assert "no difference that could be told" in tie.in_words()

    def test_timings_that_did_not_settle_are_no_answer(self) -> None:
        found = result({("openvino", "fp32"): 20, ("openvino", "int8-fp32"): 10}, {})
        loose = replace(found, comparisons=(replace(found.comparisons[0], stable=False),))
        assert [payoffs(each)[0].paid for each in (found, loose)] == [True, None]
        told = payoffs(loose)[0].in_words()
        assert "INT8 is not known to pay (timings did not settle), 1.99x" in told

    def test_runtimes_are_judged_each_by_itself(self) -> None:
        found = payoffs(
            result({("openvino", "int8-fp32"): 5, ("onnxruntime", "fp32"): 20}, {"PyTorch": 30})
        )
        assert [payoff.paid for payoff in found] == [None, None]
        assert "OpenVINO at batch 8: no float engine" in found[0].in_words()
        assert "ONNX Runtime at batch 8: no quantized engine" in found[1].in_words()

    def test_results_of_older_versions_have_no_answer(self) -> None:
        old = BenchmarkResult(
            ("e",), False, "a", (ThroughputComparison(8, (timed("a", 1),), (), True, 0.0),)
        )
        assert payoffs(old) == ()


def test_a_report_says_it_in_a_sentence() -> None:
    found = report({"fp32": (60, None), "int8-fp32": (25, None)}, images_digest="")
    (sentence,) = payoff_sentences(found)
    assert sentence.startswith("ONNX Runtime at batch 8: INT8 paid, 2.")
    assert f"- {sentence}" in to_markdown(found).replace("\\", "")
    assert sentence in to_html(found)
    assert payoff_sentences(report({"fp32": (60, None)})) == []


class TestFairBaseline:
    def test_engines_are_compared_with_the_fastest_form_too(self) -> None:
        forms = {"PyTorch eager fp32": 80, "PyTorch compiled fp32": 60, "PyTorch eager bf16": 90}
        found = result({("onnxruntime", "int8-fp32"): 20}, forms)
        (speedup,) = found.fair_speedups_of("0")
        assert speedup.baseline == "PyTorch compiled fp32"
        assert speedup.ratio == pytest.approx(3, rel=0.02)
        assert found.measurements_of("0")[0].name == "onnxruntime int8-fp32"
        assert found.source_measurements()[0].name == "PyTorch eager fp32"
        assert from_json(to_json(found), BenchmarkResult, origin="x") == found

    def test_half_precision_leaves_the_source_as_it_is(self) -> None:
        from vitdeploy.backends.torch_ import TorchSession

        source = api.load_model(ModelRequest(name=str(assets.CHECKPOINT)))
        size = source.resolution
        batch = np.random.default_rng(0).standard_normal((2, 3, *size), dtype=np.float32)
        exact = TorchSession(source, threads=1)
        before = exact.run(batch)
        half = TorchSession(source, threads=1, kind="bf16")
        assert half.name == "PyTorch eager bf16"
        rounded = half.run(batch)
        assert np.array_equal(exact.run(batch), before)
        assert 1e-4 < np.abs(rounded - before).max() / before.std() < 0.1


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = tmp_path_factory.mktemp("engine")
    return api.build_engine(read_onnx_model(assets.GRAPH), registry.get("onnxruntime"), folder)


class TestMemory:
    def test_a_larger_batch_takes_more(self, engine: Engine) -> None:
        small, large = (peak_memory(engine, batch, threads=1) for batch in (1, 64))
        assert 0 < small.before_bytes < small.peak_bytes < large.peak_bytes
        assert small.peak_bytes - small.before_bytes > engine.size_bytes
        assert "the engine and its runtime" in small.in_words()

    def test_what_this_process_holds_is_not_counted(self, engine: Engine) -> None:
        held = np.ones(200 << 20, np.uint8)
        assert peak_memory(engine, 1, threads=1).before_bytes < held.nbytes

    def test_a_process_that_fails_says_why(self, engine: Engine, tmp_path: Path) -> None:
        lost = Engine(tmp_path / "lost.engine", engine.manifest)
        with pytest.raises(EngineError, match=r"lost\.engine could not be run in a process"):
            peak_memory(lost, 1)


def test_a_session_behind_an_engine_is_waited_for(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]

    class Lazy:
        name, started = "lazy", 0

        def run(self, batch: NDArray) -> NDArray[np.float32]:
            self.started += 1
            now[0] += 1e-6
            return np.zeros((len(batch), 2), np.float32)

        def synchronize(self) -> None:
            now[0] += 0.01 * self.started
            self.started = 0

        def device_ms(self) -> float:
            return 7.0

    found: list[float | None] = []

    def measured(sessions, batch, **_):
        config = TimingConfig(min_round_ms=0, window=3)
        compared = measure_interleaved(sessions, batch, config=config, clock=lambda: now[0])
        found.extend(f() for m in compared.measurements for f in (m.p50_ms, m.device_p50_ms))
        return compared

    monkeypatch.setattr(under_test, "measure_interleaved", measured)
    measure_engines([engine], [Lazy()], [], batch_sizes=[2])
    assert found == [pytest.approx(10, rel=0.01), 7.0]
