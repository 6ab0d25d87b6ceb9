from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from vitdeploy.artifacts.files import from_json, to_json
from vitdeploy.benchmarks.speed.throughput import Measurement, TimingConfig, measure_interleaved
from vitdeploy.errors import EngineError, InputError, UnstableMeasurementError
from vitdeploy.progress import SILENT

BATCH = np.zeros((4, 3, 8, 8), np.float32)


class FakeMachine:
    """A clock that only the sessions move; `slowness` is of the whole machine."""

    def __init__(self, slowness: Callable[[float], float] = lambda _: 1.0) -> None:
        self.now = 0.0
        self.slowness = slowness
        self.order: list[str] = []

    def clock(self) -> float:
        return self.now

    def session(self, name: str, ms: float) -> FakeSession:
        return FakeSession(self, name, lambda _: ms)


class FakeSession:
    def __init__(self, machine: FakeMachine, name: str, ms: Callable[[int], float]) -> None:
        self.machine, self.name, self.ms, self.runs = machine, name, ms, 0

    def run(self, batch: NDArray[np.float32]) -> NDArray[np.float32]:
        self.machine.order.append(self.name)
        self.machine.now += self.ms(self.runs) / 1000 * self.machine.slowness(self.machine.now)
        self.runs += 1
        return np.zeros((len(batch), 10), np.float32)


ONE_RUN = TimingConfig(warmups=1, min_round_ms=0, window=3)


def test_every_session_takes_every_position_equally_often() -> None:
    machine = FakeMachine()
    sessions = [machine.session(name, 10) for name in "ABC"]
    measure_interleaved(sessions, BATCH, config=ONE_RUN, clock=machine.clock)
    every_run = "".join(machine.order)[3:]
    assert every_run == "AABBCCBBCCAACCAABB" * 3  # an untimed run leads each turn
    rounds = every_run[::2]
    for position in range(3):
        assert sorted(rounds[position::3]) == sorted("ABC" * 3)


def test_samples_are_ms_of_one_run_and_ratios_against_the_first() -> None:
    machine = FakeMachine()
    sessions = [machine.session("torch", 30), machine.session("engine", 12)]
    config = TimingConfig(warmups=2, min_round_ms=100, window=4)
    found = measure_interleaved(sessions, BATCH, config=config, clock=machine.clock)
    torch, engine = found.measurements
    assert engine.samples_ms == pytest.approx([12.0] * 12)
    assert (torch.repeats, engine.repeats) == (4, 9)
    assert engine.images_per_second() == pytest.approx(4000 / 12)
    (speedup,) = found.speedups
    assert (speedup.name, speedup.baseline, speedup.batch) == ("engine", "torch", 4)
    assert (speedup.low, speedup.ratio, speedup.high) == pytest.approx((2.5, 2.5, 2.5))
    assert found.stable
    assert found.drift == pytest.approx(0, abs=1e-9)


def test_what_slows_the_machine_leaves_the_ratio() -> None:
    machine = FakeMachine(lambda now: 1 + 0.02 * np.sin(7 * now))
    sessions = [machine.session("torch", 30), machine.session("engine", 10)]
    found = measure_interleaved(sessions, BATCH, config=ONE_RUN, clock=machine.clock)
    assert found.speedups[0].ratio == pytest.approx(3, rel=0.01)


def test_timings_that_never_settle_are_refused_unless_accepted() -> None:
    def measure(accept: bool):
        machine = FakeMachine(lambda now: 1 + now)
        config = TimingConfig(
            warmups=1, min_round_ms=0, window=3, max_seconds=20, accept_unstable=accept
        )
        sessions = [machine.session("torch", 50), machine.session("engine", 25)]
        return measure_interleaved(sessions, BATCH, config=config, clock=machine.clock)

    with pytest.raises(UnstableMeasurementError, match="still differ by") as caught:
        measure(accept=False)
    assert "--accept-unstable" in str(caught.value.hint)
    assert "--seconds" in str(caught.value.hint)
    accepted = measure(accept=True)
    assert not accepted.stable
    assert accepted.drift > 0.05


def test_an_engine_alone_that_slows_down_is_unstable() -> None:
    machine = FakeMachine()
    heating = FakeSession(machine, "engine", lambda runs: 10 * 1.02**runs)
    config = TimingConfig(warmups=1, min_round_ms=0, window=4, max_seconds=3)
    sessions = [machine.session("torch", 10), heating]
    with pytest.raises(UnstableMeasurementError):
        measure_interleaved(sessions, BATCH, config=config, clock=machine.clock)


def test_a_late_start_is_measured_through() -> None:
    machine = FakeMachine()
    settling = FakeSession(machine, "engine", lambda runs: 10 if runs > 30 else 20)
    sessions = [machine.session("torch", 20), settling]
    found = measure_interleaved(sessions, BATCH, config=ONE_RUN, clock=machine.clock)
    assert found.stable
    assert len(found.measurements[1].samples_ms) >= 12


