"""What was measured of engines beside accuracy and timings in turns, as tables for every face."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from vitdeploy.benchmarks.naming import backend_title, precision_title
from vitdeploy.benchmarks.report import wording
from vitdeploy.benchmarks.report.charts import Sweep
from vitdeploy.benchmarks.report.model import Report, ReportRow, SpeedDetails
from vitdeploy.benchmarks.speed.machine import Energy
from vitdeploy.benchmarks.speed.memory import PeakMemory
from vitdeploy.benchmarks.speed.payoff import Payoff, is_quantized, payoffs_of
from vitdeploy.benchmarks.speed.roofline import RooflineShare
from vitdeploy.benchmarks.speed.scenarios import ServerResult
from vitdeploy.benchmarks.speed.throughput import Speedup, TimedEngine

ACCURACY = "Accuracy against the source"
_ABOUT_OFFLINE = " Offline throughput is that of the smallest batch within 5 % of the best."
Found = TypeVar("Found")
AtBatch = TypeVar("AtBatch", RooflineShare, PeakMemory, Energy, Speedup)


@dataclass(frozen=True)
class Section:
    """A table under a title. `about` says how to read it, `findings` what it comes to.

    The first cell of a row names it; all are plain strings, escaped nowhere yet. `terms` say what
    figures of it mean. `sweeps` are drawn where there is something to draw with.
    """

    title: str
    about: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    findings: tuple[str, ...] = ()
    terms: tuple[str, ...] = ()
    sweeps: tuple[Sweep, ...] = ()


def sections(report: Report) -> list[Section]:
    """A section for each kind of figure that was measured of any engine, in this order."""
    makers = (accuracy, payoff, streams, offline, server, machine, from_files)
    found = [make(report) for make in makers]
    return [_without_empty_columns(section) for section in found if section.rows]


def sections_and_terms(reports: Sequence[Report]) -> tuple[list[list[Section]], tuple[str, ...]]:
    """Those of several reports, with what terms mean apart: once is enough on one page."""
    found = [sections(report) for report in reports]
    terms = dict.fromkeys(term for own in found for section in own for term in section.terms)
    return [[replace(section, terms=()) for section in own] for own in found], tuple(terms)


def accuracy(report: Report) -> Section:
    """Every finding on the answers, engines side by side."""
    told = {row.name: dict(_findings(row)) for row in report.rows if row.accuracy or row.forecast}
    names = dict.fromkeys(what for found in told.values() for what in found)
    return Section(
        ACCURACY,
        "Each engine's answers beside the source's, on the same images.",
        ("Figure", *told),
        tuple(
            (what, *(found.get(what, wording.NOTHING) for found in told.values())) for what in names
        ),
        terms=tuple(wording.TERMS[what] for what in names if what in wording.TERMS),
    )


def payoff(report: Report) -> Section:
    """'Did INT8 pay?': the precisions of each runtime side by side."""
    timed = [row for row in report.rows if row.throughput]
    quantized = any(is_quantized(row.precision) for row in timed)
    precisions = tuple(dict.fromkeys(row.precision for row in timed)) if quantized else ()
    rows: list[tuple[str, ...]] = []
    for backend in dict.fromkeys(row.backend for row in timed if precisions):
        own = [row for row in timed if row.backend == backend]
        title = backend_title(backend)
        found = _payoffs(own)
        rows += [_times(each, precisions) for each in found]
        for what, cell in _SIDE_BY_SIDE:
            cells = [[cell(row) for row in own if row.precision == p] for p in precisions]
            rows.append((f"{title}, {what}", *map(_joined, cells), wording.NOTHING))
    return Section(
        "Did INT8 pay?",
        "Of each runtime, the fastest quantized engine over the fastest float one, in the same "
        "rounds, with 95 % intervals." + (_ABOUT_OFFLINE if any(map(_has_offline, timed)) else ""),
        ("Figure", *map(precision_title, precisions), "Paid"),
        tuple(row for row in rows if set(row[1:]) != {wording.NOTHING}),
        tuple(payoff_sentences(report)),
    )


def payoff_sentences(report: Report) -> list[str]:
    """Whether quantizing paid, for each runtime and batch size where both kinds were timed."""
    timed = [row for row in report.rows if row.throughput]
    return [each.in_words() for each in _payoffs(timed) if each.ratio is not None]


def streams(report: Report) -> Section:
    """Single-stream and multi-stream."""
    rows = [
        (
            row.name,
            stream.scenario,
            *(found.figures() for found in stream.percentiles()),
            f"{len(stream.latencies_ms):,} of {stream.batch}, by {stream.driver}"
            + ("" if stream.stable else "; timings did not settle"),
        )
        for row in report.rows
        if row.details.scenarios
        for stream in row.details.scenarios.streams
    ]
    return Section(
        "One query after another",
        "MLPerf's single-stream (one image) and multi-stream (eight): latencies of whole queries "
        "with distribution-free 95 % intervals.",
        ("Engine", "Scenario", "p50", "p90", "p99", "Queries"),
        tuple(rows),
    )


def offline(report: Report) -> Section:
    """The sweep over batch sizes."""
    rows, sweeps = [], []
    for row in report.rows:
        found = row.details.scenarios.offline if row.details.scenarios else None
        if found is None:
            continue
        points = (f"{p.batch}: {wording.significant(p.images_per_second)}" for p in found.points)
        if len(found.points) > 1:
            drawn = ((p.batch, p.images_per_second, p.low, p.high) for p in found.points)
            sweeps.append(Sweep(row.name, tuple(drawn)))
        rows.append(
            (
                row.name,
                found.course() + (f"; {found.unfinished}" if found.unfinished else ""),
                ", ".join(points),
            )
        )
    return Section(
        "Throughput over the batch",
        "MLPerf's offline scenario, one engine after the other: images a second at each batch "
        "size. Beyond a knee larger batches gain less than 5 % and only add latency.",
        ("Engine", "The throughput", "Batch: images/s"),
        tuple(rows),
        sweeps=tuple(sweeps),
    )


def server(report: Report) -> Section:
    """Random arrivals."""
    rows = [
        (row.name, *_served(found))
        for row in report.rows
        if row.details.scenarios and (found := row.details.scenarios.server)
    ]
    return Section(
        "Queries at random",
        "MLPerf's server scenario: the highest rate of random (Poisson) arrivals at which 99 % of "
        "the queries, their wait included, stay within the bound.",
        ("Engine", "Highest rate", "p99 at that rate", "Bound on p99", "Rates tried"),
        tuple(rows),
    )


def machine(report: Report) -> Section:
    """Shares of the roofline, memory and energy, a row for each engine and batch size."""
    rows = [
        (row.name, str(batch), *_takes(row.details, batch))
        for row in report.rows
        for batch in _batches(row.details)
    ]
    told = [report.peak.in_words()] if report.peak else []
    sources = {energy.source for row in report.rows for energy in row.details.energy}
    told += [f"energy by {source}; other work on it counts too" for source in sorted(sources)]
    return Section(
        "What each engine takes of the machine",
        "The share of the roofline is the least time this machine could take (computing or moving "
        "data, whichever is longer) over the time taken. Memory is the resident peak of a process "
        "that only loads and runs the engine, and what of it engine and runtime add.",
        (
            "Engine",
            "Batch",
            "Share of the roofline",
            "Peak memory",
            "Engine and runtime",
            "Energy an image, power",
            "Against PyTorch's fastest form",
        ),
        tuple(rows),
        tuple(told),
    )


def from_files(report: Report) -> Section:
    """The way from image files to answers."""
    rows = [
        (
            row.name,
            str(found.batch),
            f"{found.images:,}",
            wording.significant(found.images_per_second),
            *map(wording.significant, (found.decode_ms, found.prepare_ms, found.engine_ms)),
        )
        for row in report.rows
        for found in row.details.from_files
    ]
    return Section(
        "From files to answers",
        "Images a second with everything at once; the medians of each stage alone, in ms per "
        "image on one thread. Each is of one pass over the images: there is no interval, and "
        "nothing tells whether it would be the same again. They show where the time goes, not "
        "which of two engines is faster.",
        (
            "Engine",
            "Batch",
            "Images",
            "Images/s from files",
            "Decoding, ms",
            "Resizing and normalizing, ms",
            "Engine, ms",
        ),
        tuple(rows),
    )


def timed_sweeps(report: Report) -> list[Sweep]:
    """Throughput of the timings in turns, source and engines, where they are of several sizes."""
    timed = [(report.source_label, report.source_throughput)]
    timed += [(row.name, row.throughput) for row in report.rows]
    return [
        Sweep(name, tuple((m.batch, m.images_per_second(), None, None) for m in measured))
        for name, measured in timed
        if len(measured) > 1
    ]


def _findings(row: ReportRow) -> list[tuple[str, str]]:
    found = [*row.accuracy.facts()] if row.accuracy else []
    if row.forecast:
        found.append(("forecast", row.forecast.in_words().removeprefix("forecast: ")))
    return found


def _payoffs(rows: Sequence[ReportRow]) -> tuple[Payoff, ...]:
    """A row's timings settled at all batch sizes or count as unsettled at all."""
    return payoffs_of(
        [(TimedEngine(backend_title(row.backend), row.precision), row.throughput) for row in rows],
        frozenset(m.batch for row in rows if not row.stable for m in row.throughput),
    )


