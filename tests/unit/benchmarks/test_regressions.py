"""What became worse is told, and what did not is not, however busy the machine was."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from report_samples import CPU, L4, accuracy, report

from vitdeploy.artifacts.files import from_json, to_json
from vitdeploy.benchmarks.report.regressions import (
    RegressionReport,
    Tolerance,
    drop_change,
    regressions,
    speed_change,
)
from vitdeploy.errors import GateFailedError, InputError

FINE = accuracy(9, 7)
BEFORE = report({"fp32": (60, accuracy(0, 0)), "int8-fp32": (25, FINE)}, seed=1)


def again(fp32_ms: float = 60, int8_ms: float = 25, *, seed: int = 2, **more):
    engines = {"fp32": (fp32_ms, accuracy(0, 0)), "int8-fp32": (int8_ms, more.pop("found", FINE))}
    return report(engines, seed=seed, **more)


def worse(found: RegressionReport) -> list[tuple[str, str]]:
    return [(change.engine, change.what) for change in found.regressions()]


class TestSpeed:
    def test_the_same_builds_on_another_day_are_no_regression(self) -> None:
        for seed in range(2, 22):
            assert worse(regressions(BEFORE, again(seed=seed))) == []

    def test_a_busier_machine_is_no_regression(self) -> None:
        """The source slowed down as much, in the same rounds."""
        assert worse(regressions(BEFORE, again(busy=1.5))) == []

    def test_a_slower_engine_is_one(self) -> None:
        found = regressions(BEFORE, again(int8_ms=27.5, busy=0.8))
        assert worse(found) == [("INT8 on ONNX Runtime", "speed at batch 8")]
        (change,) = found.regressions()
        assert change.change == pytest.approx(25 / 27.5 - 1, abs=0.01)
        with pytest.raises(GateFailedError, match="Runtime, speed at batch 8") as caught:
            found.require_none()
        assert caught.value.exit_code == 10
        assert found.speed_basis == "the source in the same rounds"

    def test_timings_that_did_not_settle_prove_nothing(self) -> None:
        slower = again(int8_ms=40)
        loose = replace(slower, rows=tuple(replace(row, stable=False) for row in slower.rows))
        for before, now in ((BEFORE, loose), (loose, BEFORE)):
            found = regressions(before, now)
            assert worse(found) == []
            told = [c.in_words() for c in found.changes if c.what.startswith("speed")]
            assert len(told) == 2
            assert all("did not settle: time it again" in words for words in told)

    def test_what_is_not_timed_any_more_is_gone(self) -> None:
        later = again()
        untimed = replace(later.rows[1], throughput=())
        found = regressions(BEFORE, replace(later, rows=(later.rows[0], untimed)))
        assert worse(found) == [("INT8 on ONNX Runtime", "speed at batch 8")]
        assert "not timed now, gone" in found.regressions()[0].in_words()

    def test_a_little_slower_is_within_what_runs_differ_by(self) -> None:
        later = again(int8_ms=25.8)
        assert worse(regressions(BEFORE, later)) == []
        assert worse(regressions(BEFORE, later, Tolerance(speed=0.01))) != []

    def test_a_faster_engine_is_said_to_be(self) -> None:
        judged = {c.what: c.judgement for c in regressions(BEFORE, again(fp32_ms=50)).changes[:1]}
        assert judged == {"speed at batch 8": "better"}

    def test_another_pytorch_is_no_measure(self) -> None:
        """Where the source itself became faster, engines are compared by their own times."""
        newer = replace(CPU, packages={**CPU.packages, "torch": "3.0"})
        found = regressions(BEFORE, again(environment=newer))
        assert worse(found) == []
        assert found.speed_basis != "the source in the same rounds"

    def test_chance_alone_is_rarely_significant(self) -> None:
        """Of 400 pairs of runs that differ by chance only, at most one in ten is told."""
        generator = np.random.default_rng(0)
        told = 0
        for seed in range(400):
            old, new = (generator.lognormal(0, 0.1, 24) for _ in range(2))
            _, low, high = speed_change(old, new, 0.95, seed)
            told += not low <= 0 <= high
        assert told <= 40

    def test_same_is_said_only_where_the_interval_is_narrow(self) -> None:
        judged, bounds = set(), []
        for spread, seed in ((0.01, 3), (0.4, 4)):
            later, noise = again(seed=seed), np.exp(np.tile((0, spread, -spread), 8))
            noisy = tuple(
                replace(row, throughput=(replace(m, samples_ms=tuple(
                    (np.array(m.samples_ms) * noise).tolist())),))
                for row in later.rows for m in row.throughput
            )  # fmt: skip
            (change,) = (
                c for c in regressions(BEFORE, replace(later, rows=noisy)).changes
                if c.what.startswith("speed") and "INT8" in c.engine
            )  # fmt: skip
            judged.add((spread, change.judgement))
            bounds.append((change.low, change.high))
        assert judged == {(0.01, "same"), (0.4, "open")}
        assert -0.05 <= bounds[0][0] <= bounds[0][1] <= 0.05
        assert bounds[1][0] < -0.05 or bounds[1][1] > 0.05
        assert "cannot be told, the interval is too wide" in change.in_words()

    def test_figures_stand_in_terms_of_what_is_compared(self) -> None:
        (change, *_) = regressions(BEFORE, again(busy=1.5)).changes
        assert change.before.startswith("1.3")
        assert "x as fast as the source (7.6" in change.before
        assert "x as fast as the source (11." in change.now
        newer = replace(CPU, packages={**CPU.packages, "torch": "3.0"})
        (change, *_) = regressions(BEFORE, again(environment=newer)).changes
        assert change.before.endswith("ms/image")
        assert "source" not in change.before

    def test_the_change_is_that_of_medians(self) -> None:
        old, new = np.full(24, 100.0), np.full(24, 90.0)
        assert speed_change(old, new, 0.95) == pytest.approx((-0.1, -0.1, -0.1))


class TestAccuracy:
    def test_a_loss_that_grew_is_a_regression(self) -> None:
        found = regressions(BEFORE, again(found=accuracy(120, 7)))
        assert worse(found) == [("INT8 on ONNX Runtime", "accuracy (drop)")]

    def test_a_few_images_are_not(self) -> None:
        assert worse(regressions(BEFORE, again(found=accuracy(13, 8)))) == []

    def test_same_is_said_only_within_the_limit_or_of_equal_answers(self) -> None:
        few, fewer = accuracy(1, 1, 200), accuracy(1, 0, 200)
        before = replace(BEFORE, rows=(replace(BEFORE.rows[1], accuracy=few),))
        judged = []
        for found in (few, fewer):
            rows = (replace(again().rows[1], accuracy=found),)
            changes = regressions(before, replace(again(), rows=rows)).changes
            judged += [c.judgement for c in changes if c.what.startswith("accuracy")]
        assert judged == ["same", "open"]
        (_, change) = [c for c in regressions(BEFORE, again(found=accuracy(10, 7))).changes
                       if c.what.startswith("accuracy")]  # fmt: skip
        assert change.judgement == "same"

    def test_the_interval_holds_the_true_change(self) -> None:
        """Against simulated engines on images drawn anew: the side of caution."""
        generator = np.random.default_rng(1)
        held = 0
        for _ in range(60):
            pairs = generator.multinomial(5000, [0.010, 0.004, 0.986], size=2)
            old, new = (accuracy(int(lost), int(gained)) for lost, gained, _ in pairs)
            _, low, high = drop_change(old, new, 0.95)
            held += low <= 0 <= high
        assert held >= 54

    def test_it_is_the_difference_of_both_drops(self) -> None:
        change, low, high = drop_change(accuracy(9, 7), accuracy(59, 7), 0.95)
        assert change == pytest.approx(100 * 50 / 5000)
        assert 0 < low < change < high

    def test_what_is_not_evaluated_any_more_is_gone(self) -> None:
        found = regressions(BEFORE, again(found=None))
        assert worse(found) == [("INT8 on ONNX Runtime", "accuracy")]


def test_an_engine_that_is_missing_or_failed_is_a_regression() -> None:
    fewer = report({"fp32": (60, accuracy(0, 0))}, seed=2)
    assert worse(regressions(BEFORE, fewer)) == [("INT8 on ONNX Runtime", "engine")]
    later = again()
    failed = replace(later.rows[1], status="failed", note="refused", throughput=(), accuracy=None)
    found = regressions(BEFORE, replace(later, rows=(later.rows[0], failed)))
    assert worse(found) == [("INT8 on ONNX Runtime", "engine")]
    assert "failed: refused" in found.regressions()[0].in_words()
    assert worse(regressions(fewer, BEFORE)) == []


def test_engines_of_one_kind_are_compared_with_themselves_whatever_their_order() -> None:
    """Two INT8 engines of one runtime, one twice as fast as the other."""
    slow, fast = again(int8_ms=50).rows[1], again(int8_ms=25).rows[1]
    slow, fast = replace(slow, engine_digest="ab" * 32), replace(fast, engine_digest="cd" * 32)
    before, later = (replace(again(), rows=rows) for rows in ((slow, fast), (fast, slow)))
    assert worse(regressions(before, later)) == []
    rebuilt = replace(again(), rows=(fast, replace(slow, engine_digest="ef" * 32)))
    assert worse(regressions(before, rebuilt)) == [(slow.name, "engine")]


def test_a_larger_file_is_a_regression() -> None:
    later = again()
    larger = replace(later.rows[1], size_bytes=21_000_000)
    found = regressions(BEFORE, replace(later, rows=(later.rows[0], larger)))
    assert worse(found) == [("INT8 on ONNX Runtime", "size")]
    assert found.regressions()[0].in_words().endswith("worse +5.00 % (+5.00 to +5.00)")


def test_the_same_measurements_are_no_comparison() -> None:
    """Under whatever name, and however often the report was written."""
    with pytest.raises(InputError, match="the same measurements"):
        regressions(BEFORE, replace(BEFORE, created="2030-01-01 00:00 UTC"))


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(InputError, match="two machines: cpu"):
        regressions(BEFORE, again(environment=L4))
    with pytest.raises(InputError, match="images differ"):
        regressions(BEFORE, again(images_digest="34" * 32))
    with pytest.raises(InputError, match="no engine is in both"):
        regressions(BEFORE, again(backend="openvino"))
    with pytest.raises(InputError, match="shares from 0 to 1"):
        Tolerance(speed=float("nan"))


def test_it_reads_back() -> None:
    found = regressions(BEFORE, again(int8_ms=40))
    assert from_json(to_json(found), RegressionReport, origin="x") == found
