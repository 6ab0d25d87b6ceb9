"""MLPerf LoadGen as the driver of scenarios, where `mlcommons-loadgen` is installed."""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import queue
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from vitdeploy.backends.base import Session
from vitdeploy.benchmarks.speed.driving import Driver, OwnDriver, queries_at
from vitdeploy.benchmarks.speed.scenarios import ScenarioConfig
from vitdeploy.errors import MissingDependencyError, UnstableMeasurementError

_TRACE = "mlperf_log_trace.json"
_MODULE = "mlperf_loadgen"


def installed() -> bool:
    return importlib.util.find_spec(_MODULE) is not None


def best_driver() -> Driver:
    """LoadGen where it is installed, else vitdeploy's own."""
    return LoadGenDriver() if installed() else OwnDriver()


class LoadGenDriver:
    """LoadGen's own schedule, clock and latencies; vitdeploy is its system under test.

    Runs are for figures, not for submission: logs are read and thrown away.
    """

    name = "MLPerf LoadGen"

    def stream(
        self, session: Session, batch: NDArray, *, queries: int, seconds: float
    ) -> list[float]:
        loadgen = _loadgen()
        scenario = "SingleStream" if len(batch) == 1 else "MultiStream"
        settings = _settings(loadgen, scenario, queries)
        settings.min_duration_ms = round(1000 * seconds)
        settings.multi_stream_samples_per_query = len(batch)

        def issue(ids: list[int]) -> None:
            session.run(batch)
            _complete(loadgen, ids)

        return _latencies(loadgen, settings, issue, samples=len(batch))

    def serve(
        self,
        session: Session,
        images: NDArray,
        rate_per_s: float,
        config: ScenarioConfig,
        *,
        seconds: float = math.inf,
    ) -> list[float]:
        loadgen = _loadgen()
        queries = queries_at(rate_per_s, config)
        settings = _settings(loadgen, "Server", queries)
        settings.max_query_count = queries
        settings.server_target_qps = rate_per_s
        settings.server_target_latency_ns = round(1e6 * config.bound_ms)
        settings.schedule_rng_seed = config.seed
        if seconds < math.inf:
            settings.max_duration_ms = math.ceil(1000 * seconds)
        answered: list[int] = []
        with _served(loadgen, session, images, time.perf_counter() + seconds, answered) as issue:
            waited = _latencies(loadgen, settings, issue)
        # Queries are answered in their order.
        return waited[: sum(answered)]


@contextmanager
def _served(
    loadgen: Any, session: Session, images: NDArray, end: float, answered: list[int]
) -> Iterator[Callable[[list[int]], None]]:
    """A thread that runs what waits, up to len(images) at a time; LoadGen's must not block.

    Sizes of the batches that were run are put into `answered`; after `end`
    (`time.perf_counter`) none is run any more.
    """
    waiting: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    failures: list[BaseException] = []

    def work() -> None:
        while (number := waiting.get()) is not None:
            taken, ended = [number], False
            while len(taken) < len(images) and not waiting.empty():
                number = waiting.get()
                if number is None:
                    ended = True
                    break
                taken.append(number)
            if not failures and time.perf_counter() < end:
                try:
                    session.run(images[: len(taken)])
                    answered.append(len(taken))
                except BaseException as error:  # noqa: BLE001 (raised again by the caller)
                    failures.append(error)
            # LoadGen waits for every sample, so those after a failure or the end end too.
            _complete(loadgen, taken)
            if ended:
                return

    def issue(ids: list[int]) -> None:
        for number in ids:
            waiting.put(number)

    worker = threading.Thread(target=work, name="served by LoadGen")
    worker.start()
    try:
        yield issue
    finally:
        waiting.put(None)
        worker.join()
    if failures:
        raise failures[0]


def _settings(loadgen: Any, scenario: str, queries: int) -> Any:
    settings = loadgen.TestSettings()
    settings.scenario = getattr(loadgen.TestScenario, scenario)
    settings.mode = loadgen.TestMode.PerformanceOnly
    settings.min_query_count = queries
    settings.min_duration_ms = 0
    return settings


def _latencies(
    loadgen: Any, settings: Any, issue: Callable[[list[int]], None], *, samples: int = 1
) -> list[float]:
    """Run one test; ms from when a query was due to when its answer was there, in order."""
    failures: list[BaseException] = []

    def guarded(sent: list[Any]) -> None:
        # The samples live in LoadGen's memory, for the length of this call.
        ids = [sample.id for sample in sent]
        try:
            if not failures:
                issue(ids)
                return
        except BaseException as error:  # noqa: BLE001 (must not cross LoadGen's frames; raised below)
            failures.append(error)
        # LoadGen would wait for ever for samples nobody ends.
        _complete(loadgen, ids)

    with tempfile.TemporaryDirectory(prefix="vitdeploy-loadgen-") as folder:
        output = loadgen.LogOutputSettings()
        output.outdir = folder
        output.copy_summary_to_stdout = False
        log = loadgen.LogSettings()
        log.log_output = output
        log.enable_trace = True
        system = loadgen.ConstructSUT(guarded, lambda: None)
        library = loadgen.ConstructQSL(samples, samples, lambda _: None, lambda _: None)
        try:
            # A file of this name in the working folder would change the settings.
            audit = str(Path(folder) / "none")
            _apart(
                lambda: loadgen.StartTestWithLogSettings(system, library, settings, log, audit),
                failures,
            )
        finally:
            loadgen.DestroyQSL(library)
            loadgen.DestroySUT(system)
        if failures:
            raise failures[0]
        return read_trace((Path(folder) / _TRACE).read_text(encoding="utf-8"))


def _apart(start: Callable[[], None], failures: list[BaseException]) -> None:
    """Run a test on a thread of its own: an interrupt must not end a callback half-way.

    Python interrupts the main thread alone. A query that is ended twice would
    break LoadGen's memory; so after an interrupt queries are ended without
    being run, until LoadGen's schedule is through.
    """
    ended = threading.Event()

    def run() -> None:
        try:
            start()
        finally:
            ended.set()

    thread = threading.Thread(target=run, name="LoadGen")
    thread.start()
    # Neither waits without end, which no signal that another thread took would break, nor a join:
    # an interrupted one takes a running thread for ended (Python 3.11).
    while not ended.is_set():
        try:
            ended.wait(0.2)
        except KeyboardInterrupt as error:
            failures.append(error)
    thread.join()


def _complete(loadgen: Any, ids: list[int]) -> None:
    loadgen.QuerySamplesComplete([loadgen.QuerySampleResponse(number, 0, 0) for number in ids])


def read_trace(text: str) -> list[float]:
    """Latencies in ms of a LoadGen trace, in the order of the queries.

    A query ends with the last of its samples. Only lines of samples are read: others of the
    same file are not valid JSON.
    Raises UnstableMeasurementError where a trace holds none.
    """
    found: dict[int, float] = {}
    for line in text.splitlines():
        if '"name":"Sample"' not in line or '"complete_ns"' not in line:
            continue
        event = json.loads(line.rstrip().rstrip(","))["args"]
        query, took = event["query_seq"], event["complete_ns"] / 1e6
        found[query] = max(took, found.get(query, 0.0))
    if not found:
        raise UnstableMeasurementError(
            "LoadGen's trace names no finished query", hint="report this with the LoadGen version"
        )
    return [found[number] for number in sorted(found)]


def _loadgen() -> Any:
    try:
        return importlib.import_module(_MODULE)
    except ImportError as error:
        raise MissingDependencyError(
            f"MLPerf LoadGen is not usable here: {error}", hint="pip install 'vitdeploy[loadgen]'"
        ) from error