def _times(found: Payoff, precisions: Sequence[str]) -> tuple[str, ...]:
    times = found.ms_per_image
    cells = [[wording.significant(ms) for kind, ms in times if kind == p] for p in precisions]
    what = f"{found.backend}, ms/image at batch {found.batch}"
    return (what, *map(_joined, cells), _answer(found))


def _answer(found: Payoff) -> str:
    if found.ratio is None:
        return f"no {'float' if found.quantized_precision else 'quantized'} engine was timed"
    ratio, low, high = found.ratio
    told = {True: "yes", False: "no", None: "no difference to be told"}[found.paid]
    if not found.stable:
        told = "not known, timings did not settle"
    return (
        f"{told}, {ratio:.2f}x ({low:.2f} to {high:.2f}) as fast as "
        f"{precision_title(found.float_precision or '')}"
    )


def _has_offline(row: ReportRow) -> bool:
    return row.details.scenarios is not None and row.details.scenarios.offline is not None


def _offline(row: ReportRow) -> str:
    found = row.details.scenarios.offline if row.details.scenarios else None
    return _or_nothing(found, lambda o: _at(o.enough().images_per_second, o.enough().batch))


def _most_memory(row: ReportRow) -> str:
    most = max(row.details.memory, key=lambda m: m.peak_bytes, default=None)
    return _or_nothing(most, lambda m: f"{m.peak_bytes / 1e6:,.0f} MB at batch {m.batch}")


