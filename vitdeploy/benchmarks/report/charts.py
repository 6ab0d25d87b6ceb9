"""Pictures of a report: interval bars as plain coordinates, latencies drawn by matplotlib."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from vitdeploy.artifacts.onnx_model import FallbackStep
from vitdeploy.benchmarks.report.model import Report
from vitdeploy.benchmarks.speed.throughput import Measurement

BAR_WIDTH = 320
_INK = "#010203"
"""Stands for the page's text colour until the SVG is on the page (light or dark)."""
_MARKS = "#3b82c4"
_LINES = (
    ("#3b82c4", "o"), ("#c2630a", "s"), ("#0d8a5f", "^"), ("#b14fc5", "D"), ("#7a7f87", "v"),
)  # fmt: skip
"""Told apart by marks too, and seen on white and on black."""


@dataclass(frozen=True)
class IntervalBar:
    """One engine's interval, in pixels of a `BAR_WIDTH` wide axis, and in words."""

    name: str
    verdict: str
    low: float
    middle: float
    high: float
    limit: float
    zero: float
    text: str


def interval_bars(report: Report) -> list[IntervalBar]:
    """A bar for each compared engine, all on one axis.

    What each verdict is about (`Comparison.loss`), in points, so
    shorter and further left is better; the limit is the gate's.
    """
    found = []
    for row in report.rows:
        accuracy = row.accuracy
        if accuracy is None:
            continue
        loss = accuracy.loss()
        text = (
            f"{loss.what} {loss.value:+.2f} points ({loss.low:+.2f} to {loss.high:+.2f}), "
            f"limit {loss.limit:.2f}"
        )
        ends = (loss.low, loss.value, loss.high, loss.limit)
        found.append((row.name, accuracy.verdict, ends, text))
    if not found:
        return []
    ends = [end for _, _, numbers, _ in found for end in numbers]
    left, right = min(0.0, *ends), max(ends)
    margin = 0.06 * (right - left)

    def at(value: float) -> float:
        return round(BAR_WIDTH * (value - left + margin) / (right - left + 2 * margin), 1)

    return [
        IntervalBar(name, verdict, *(at(value) for value in numbers), zero=at(0.0), text=text)
        for name, verdict, numbers, text in found
    ]


def latency_svg(named: Sequence[tuple[str, Measurement]]) -> str | None:
    """The raw samples of one batch size, a strip each, the median marked; ms per image.

    Answers an SVG element without prolog, dates and links; None where
    matplotlib is not installed. The same samples give the same text.
    """
    names, measurements = [name for name, _ in named], [measured for _, measured in named]
    height = 0.9 + 0.42 * len(named)

    def draw(axes: Any) -> None:
        for position, measured in enumerate(measurements):
            times = [sample / measured.batch for sample in measured.samples_ms]
            axes.plot(times, [position] * len(times), "o", color=_MARKS, alpha=0.35, ms=6, mew=0)
            axes.plot([measured.ms_per_image()], [position], "|", color=_INK, ms=18, mew=2)
        axes.set_yticks(range(len(measurements)), [shortened(name) for name in names])
        axes.set_ylim(len(measurements) - 0.5, -0.5)
        slowest = max(max(m.samples_ms) / m.batch for m in measurements)
        axes.set_xlim(0, 1.05 * slowest)
        axes.set_xlabel("ms per image")
        axes.grid(axis="x", alpha=0.2)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(left=False)

    return _drawn(draw, height)


def fallback_svg(steps: Sequence[FallbackStep]) -> str | None:
    """Drop against the nodes taken back to float, its upper bound as a bar; the throughput
    beside each point. What was measured on held-out images is a cross. None as `latency_svg`."""

    def draw(axes: Any) -> None:
        for step in steps:
            drop, upper = step.drop_points or 0.0, step.drop_upper_points or 0.0
            axes.plot([step.kept, step.kept], [drop, upper], "-", color=_MARKS, lw=2, alpha=0.6)
            mark = "x" if step.held_out else "o"
            axes.plot([step.kept], [drop], mark, color=_INK if step.held_out else _MARKS, ms=7)
            beside = {"textcoords": "offset points", "xytext": (8, -3)}
            axes.annotate(f"{step.images_per_second:.0f}/s", (step.kept, drop), **beside)
        axes.axhline(0, color=_INK, lw=0.8, alpha=0.4)
        axes.margins(x=0.15)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_xlabel("nodes back in float")
        axes.set_ylabel("drop, points")
        axes.grid(alpha=0.2)
        axes.spines[["top", "right"]].set_visible(False)

    return _drawn(draw, 2.6)


@dataclass(frozen=True)
class Sweep:
    """Throughput of one engine: (batch, images/s, low, high), low and high None without any."""

    name: str
    points: tuple[tuple[int, float, float | None, float | None], ...]


def sweep_svg(sweeps: Sequence[Sweep]) -> str | None:
    """Images a second over the batch size, a line each, its 95 % intervals as bars.

    None as `latency_svg`.
    """

    def draw(axes: Any) -> None:
        for sweep, (colour, mark) in zip(sweeps, cycle(_LINES), strict=False):
            batches, speeds = [p[0] for p in sweep.points], [p[1] for p in sweep.points]
            axes.plot(batches, speeds, f"{mark}-", color=colour, ms=5, label=shortened(sweep.name))
            for batch, _, low, high in sweep.points:
                if low is not None and high is not None:
                    axes.plot([batch, batch], [low, high], "-", color=colour, lw=4, alpha=0.35)
        ticks = sorted({batch for sweep in sweeps for batch, _, _, _ in sweep.points})
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [str(batch) for batch in ticks])
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        axes.set_xlabel("batch")
        axes.set_ylabel("images/s")
        axes.grid(alpha=0.2)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))

    return _drawn(draw, 3.2)


def _drawn(draw: Callable[[Any], None], height: float) -> str | None:
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        return None
    style: dict[Any, Any] = {
        "svg.hashsalt": "vitdeploy",
        "svg.fonttype": "none",
        "text.parse_math": False,
        "font.family": "sans-serif",
        "font.size": 9,
        **{f"{name}.color": _INK for name in ("text", "xtick", "ytick", "grid")},
        **dict.fromkeys(("axes.edgecolor", "axes.labelcolor"), _INK),
    }
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(7, height), layout="constrained")
        draw(figure.add_subplot())
        buffer = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    text = buffer.getvalue()
    return text[text.index("<svg") :].replace(_INK, "currentColor")


def shortened(name: str, length: int = 36) -> str:
    """`name`, cut in the middle where it would not fit beside a plot."""
    if len(name) <= length:
        return name
    return f"{name[: length // 2]}…{name[-(length // 2 - 1) :]}"