def test_too_little_time_is_unstable_rather_than_a_figure() -> None:
    machine = FakeMachine()
    config = TimingConfig(warmups=1, min_round_ms=0, window=5, max_seconds=0.001)
    sessions = [machine.session("torch", 50), machine.session("engine", 20)]
    with pytest.raises(UnstableMeasurementError) as caught:
        measure_interleaved(sessions, BATCH, config=config, clock=machine.clock)
    assert str(caught.value) == (
        "only 2 rounds fit into 0.001 s, and 18 tell whether timings have settled; so far, "
        "batch 4: torch 12.50 ms/image, engine 5.00 ms/image (2.50x)"
    )


def test_each_batch_size_is_said_when_it_is_measured() -> None:
    class Heard:
        notes: ClassVar[list[str]] = []
        task = staticmethod(SILENT.task)

        def note(self, text: str) -> None:
            self.notes.append(text)

    machine, heard = FakeMachine(), Heard()
    sessions = [machine.session("torch", 30), machine.session("engine", 12)]
    measure_interleaved(sessions, BATCH, config=ONE_RUN, clock=machine.clock, progress=heard)
    assert heard.notes == ["batch 4: torch 7.50 ms/image, engine 3.00 ms/image (2.50x)"]


def test_progress_is_in_seconds_of_the_time_allowed() -> None:
    """How many rounds it takes to settle is not known beforehand; the time it may take is."""

    class Seen:
        tasks: ClassVar[dict[str, int | None]] = {}
        steps: ClassVar[list[int]] = []
        note = staticmethod(SILENT.note)

        @contextmanager
        def task(self, description: str, total: int | None = None) -> Iterator[Seen]:
            self.tasks[description] = total
            yield self

        def advance(self, steps: int = 1) -> None:
            self.steps.append(steps)

    machine, seen = FakeMachine(lambda now: 1 + now), Seen()
    config = TimingConfig(
        warmups=1, min_round_ms=0, window=3, max_seconds=20.5, accept_unstable=True
    )
    sessions = [machine.session("torch", 50), machine.session("engine", 25)]
    measure_interleaved(sessions, BATCH, config=config, clock=machine.clock, progress=seen)
    assert seen.tasks == {"timing 2 sessions at batch 4, seconds": 21}
    assert 20 <= sum(seen.steps) <= 21
    assert min(seen.steps) >= 0


@pytest.mark.parametrize("names", [[], ["a", "a"]])
def test_names_must_tell_sessions_apart(names: list[str]) -> None:
    machine = FakeMachine()
    with pytest.raises(InputError):
        measure_interleaved([machine.session(n, 1) for n in names], BATCH, clock=machine.clock)


class Gpu(FakeSession):
    """Copies take 2 ms of every run, which the device does not count."""

    def device_ms(self) -> float | None:
        return self.ms(self.runs) - 2 if self.runs else None


def test_the_devices_own_time_stands_beside_that_of_whole_runs() -> None:
    machine = FakeMachine()
    gpu = Gpu(machine, "engine", lambda _: 10)
    sessions = [machine.session("torch", 30), gpu]
    found = measure_interleaved(sessions, BATCH, config=ONE_RUN, clock=machine.clock)
    torch, engine = found.measurements
    assert engine.p50_ms() == pytest.approx(10)
    assert engine.device_samples_ms == (8,) * len(engine.samples_ms)
    assert engine.device_p50_ms() == 8
    assert engine.device_in_words() == (
        "engine at batch 4: 8 ms on the device alone, 10 ms with copies and waiting (80% of it "
        "is computing)"
    )
    assert (torch.device_samples_ms, torch.device_p50_ms()) == ((), None)
    assert torch.device_in_words() == ""
    assert from_json(to_json(engine), Measurement, origin="test") == engine
    before = json.loads(to_json(torch))
    del before["device_samples_ms"]  # as files of earlier versions are
    assert from_json(json.dumps(before), Measurement, origin="test") == torch


def test_percentiles_come_from_the_raw_samples() -> None:
    measured = Measurement("a", 2, 1, 1, tuple(float(v) for v in range(101)))
    assert (measured.p50_ms(), measured.p90_ms(), measured.p99_ms()) == (50, 90, 99)
    assert measured.ms_per_image() == 25


@pytest.mark.parametrize(
    "values",
    [
        {"warmups": 0},
        {"window": 0},
        {"tolerance": 0.0},
        {"tolerance": float("nan")},
        {"max_seconds": float("nan")},
        {"max_seconds": -1.0},
        {"min_round_ms": float("nan")},
    ],
    ids=str,
)
def test_configs_without_sense_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        TimingConfig(**values)