def _file(row: ReportRow) -> str:
    return _or_nothing(row.size_bytes, lambda size: f"{wording.megabytes(size)} MB")


_SIDE_BY_SIDE: tuple[tuple[str, Callable[[ReportRow], str]], ...] = (
    ("offline throughput", _offline),
    ("peak memory", _most_memory),
    ("file", _file),
)


def _batches(details: SpeedDetails) -> list[int]:
    kinds = (details.shares, details.memory, details.energy, details.fair_speedups)
    return sorted({found.batch for kind in kinds for found in kind})


def _takes(details: SpeedDetails, batch: int) -> tuple[str, ...]:
    memory = _at_batch(details.memory, batch)
    return (
        _or_nothing(
            _at_batch(details.shares, batch), lambda s: f"{100 * s.share:.0f} % ({s.bound})"
        ),
        _or_nothing(memory, lambda m: f"{m.peak_bytes / 1e6:,.0f} MB"),
        _or_nothing(memory, lambda m: f"{m.added_bytes / 1e6:,.0f} MB"),
        _or_nothing(
            _at_batch(details.energy, batch),
            lambda e: f"{e.joules_per_image:.3g} J, {e.watts:.3g} W",
        ),
        _or_nothing(
            _at_batch(details.fair_speedups, batch),
            lambda f: f"{wording.speedup(f)} as fast as {f.baseline}",
        ),
    )


def _at_batch(found: Sequence[AtBatch], batch: int) -> AtBatch | None:
    return next((each for each in found if each.batch == batch), None)


def _served(found: ServerResult) -> tuple[str, ...]:
    tried = ", ".join(f"{run.rate_per_s:.3g} ({run.outcome()})" for run in found.runs)
    p99 = next((r.p99_ms for r in found.runs if r.rate_per_s == found.rate_per_s), None)
    return (
        found.reached() + (f"; {found.unfinished}" if found.unfinished else ""),
        _or_nothing(p99, lambda ms: f"{ms:.3g} ms"),
        f"{found.bound_ms:g} ms",
        tried or "none",
    )


def _at(images_per_second: float, batch: int) -> str:
    return f"{wording.significant(images_per_second)} images/s at batch {batch}"


def _joined(cells: Sequence[str]) -> str:
    return " / ".join(cells) or wording.NOTHING


def _or_nothing(found: Found | None, tell: Callable[[Found], str]) -> str:
    return wording.NOTHING if found is None else tell(found)


def _without_empty_columns(section: Section) -> Section:
    """Without what nothing was measured of."""
    kept = [
        i
        for i in range(len(section.header))
        if i == 0 or any(row[i] != wording.NOTHING for row in section.rows)
    ]
    return replace(
        section,
        header=tuple(section.header[i] for i in kept),
        rows=tuple(tuple(row[i] for i in kept) for row in section.rows),
    )
