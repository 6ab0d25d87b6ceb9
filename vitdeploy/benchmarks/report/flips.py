"""Images that source and engine answer differently, engine by engine."""

from __future__ import annotations

from dataclasses import dataclass

from vitdeploy.benchmarks.accuracy.classes import AccuracyComparison
from vitdeploy.benchmarks.accuracy.judging import AnyComparison
from vitdeploy.benchmarks.report import wording
from vitdeploy.benchmarks.report.model import Flip, Report

TITLE = "Images answered differently"


@dataclass(frozen=True)
class FlipsOfEngine:
    """`about` says how many images there are in all, and who is right on them."""

    engine: str
    about: str
    flips: tuple[Flip, ...]


def flips_by_engine(report: Report) -> list[FlipsOfEngine]:
    """An entry for each engine that answers some image otherwise than the source."""
    found = []
    for name in dict.fromkeys(flip.engine for flip in report.flips):
        flips = tuple(flip for flip in report.flips if flip.engine == name)
        accuracy = next((row.accuracy for row in report.rows if row.name == name), None)
        found.append(FlipsOfEngine(name, _about(flips, accuracy), flips))
    return found


def rows(of_engine: FlipsOfEngine) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """(header, rows) for where no image can be shown."""
    header = ("Image", "Who is right", "True label", "The source says", f"{of_engine.engine} says")
    return header, [
        (
            flip.image,
            flip.outcome,
            flip.true_label or wording.NOTHING,
            flip.source_prediction,
            flip.engine_prediction,
        )
        for flip in of_engine.flips
    ]


def _about(flips: tuple[Flip, ...], accuracy: AnyComparison | None) -> str:
    if not isinstance(accuracy, AccuracyComparison):
        return f"The first {len(flips)}."
    differ = accuracy.images - round(accuracy.agreement * accuracy.images)
    told = f"{differ:,} of {accuracy.images:,} images"
    if accuracy.labelled:
        told += (
            f": on {accuracy.lost:,} only the source is right, on {accuracy.gained:,} only the "
            f"engine, on {differ - accuracy.lost - accuracy.gained:,} neither"
        )
    return told + ("." if differ == len(flips) else f". The first {len(flips)} are shown.")
