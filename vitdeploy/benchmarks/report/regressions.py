"""What became worse since an older report: speed, accuracy and size of the same engines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeGuard

import numpy as np
from numpy.typing import NDArray

from vitdeploy.benchmarks.accuracy.classes import AccuracyComparison
from vitdeploy.benchmarks.accuracy.judging import AnyComparison
from vitdeploy.benchmarks.report import wording
from vitdeploy.benchmarks.report.merge import require_comparable
from vitdeploy.benchmarks.report.model import Report, ReportRow
from vitdeploy.benchmarks.speed.throughput import Measurement
from vitdeploy.benchmarks.statistics import tango_interval
from vitdeploy.errors import GateFailedError, InputError

SCHEMA_VERSION = 1
_RESAMPLES = 4000
_Kind = tuple[str, str, tuple[str, ...]]

_IN_WORDS = {
    "unsettled": "not told, the timings did not settle: time it again",
    "open": "cannot be told, the interval is too wide for same, better or worse: measure more",
}

Judgement = Literal["worse", "better", "same", "open", "unsettled", "gone"]


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """What counts. A change is told as worse where it is significant and at least this large, and
    as the same where its whole interval is smaller (of accuracy: than the limit of the verdict).

    Intervals know how timings vary within a run, not between two runs of one
    build, which differ by some percent on most machines: hence `speed`.
    `confidence` is of all changes together (each is tested at 1 - (1 -
    confidence) / their number, after Bonferroni).
    """

    speed: float = 0.05
    size: float = 0.02
    confidence: float = 0.95

    def __post_init__(self) -> None:
        # Written so that NaN is refused too.
        if not (0 <= self.speed < 1 and 0 <= self.size < 1 and 0.5 <= self.confidence < 1):
            raise InputError("tolerances are shares from 0 to 1", hint="use the defaults")


@dataclass(frozen=True)
class Change:
    """One figure of one engine, then and now.

    `change` is relative for speed and size (-0.1: a tenth slower, or smaller),
    in points of what was lost for accuracy (+0.2: more is lost); `low` to
    `high` is its interval. Nothing is known of a figure that is `gone`, and
    too little where timings of either report are `unsettled`.
    """

    engine: str
    what: str
    before: str
    now: str
    judgement: Judgement
    change: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def is_regression(self) -> bool:
        return self.judgement in ("worse", "gone")

    def in_words(self) -> str:
        """'INT8 on ONNX Runtime, speed at batch 8: 21.0 to 26.2 ms/image (worse, ...)'."""
        interval = ""
        if self.change is not None and self.low is not None and self.high is not None:
            unit = " points" if self.what.startswith("accuracy") else " %"
            scale = 1 if unit == " points" else 100
            interval = (
                f" {scale * self.change:+.2f}{unit} ({scale * self.low:+.2f} to "
                f"{scale * self.high:+.2f})"
            )
        return (
            f"{self.engine}, {self.what}: {self.before} before, {self.now} now, "
            f"{_IN_WORDS.get(self.judgement, self.judgement)}{interval}"
        )


@dataclass(frozen=True)
class RegressionReport:
    """All changes between two reports; `speed_basis` says what speeds are compared as."""

    before: str
    now: str
    speed_basis: str
    changes: tuple[Change, ...]
    schema_version: int = SCHEMA_VERSION
    kind: str = "regressions"

    def regressions(self) -> tuple[Change, ...]:
        return tuple(change for change in self.changes if change.is_regression)

    def require_none(self) -> None:
        """Raise GateFailedError (exit code 10) that names what became worse."""
        found = self.regressions()
        if found:
            raise GateFailedError(
                f"{len(found)} regression{'s' if len(found) > 1 else ''} since {self.before}: "
                + "; ".join(change.in_words() for change in found),
                hint="undo what caused it, or take the new report as the baseline",
            )


def regressions(
    before: Report, now: Report, tolerance: Tolerance | None = None
) -> RegressionReport:
    """Compare two reports of one model on one machine, engine by engine.

    Speeds are compared relative to the source's in the same rounds where both
    reports timed it with the same PyTorch, so that a machine that is busier
    today moves nothing; else as they are.

    Raises InputError where models, images or machines differ, no engine is in
    both, or both hold the same measurements.
    """
    tolerance = tolerance or Tolerance()
    if before.rows == now.rows:
        raise InputError(
            "both reports hold the same measurements",
            hint="measure again with `vitdeploy benchmark` and `vitdeploy evaluate` first",
        )
    require_comparable(before, now)
    _require_same_machine(before, now)
    twins = _twins(before) | _twins(now)
    older, newer = _by_key(before, twins), _by_key(now, twins)
    relative = _same_source(before, now)
    known = {key: row for key, row in older.items() if row.status != "failed"}
    if not known.keys() & newer.keys():
        raise InputError("no engine is in both reports", hint="give the report of the same engines")
    pairs = [(older[key], newer.get(key)) for key in known]
    # As many tests as there are figures in both.
    tests = max(1, sum(_tests(then, there) for then, there in pairs if there is not None))
    confidence = 1 - (1 - tolerance.confidence) / tests
    changes: list[Change] = []
    for then, there in pairs:
        if there is None or there.status == "failed":
            why = "not there" if there is None else f"failed: {there.note}"
            changes.append(Change(then.name, "engine", then.status, why, "gone"))
            continue
        changes.extend(_speeds((before, then), (now, there), relative, tolerance, confidence))
        changes.extend(_accuracies(then, there, confidence))
        changes.extend(_sizes(then, there, tolerance))
    basis = "the source in the same rounds" if relative else "their own times"
    return RegressionReport(before.created, now.created, basis, tuple(changes))


def speed_change(
    old: NDArray[np.floating], new: NDArray[np.floating], confidence: float, seed: int = 0
) -> tuple[float, float, float]:
    """(change, low, high) of the median of `new` against that of `old`, relative.

    Both are per-round figures where more is faster, of two runs that have no
    round in common: each is resampled by itself (percentile bootstrap of the
    ratio of medians). 100 to 90 is -0.1.
    """
    generator = np.random.default_rng(seed)

    def medians(values: NDArray[np.floating]) -> NDArray[np.floating]:
        drawn = generator.choice(values, size=(_RESAMPLES, len(values)))
        return np.median(drawn, axis=1)

    ratios = medians(np.asarray(new)) / medians(np.asarray(old))
    tail = (1 - confidence) / 2
    low, high = np.quantile(ratios, (tail, 1 - tail))
    middle = float(np.median(new) / np.median(old))
    return middle - 1, float(low) - 1, float(high) - 1


def drop_change(
    old: AccuracyComparison, new: AccuracyComparison, confidence: float
) -> tuple[float, float, float]:
    """(change, low, high) in points of the drop against the source, on the same images.

    The two drops' score intervals combined by MOVER, as if the images were
    others: on the same ones both move together, so the interval is on the safe
    side. Source: Zou and Donner, Statistics in Medicine 27 (2008) 1693-1702.
    """

    def drop(found: AccuracyComparison) -> tuple[float, float, float]:
        low, high = tango_interval(found.lost, found.gained, found.images, confidence)
        return (found.lost - found.gained) / found.images, low, high

    (a, a_low, a_high), (b, b_low, b_high) = drop(old), drop(new)
    change = b - a
    low = change - float(np.hypot(b - b_low, a_high - a))
    high = change + float(np.hypot(b_high - b, a - a_low))
    return 100 * change, 100 * low, 100 * high


def _speeds(
    old: tuple[Report, ReportRow],
    new: tuple[Report, ReportRow],
    relative: bool,
    tolerance: Tolerance,
    confidence: float,
) -> Iterator[Change]:
    timed = {measured.batch: measured for measured in new[1].throughput}
    for then in old[1].throughput:
        name, what = old[1].name, f"speed at batch {then.batch}"
        there = timed.get(then.batch)
        if there is None:
            yield Change(name, what, _told(then, None), "not timed", "gone")
            continue
        rates = [_rates(*each, relative) for each in ((old[0], then), (new[0], there))]
        change, low, high = speed_change(rates[0], rates[1], confidence)
        judgement: Judgement = "open"
        if not (old[1].stable and new[1].stable):
            judgement = "unsettled"
        elif high < 0 and change <= -tolerance.speed:
            judgement = "worse"
        elif low > 0 and change >= tolerance.speed:
            judgement = "better"
        elif -tolerance.speed <= low and high <= tolerance.speed:
            judgement = "same"
        pairs = zip((then, there), rates, strict=True)
        before, now = (_told(each, rate if relative else None) for each, rate in pairs)
        yield Change(name, what, before, now, judgement, change, low, high)


def _told(measured: Measurement, rates: NDArray[np.float64] | None) -> str:
    """'3.20x as fast as the source (25.0 ms/image)', in terms of what is compared."""
    ms = f"{wording.significant(measured.ms_per_image())} ms/image"
    return ms if rates is None else f"{np.median(rates):.3g}x as fast as the source ({ms})"


def _rates(report: Report, measured: Measurement, relative: bool) -> NDArray[np.float64]:
    """Per round: how many times as fast as the source, or images a second."""
    samples = np.asarray(measured.samples_ms, dtype=np.float64)
    if not relative:
        return 1000 * measured.batch / samples
    source = next(m for m in report.source_throughput if m.batch == measured.batch)
    return np.asarray(source.samples_ms, dtype=np.float64) / samples


def _accuracies(then: ReportRow, there: ReportRow, confidence: float) -> Iterator[Change]:
    old, new = then.accuracy, there.accuracy
    if old is None:
        return
    if new is None:
        yield Change(then.name, "accuracy", old.verdict, "not evaluated", "gone")
        return
    what = f"accuracy ({old.loss().what})"
    values = [f"{found.loss().value:+.2f}, {found.verdict}" for found in (old, new)]
    if _is_labelled(old) and _is_labelled(new):
        change, low, high = drop_change(old, new, confidence)
    else:
        a, b = old.loss(), new.loss()
        change = b.value - a.value
        low = change - float(np.hypot(b.value - b.low, a.high - a.value))
        high = change + float(np.hypot(b.high - b.value, a.value - a.low))
    judgement: Judgement = "open"
    if low > 0 or (new.verdict == "fail" and old.verdict != "fail"):
        judgement = "worse"
    elif high < 0:
        judgement = "better"
    elif new == old or max(-low, high) <= old.loss().limit:
        judgement = "same"
    yield Change(then.name, what, values[0], values[1], judgement, change, low, high)


def _is_labelled(found: AnyComparison) -> TypeGuard[AccuracyComparison]:
    return isinstance(found, AccuracyComparison) and found.labelled


def _sizes(then: ReportRow, there: ReportRow, tolerance: Tolerance) -> Iterator[Change]:
    if not then.size_bytes or not there.size_bytes:
        return
    change = there.size_bytes / then.size_bytes - 1
    judgement: Judgement = "same"
    if abs(change) > tolerance.size:
        judgement = "worse" if change > 0 else "better"
    old, new = (f"{size / 1e6:.1f} MB" for size in (then.size_bytes, there.size_bytes))
    yield Change(then.name, "size", old, new, judgement, change, change, change)


def _tests(then: ReportRow, there: ReportRow) -> int:
    both = then.accuracy is not None and there.accuracy is not None
    timed = [{measured.batch for measured in row.throughput} for row in (then, there)]
    return len(timed[0] & timed[1]) + both


def _twins(report: Report) -> set[_Kind]:
    """Of what kind a report holds several engines."""
    kinds = [_kind(row) for row in report.rows]
    return {kind for kind in kinds if kinds.count(kind) > 1}


def _by_key(report: Report, twins: set[_Kind]) -> dict[_Kind | str, ReportRow]:
    """Rows by their kind; where that is of several engines, by the engine's digest: which of
    them a new build replaces cannot be known."""
    return {row.engine_digest if _kind(row) in twins else _kind(row): row for row in report.rows}


def _kind(row: ReportRow) -> _Kind:
    return row.backend, row.precision, row.targets


def _same_source(before: Report, now: Report) -> bool:
    """Whether both timed the source by the same PyTorch, paired with every engine's rounds."""
    if before.source_label != now.source_label:
        return False
    if before.environment.packages.get("torch") != now.environment.packages.get("torch"):
        return False
    for report in (before, now):
        rounds = {m.batch: len(m.samples_ms) for m in report.source_throughput}
        for row in report.rows:
            for measured in row.throughput:
                if rounds.get(measured.batch) != len(measured.samples_ms):
                    return False
    return bool(before.source_throughput and now.source_throughput)


def _require_same_machine(before: Report, now: Report) -> None:
    old, new = before.environment, now.environment
    for what in ("cpu", "cores", "gpu"):
        if getattr(old, what) != getattr(new, what):
            raise InputError(
                f"the reports are of two machines: {what} {getattr(old, what)!r} and "
                f"{getattr(new, what)!r}",
                hint="compare reports of one machine, or merge them: vitdeploy report A B",
            )
