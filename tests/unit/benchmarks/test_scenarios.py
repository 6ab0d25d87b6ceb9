"""Scenarios under a clock that only sessions move, against queueing theory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

import numpy as np
import pytest
from numpy.typing import NDArray

from vitdeploy.artifacts.files import from_json, to_json
from vitdeploy.benchmarks.speed.driving import OwnDriver, poisson_arrivals, queries_at
from vitdeploy.benchmarks.speed.latencies import most_over, percentile
from vitdeploy.benchmarks.speed.scenario_runs import (
    highest_rate,
    run_offline,
    run_server,
    run_stream,
)
from vitdeploy.benchmarks.speed.scenarios import (
    OfflineResult,
    ScenarioConfig,
    ScenarioResult,
    SweepPoint,
)
from vitdeploy.benchmarks.speed.throughput import TimingConfig
from vitdeploy.errors import InputError, UnstableMeasurementError

IMAGES = np.zeros((64, 3, 4, 4), np.float32)
ONE = IMAGES[:1]
QUICK = ScenarioConfig(warmups=1, min_queries=400, min_seconds=0.0, max_seconds=30.0)


class Machine:
    """A clock that sessions and sleeping move."""

    def __init__(self) -> None:
        self.now = 0.0

    def driver(self) -> OwnDriver:
        return OwnDriver(lambda: self.now, self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Served:
    """Takes `ms(images, runs before)` for a batch."""

    name = "served"

    def __init__(self, machine: Machine, ms: Callable[[int, int], float]) -> None:
        self.machine, self.ms, self.sizes = machine, ms, list[int]()

    def run(self, batch: NDArray) -> NDArray[np.float32]:
        self.machine.now += self.ms(len(batch), len(self.sizes)) / 1000
        self.sizes.append(len(batch))
        return np.zeros((len(batch), 10), np.float32)


def fixed(machine: Machine, ms: float) -> Served:
    return Served(machine, lambda images, _: ms * images)


class TestPercentiles:
    def test_they_are_nearest_ranks(self) -> None:
        samples = list(range(1, 101))
        assert [percentile(samples, p).value_ms for p in (0.5, 0.9, 0.99)] == [50, 90, 99]

    @pytest.mark.parametrize("share", [0.5, 0.9, 0.99])
    def test_intervals_hold_as_often_as_they_say(self, share: float) -> None:
        generator = np.random.default_rng(3)
        true, held = -np.log(1 - share), 0
        for _ in range(600):
            found = percentile(generator.exponential(1.0, 500).tolist(), share)
            held += found.low_ms <= true and (found.high_ms is None or true <= found.high_ms)
        assert 0.94 <= held / 600 <= 1.0

    def test_few_samples_bound_a_p99_on_one_side_only(self) -> None:
        assert percentile(range(367), 0.99).high_ms is None
        assert percentile(range(368), 0.99).high_ms == 367
        assert percentile(range(367), 0.99).in_words() == "p99 363 ms (358 or more)"
        assert percentile([1234.0] * 400, 0.99).figures() == "1,234 ms (1,234 to 1,234)"

    def test_how_many_may_be_late(self) -> None:
        # Independent: by summing the binomial distribution itself.
        def at_most(k: int, n: int) -> float:
            terms = [0.99**n]
            for i in range(k):
                terms.append(terms[-1] * (n - i) / (i + 1) * 0.01 / 0.99)
            return sum(terms)

        assert most_over(298) == -1
        assert most_over(299) == 0
        for n in (300, 1000, 5000):
            k = most_over(n)
            assert at_most(k, n) <= 0.05 < at_most(k + 1, n)


class TestStreams:
    def test_raw_latencies_of_one_image(self) -> None:
        machine = Machine()
        session = Served(machine, lambda _, run: 10 if run % 100 else 30)
        found = run_stream("single-stream", session, ONE, QUICK, machine.driver())
        assert len(found.latencies_ms) == 400
        assert [round(p.value_ms) for p in found.percentiles()] == [10, 10, 10]
        assert max(found.latencies_ms) == pytest.approx(30)
        assert (found.batch, found.driver, found.stable) == (1, "vitdeploy", True)

    def test_it_goes_on_until_thirds_agree(self) -> None:
        machine = Machine()
        session = Served(machine, lambda _, run: 20 if run < 150 else 10)
        found = run_stream("multi-stream", session, IMAGES[:8], QUICK, machine.driver())
        assert found.stable
        assert len(found.latencies_ms) == 1200  # a third then holds the slow ones

    def test_what_never_settles_is_an_error_unless_accepted(self) -> None:
        def run(accept: bool):
            machine = Machine()
            session = Served(machine, lambda _, run: 10 * 1.001**run)
            config = ScenarioConfig(warmups=1, min_seconds=0, accept_unstable=accept)
            return run_stream("single-stream", session, ONE, config, machine.driver())

        with pytest.raises(UnstableMeasurementError, match="third still differ"):
            run(accept=False)
        assert not run(accept=True).stable

    def test_single_stream_is_one_image(self) -> None:
        machine = Machine()
        with pytest.raises(InputError, match="one image"):
            run_stream("single-stream", fixed(machine, 1), IMAGES[:2], QUICK, machine.driver())


def swept(speeds: dict[int, float]) -> OfflineResult:
    points = tuple(SweepPoint(batch, speed, speed, speed) for batch, speed in speeds.items())
    return OfflineResult("a", "b", points, False)


class TestOffline:
    def test_the_sweep_ends_where_nothing_is_gained_and_names_the_knee(self) -> None:
        machine = Machine()
        # 1 ms a batch of up to 8, then in proportion: throughput grows up to 8 and no further.
        session = Served(machine, lambda images, _: max(1.0, images / 8))
        found = run_offline(session, IMAGES, QUICK, machine.driver())
        assert [point.batch for point in found.points] == [1, 2, 4, 8, 16, 32]
        assert found.enough().batch == 8
        assert found.enough().images_per_second == pytest.approx(8000)
        assert not found.still_growing
        assert found.in_words() == (
            "served: offline throughput has its knee at batch 8 (8,000 images/s): up to batch 32 "
            "larger ones gain less than 5 %"
        )

    def test_one_bad_size_does_not_end_it(self) -> None:
        machine = Machine()
        session = Served(machine, lambda images, _: 4.0 if images == 4 else max(1.0, images / 16))
        found = run_offline(session, IMAGES, QUICK, machine.driver())
        assert found.enough().batch == 16

    def test_what_still_grows_says_so(self) -> None:
        machine = Machine()
        found = run_offline(Served(machine, lambda *_: 1.0), IMAGES[:8], QUICK, machine.driver())
        assert found.still_growing
        assert "still grows at batch 8 (8,000 images/s), the largest tried" in found.in_words()
        assert "knee" not in found.in_words()

    def test_what_does_not_fit_into_the_time_is_not_begun(self) -> None:
        machine = Machine()
        config = ScenarioConfig(warmups=1, min_seconds=0, max_seconds=10)
        session = Served(machine, lambda images, _: 20.0 * images**0.9)
        found = run_offline(session, IMAGES, config, machine.driver(), clock=lambda: machine.now)
        assert [point.batch for point in found.points] == [1, 2, 4, 8]
        assert machine.now <= 10
        assert found.still_growing
        assert "batch 16 did not fit into 10 s (--seconds)" in found.in_words()

    def test_the_knee_gives_up_five_percent(self) -> None:
        found = swept({1: 50, 2: 96, 4: 100})
        assert found.enough().batch == 2
        assert found.course().startswith("has its knee at batch 2 (96 images/s)")

    def test_a_throughput_that_falls_has_no_knee(self) -> None:
        """Larger batches of small caches are slower: nothing grows up to some batch and stays."""
        machine = Machine()
        session = Served(machine, lambda images, _: 4.0 * images**1.2)
        found = run_offline(session, IMAGES, QUICK, machine.driver())
        assert [point.batch for point in found.points] == [1, 2, 4]
        assert found.course() == (
            "is highest at batch 1 (250 images/s) and falls beyond, to 189 images/s at batch 4"
        )
        assert "knee" not in found.in_words()

    @pytest.mark.parametrize(
        ("speeds", "told"),
        [
            ({1: 50, 2: 98, 4: 100, 8: 80}, "is highest at batch 4 (100 images/s, hardly more "
             "than at batch 2) and falls beyond, to 80 images/s at batch 8"),
            ({1: 50, 2: 100, 4: 70, 8: 97}, "is highest at batch 2 (100 images/s) and falls "
             "beyond, to 70 images/s at batch 4"),
            ({1: 50, 2: 100, 4: 96}, "has its knee at batch 2 (100 images/s): up to batch 4 "
             "larger ones gain less than 5 %"),
            ({1: 50}, "is highest at batch 1 (50 images/s), the only one tried"),
            ({1: 50, 2: 20, 4: 90}, "is highest at batch 4 (90 images/s), the largest tried"),
        ],
    )  # fmt: skip
    def test_the_words_are_of_what_happened(self, speeds: dict[int, float], told: str) -> None:
        assert swept(speeds).course() == told


class TestServer:
    def test_waiting_is_that_of_the_m_d_1_queue(self) -> None:
        """Mean wait of random arrivals and a fixed service time: load x time / 2 (1 - load)."""
        machine = Machine()
        config = ScenarioConfig(min_queries=40_000, min_seconds=0, bound_ms=1e9, seed=5)
        waited = machine.driver().serve(fixed(machine, 10), ONE, 60.0, config)
        assert len(waited) == 40_000
        assert np.mean(waited) == pytest.approx(10 + 0.6 * 10 / (2 * 0.4), rel=0.04)

    def test_each_query_waits_as_lindley_says(self) -> None:
        machine = Machine()
        config = ScenarioConfig(min_queries=500, min_seconds=0, bound_ms=1e9, seed=9)
        waited = machine.driver().serve(fixed(machine, 10), ONE, 80.0, config)
        gaps = np.diff(poisson_arrivals(80.0, 500, 9), prepend=0)
        wait, expected = 0.0, []
        for i, gap in enumerate(gaps):
            wait = max(0.0, wait + 0.010 - gap) if i else 0.0
            expected.append(1000 * (wait + 0.010))
        assert waited == pytest.approx(expected)

    def test_the_highest_rate_is_the_brute_force_one(self) -> None:
        machine = Machine()
        config = ScenarioConfig(
            warmups=1, min_queries=1000, min_seconds=0, bound_ms=40, served_batch=1, seed=1
        )
        found = run_server(fixed(machine, 10), IMAGES, config, machine.driver())

        def holds(rate: float) -> bool:
            free, late = 0.0, 0
            for arrival in poisson_arrivals(rate, 1000, 1):
                free = max(free, arrival) + 0.010
                late += free - arrival > 0.040
            return late <= 4

        best = max(rate for rate in np.arange(20, 100, 0.25) if holds(rate))
        assert found.rate_per_s is not None
        assert best / 1.06 <= found.rate_per_s <= best
        assert any(run.cut_short for run in found.runs)
        assert "queries/s with p99 within 40 ms" in found.in_words()

    def test_what_waits_is_run_together(self) -> None:
        machine = Machine()
        session = Served(machine, lambda *_: 10.0)
        config = ScenarioConfig(warmups=1, min_queries=1000, min_seconds=0, bound_ms=50)
        found = run_server(session, IMAGES, config, machine.driver())
        assert max(session.sizes) == found.served_batch == 8
        assert found.rate_per_s is not None
        assert found.rate_per_s > 300  # one at a time the limit is 100

    def test_a_bound_below_the_service_time_holds_at_no_rate(self) -> None:
        machine = Machine()
        config = ScenarioConfig(warmups=1, min_seconds=0, max_seconds=1e4, bound_ms=5)
        found = run_server(fixed(machine, 10), IMAGES, config, machine.driver())
        assert found.rate_per_s is None
        assert found.in_words().startswith("served: less than 0.")

    def test_the_search_ends_within_five_percent(self) -> None:
        tried: list[float] = []

        def holds(rate: float) -> bool:
            tried.append(rate)
            return rate <= 77

        found = highest_rate(holds, start=10)
        assert found is not None
        assert 77 / 1.05 <= found <= 77
        assert len(tried) < 12

    def test_the_search_ends_when_its_time_is_up_and_says_what_it_reached(self) -> None:
        machine = Machine()
        config = ScenarioConfig(warmups=1, min_seconds=0, max_seconds=13, bound_ms=40, seed=1,
                                served_batch=1)  # fmt: skip
        found = run_server(
            fixed(machine, 10), IMAGES, config, machine.driver(), clock=lambda: machine.now
        )
        assert 7 < machine.now <= 13
        assert found.rate_per_s == pytest.approx(50)
        assert [run.outcome() for run in found.runs] == ["held", "too many late"]
        assert found.reached() == "at least 50 queries/s, less than 100"
        assert "to try 70.7 queries/s takes 5.66 s more, and of 13 s" in found.in_words()
        longer = run_server(
            fixed(machine, 10), IMAGES, replace(config, max_seconds=200), machine.driver(),
            clock=lambda: machine.now,
        )  # fmt: skip
        assert longer.unfinished == ""
        assert longer.reached() == f"{longer.rate_per_s:.3g} queries/s"

    def test_a_rate_that_fits_no_time_is_not_begun(self) -> None:
        machine = Machine()
        config = ScenarioConfig(warmups=1, min_seconds=0, max_seconds=5, bound_ms=40)
        found = run_server(
            fixed(machine, 100), IMAGES, config, machine.driver(), clock=lambda: machine.now
        )
        assert (found.rate_per_s, found.runs) == (None, ())
        assert "not known with p99 within 40 ms (to try 5 queries/s takes 80 s" in found.in_words()

    def test_what_time_cut_short_is_no_failure(self) -> None:
        """An engine that slows down under way: too few answers to tell, whatever they were."""
        machine = Machine()
        slower = Served(machine, lambda _, run: 10 if run < 40 else 3000)
        config = ScenarioConfig(warmups=1, min_seconds=0, max_seconds=9, bound_ms=1e9)
        found = run_server(slower, ONE, config, machine.driver(), clock=lambda: machine.now)
        (run,) = found.runs
        assert (run.outcome(), run.holds, run.cut_short) == ("time was up", False, True)
        assert found.reached() == "not known"
        assert "9 s were over while 50 queries/s were tried" in found.unfinished

    def test_a_rate_of_which_nothing_can_be_told_ends_the_search(self) -> None:
        answers = iter([True, False, None])
        assert highest_rate(lambda _: next(answers), start=10) == 10

    def test_arrivals_are_seeded_and_scale_with_the_rate(self) -> None:
        once = poisson_arrivals(10.0, 100, 4)
        assert np.array_equal(once, poisson_arrivals(10.0, 100, 4))
        assert poisson_arrivals(20.0, 100, 4) == pytest.approx(once / 2)
        assert not np.array_equal(once, poisson_arrivals(10.0, 100, 5))
        assert queries_at(1000.0, ScenarioConfig(min_seconds=5)) == 5000


def test_findings_are_read_back() -> None:
    machine = Machine()
    session = fixed(machine, 10)
    found = ScenarioResult(
        "digest",
        (run_stream("single-stream", session, ONE, QUICK, machine.driver()),),
        run_offline(session, IMAGES[:4], QUICK, machine.driver()),
        run_server(session, IMAGES[:2], QUICK, machine.driver()),
    )
    assert from_json(to_json(found), ScenarioResult, origin="x") == found


@pytest.mark.parametrize("settings", [ScenarioConfig, TimingConfig])
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_settings_without_sense_are_refused_by_name(settings: type, value: float) -> None:
    for field in fields(settings):
        if field.name in ("seed", "accept_unstable"):
            continue
        given = {"max_seconds": 1e9, field.name: value}
        may_be_zero = field.name in ("min_seconds", "min_round_ms") and value == 0
        if may_be_zero:
            assert settings(**given)
            continue
        with pytest.raises(InputError, match=f"{field.name} must"):
            settings(**given)


def test_the_longest_time_is_not_shorter_than_the_least() -> None:
    with pytest.raises(InputError, match="at least 5 s and at most 1 s is no time"):
        ScenarioConfig(max_seconds=1.0)
