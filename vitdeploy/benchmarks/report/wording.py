"""Numbers and names as they stand in every face of a report."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from vitdeploy.benchmarks.accuracy.judging import AnyComparison
from vitdeploy.benchmarks.speed.throughput import Measurement, Speedup
from vitdeploy.environment import Environment

NOTHING = "–"  # noqa: RUF001 (an en dash is what a table shows for nothing)


TERMS = {
    "agreement": "Agreement: how often engine and source give the same answer. Entropy: how varied "
    "the source's answers are, in bits (1 bit: as varied as a coin, 0: always the same); the lower "
    "it is, the less agreement means.",
    "drop": "Drop: the verdict goes by its one-sided bound (at most so much is lost, with 95 % "
    "confidence), which spends all its doubt on the bad side. The two-sided interval divides the "
    "doubt between both sides, so its upper end lies further out; both are of the same images. "
    "McNemar's exact p: how likely it is that so uneven a number of images is lost and gained by "
    "chance; a large p proves nothing, only the bound does.",
    "calibration error": "Calibration error (ECE): how far confidence lies from being right, on "
    "average: 0.02 means that answers given with 90 % are right 88 or 92 % of the time.",
    "logits": "Logits: how near the numbers behind the answers are. Cosine 1: the same direction; "
    "the error is in standard deviations of the source's.",
}
"""What figures mean to someone who meets them for the first time, by the name of the figure."""


def percent(share: float | None) -> str:
    """0.8125 becomes '81.25 %'."""
    return NOTHING if share is None else f"{100 * share:.2f} %"


def megabytes(size_bytes: int | None) -> str:
    """Millions of bytes, one decimal: 86_567_656 becomes '86.6'."""
    return NOTHING if size_bytes is None else f"{size_bytes / 1e6:.1f}"


def drop(accuracy: AnyComparison | None) -> str:
    """'+0.05 (<= 0.30)', in points; a gain is below zero."""
    if accuracy is None:
        return NOTHING
    loss = accuracy.loss()
    named = "" if loss.what in ("drop", "mAP drop") else f"{loss.what}: "
    return f"{named}{loss.value:+.2f} (<= {loss.upper:.2f})"


def score(accuracy: AnyComparison | None) -> str:
    """Top-1 and mAP in percent, a cosine or R2 as it is."""
    if accuracy is None or accuracy.engine_score is None:
        return NOTHING
    if accuracy.score_name in ("Top-1", "mAP"):
        return percent(accuracy.engine_score)
    return f"{accuracy.engine_score:.5f}"


def per_image(measurements: Sequence[Measurement]) -> str:
    """Milliseconds per image, '12.3 / 9.8', one a batch size."""
    return " / ".join(significant(m.ms_per_image()) for m in measurements) or NOTHING


def speedups(values: Sequence[Speedup]) -> str:
    """'2.1x (2.0 to 2.2) / 1.8x (1.7 to 1.9)', one a batch size."""
    return " / ".join(map(speedup, values)) or NOTHING


def speedup(value: Speedup) -> str:
    """'2.1x (2.0 to 2.2)'; more decimals where the interval is narrow."""
    places = 1 if round(value.low, 1) != round(value.high, 1) else 2
    return f"{value.ratio:.{places}f}x ({value.low:.{places}f} to {value.high:.{places}f})"


def significant(value: float) -> str:
    """Three significant digits without exponents: 0.0123, 1.20, 19.0, 1,230."""
    return f"{value:,.0f}" if value >= 99.95 else f"{value:#.3g}"


def size(resolution: tuple[int, int]) -> str:
    """(384, 512) becomes '384x512', height first."""
    return f"{resolution[0]}x{resolution[1]}"


def cores(machine: Environment) -> str:
    """'A CPU @ 2.5 GHz, 4 cores'."""
    return f"{machine.cpu}, {machine.cores} core{'s' if machine.cores > 1 else ''}"


def day(created: str) -> str:
    """'2026-11-30T20:45:25+00:00' becomes '2026-11-30 20:45 UTC'; anything else stays."""
    try:
        when = datetime.fromisoformat(created)
    except ValueError:
        return created
    zone = " UTC" if when.utcoffset() == timedelta(0) else when.strftime(" %z")
    return f"{when:%Y-%m-%d %H:%M}{zone.rstrip()}"
