"""Where vitdeploy does not lead, worked out from the records, each with its reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tests.peers.record import PeerRecord, TimingRecord
from tests.peers.registry import PEERS
from tests.peers.sessions import RUNTIMES
from tests.peers.subjects import Subject

OWN = "vitdeploy"


@dataclass(frozen=True, kw_only=True)
class Column:
    """A figure of a row (None: has none), whether more is better, and why ours may lose."""

    title: str
    figure: Callable[[PeerRecord], float | None]
    more_is_better: bool
    shown: str
    reason: str


def _agreement(runtime: str) -> Callable[[PeerRecord], float | None]:
    def figure(row: PeerRecord) -> float | None:
        found = (a.comparison for a in row.answers if a.runtime == runtime and a.comparison)
        return next((100 * comparison.agreement for comparison in found), None)

    return figure


def cosine_distance(row: PeerRecord) -> float | None:
    """Millionths, the mean over images, on the first runtime that answers."""
    found = (answers.comparison for answers in row.answers if answers.comparison)
    return next((1e6 * (1 - comparison.cosine_mean) for comparison in found), None)


_ANSWERS = (
    "behind GELU, where nothing can be folded, NNCF divides channels by a multiplication that "
    "stays in the graph; dynamic quantization takes a new scale for each batch, which TensorRT "
    "does not; and whether a difference is one, the intervals say"
)

COLUMNS = (
    *(
        Column(
            title=f"agreement on {runtime}",
            figure=_agreement(runtime),
            more_is_better=True,
            shown="{:.2f} %",
            reason=_ANSWERS,
        )
        for runtime in RUNTIMES
    ),
    Column(
        title="distance of the answers",
        figure=cosine_distance,
        more_is_better=False,
        shown="{:.0f}",
        reason=_ANSWERS,
    ),
    Column(
        title="processor time of quantizing",
        figure=lambda row: row.cost and row.cost.cpu_seconds,
        more_is_better=False,
        shown="{:.1f} s",
        reason="it decodes the images, passes over them twice, searches folds, ranges and biases "
        "by what layers answer, and checks the result on 64 more images",
    ),
    Column(
        title="peak memory",
        figure=lambda row: row.cost and row.cost.peak_bytes / 1e6,
        more_is_better=False,
        shown="{:.0f} MB",
        reason="its searches hold rows of 32 images for every layer, whatever the number of "
        "images; quantizing without images (dynamic) needs none",
    ),
    Column(
        title="file size",
        figure=lambda row: row.cost and row.cost.size_bytes / 1e6,
        more_is_better=False,
        shown="{:.2f} MB",
        reason="the patch embedding, positions and whatever is no Linear layer stay in float32, "
        "for the sake of the answers, and the file carries its own description",
    ),
)

_SPEED = (
    "NNCF and Model Optimizer quantize products of attention and the patch embedding as well, "
    "which stay in float here for the sake of the answers; whether a difference is one, the "
    "intervals say"
)


@dataclass(frozen=True)
class Compared:
    """All records of a subject; None for those that have not been made."""

    subject: Subject
    rows: Mapping[str, PeerRecord | None]
    timed: TimingRecord | None = None


def columns_lost(compared: Sequence[Compared]) -> list[str]:
    """A line for each column in which a quantizing peer has a better figure somewhere."""
    found = [
        (
            column.title,
            column.reason,
            [(c.subject.key, _in_column(column, c.rows)) for c in compared],
        )
        for column in COLUMNS
    ]
    found += [
        (
            f"throughput on {runtime}",
            _SPEED,
            [(c.subject.key, _lost(_ratios(c.timed, runtime), True, "{:.2f}x")) for c in compared],
        )
        for runtime in RUNTIMES
    ]
    lines = []
    for title, reason, by_subject in found:
        lost = [f"{key}: {line}" for key, line in by_subject if line]
        if lost:
            lines += [f"- **{title}**: {reason}.", *(f"  - {line}" for line in lost)]
    return lines


def _in_column(column: Column, rows: Mapping[str, PeerRecord | None]) -> str:
    figures = {
        key: figure
        for key, row in rows.items()
        if row is not None and key != "float" and (figure := column.figure(row)) is not None
    }
    return _lost(figures, column.more_is_better, column.shown)


def _ratios(timed: TimingRecord | None, runtime: str) -> dict[str, float]:
    """Times as fast as the float model: rates change with the machine's other work, ratios less."""
    if timed is None:
        return {}
    ratios = {speedup.name: speedup.ratio for speedup in timed.comparison.speedups}
    return {
        entry.peer: ratios[entry.name]
        for entry in timed.entries
        if entry.runtime == runtime and not entry.error and entry.peer != "float"
    }


def _lost(figures: dict[str, float], more_is_better: bool, shown: str) -> str:
    """'X with 1.2 s before vitdeploy with 8.0 s'; '' where ours is as good as any.

    Figures count as they are shown: a difference in digits that the page does
    not print is none.
    """
    own = figures.get(OWN)
    if own is None:
        return "vitdeploy has no figure" if figures else ""
    sign = 1 if more_is_better else -1
    better = {
        key: figure
        for key, figure in figures.items()
        if sign * figure > sign * own and shown.format(figure) != shown.format(own)
    }
    ranked = sorted(better, key=lambda key: -sign * better[key])
    named = [f"{PEERS[key].title} with {shown.format(better[key])}" for key in ranked]
    return f"{', '.join(named)} before vitdeploy with {shown.format(own)}" if named else ""