class Lazy(FakeSession):
    """Only starts its work; the clock moves when it is waited for."""

    started = 0

    def run(self, batch: NDArray[np.float32]) -> NDArray[np.float32]:
        self.started += 1
        self.machine.now += 1e-6
        return np.zeros((len(batch), 10), np.float32)

    def synchronize(self) -> None:
        self.machine.now += self.started * self.ms(0) / 1000
        self.started = 0


class TestWhatMakesTimingsLie:
    def test_work_that_was_only_started_is_waited_for(self) -> None:
        machine = FakeMachine()
        sessions = [machine.session("torch", 30), Lazy(machine, "engine", lambda _: 12)]
        found = measure_interleaved(sessions, BATCH, config=ONE_RUN, clock=machine.clock)
        assert found.measurements[1].p50_ms() == pytest.approx(12, rel=1e-3)
        assert found.speedups[0].ratio == pytest.approx(2.5, rel=1e-3)

    def test_work_left_from_before_is_not_counted(self) -> None:
        machine = FakeMachine()
        lazy = Lazy(machine, "engine", lambda _: 12)
        lazy.started = 1000
        found = measure_interleaved([lazy], BATCH, config=ONE_RUN, clock=machine.clock)
        assert max(found.measurements[0].samples_ms) == pytest.approx(12, rel=1e-3)

    @pytest.mark.parametrize("view", [False, True])
    def test_a_result_in_reused_memory_is_refused(self, view: bool) -> None:
        class Reusing(FakeSession):
            buffer = np.zeros((8, 10), np.float32)

            def run(self, batch: NDArray[np.float32]) -> NDArray[np.float32]:
                super().run(batch)
                return self.buffer[: len(batch)] if view else self.buffer

        machine = FakeMachine()
        sessions = [machine.session("torch", 10), Reusing(machine, "engine", lambda _: 5)]
        with pytest.raises(EngineError, match="engine answers in the memory of its last"):
            measure_interleaved(sessions, BATCH, config=ONE_RUN, clock=machine.clock)

    def test_a_clock_that_goes_backwards_is_refused(self) -> None:
        machine = FakeMachine()
        back = FakeSession(machine, "engine", lambda runs: 10 if runs != 6 else -4000)
        with pytest.raises(UnstableMeasurementError, match="went backwards by 4 s"):
            measure_interleaved([back], BATCH, config=ONE_RUN, clock=machine.clock)

    @pytest.mark.parametrize("jump_ms", [40.0, -8.0])
    def test_a_clock_that_jumps_is_told_by_a_second_one(self, jump_ms: float) -> None:
        machine = FakeMachine()
        true = [0.0]

        class Witnessed(FakeSession):
            def run(self, batch: NDArray[np.float32]) -> NDArray[np.float32]:
                true[0] += 0.010
                return super().run(batch)

        jumping = Witnessed(machine, "a", lambda runs: 10 + jump_ms * (runs == 6))
        with pytest.raises(
            UnstableMeasurementError, match="where a second clock counted"
        ) as caught:
            measure_interleaved(
                [jumping], BATCH, config=ONE_RUN, clock=machine.clock, witness=lambda: true[0]
            )
        assert "measure again" in str(caught.value.hint)

    def test_work_of_others_between_two_readings_is_no_jump(self) -> None:
        """A busy machine takes its turn between the reading of one clock and the other."""
        machine = FakeMachine()
        readings = [0]

        def witness() -> float:
            readings[0] += 1
            if readings[0] % 4 == 0:
                machine.now += 0.008
            return machine.now

        found = measure_interleaved(
            [machine.session("a", 10)], BATCH, config=ONE_RUN, clock=machine.clock, witness=witness
        )
        assert found.measurements[0].p50_ms() == pytest.approx(10)

    def test_clocks_that_agree_are_silent(self) -> None:
        machine = FakeMachine()
        found = measure_interleaved(
            [machine.session("a", 10)],
            BATCH,
            config=ONE_RUN,
            clock=machine.clock,
            witness=lambda: 1000 + 1.004 * machine.now,
        )
        assert found.stable

    def test_one_jump_nobody_saw_moves_neither_median_nor_ratio(self) -> None:
        machine = FakeMachine()
        jumping = FakeSession(machine, "engine", lambda runs: 5 + 9000 * (runs == 10))
        sessions = [machine.session("torch", 10), jumping]
        found = measure_interleaved(sessions, BATCH, config=ONE_RUN, clock=machine.clock)
        assert found.measurements[1].p50_ms() == pytest.approx(5)
        assert found.speedups[0].low == pytest.approx(2)

    def test_the_real_clocks_agree(self) -> None:
        class Idle:
            name = "idle"

            def run(self, batch: NDArray[np.float32]) -> NDArray[np.float32]:
                return batch.copy()

        config = TimingConfig(min_round_ms=1, max_seconds=5, accept_unstable=True)
        assert measure_interleaved([Idle()], BATCH, config=config).measurements[0].p50_ms() > 0
