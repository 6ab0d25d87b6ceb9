"""`Report`: everything that was found out about one model's engines, as one record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vitdeploy.artifacts.onnx_model import ModelDescription, Quantization, Verification
from vitdeploy.benchmarks.accuracy.comparison import Verdict
from vitdeploy.benchmarks.accuracy.judging import AnyComparison
from vitdeploy.benchmarks.report import wording
from vitdeploy.benchmarks.report.positions import PNG, ReportedPositions
from vitdeploy.benchmarks.speed.end_to_end import EndToEnd
from vitdeploy.benchmarks.speed.machine import Conditions, Energy
from vitdeploy.benchmarks.speed.memory import PeakMemory
from vitdeploy.benchmarks.speed.payoff import is_quantized
from vitdeploy.benchmarks.speed.roofline import MachinePeak, RooflineShare
from vitdeploy.benchmarks.speed.scenarios import ScenarioResult
from vitdeploy.benchmarks.speed.throughput import Measurement, Speedup
from vitdeploy.environment import Environment
from vitdeploy.errors import InputError

SCHEMA_VERSION = 1

Status = Literal["ok", "built", "failed"]
"""'built' was built but cannot run on the machine of the report."""


@dataclass(frozen=True)
class AccuracyForecast:
    """What emulations of a graph answer against the source: a span, never a measurement.

    `fused` rounds where a runtime's fused kernels end, `worst` after every
    operation (of float32 graphs both are the graph as it is written).
    `images_digest` names the images, in whatever order; `resolution` is that of graphs of a
    range of sizes (None: the graph's only one).
    """

    graph_file: str
    graph_digest: str
    images_digest: str
    precision: str
    fused: AnyComparison
    worst: AnyComparison
    resolution: tuple[int, int] | None = None
    schema_version: int = SCHEMA_VERSION

    def supersedes(self, older: AccuracyForecast) -> bool:
        """Whether it is of the same images at the same size, or the other of an older graph."""
        if older.graph_digest != self.graph_digest:
            return True
        return (self.images_digest, self.resolution) == (older.images_digest, older.resolution)

    def in_words(self) -> str:
        """'forecast: drop +0.05 to +0.15 points (at most 0.30 to 0.42)'."""
        a, b = self.fused.loss(), self.worst.loss()
        (low, high), (least, most) = sorted((a.value, b.value)), sorted((a.upper, b.upper))
        return (
            f"forecast: {a.what} {low:+.2f} to {high:+.2f} points (at most {least:.2f} to "
            f"{most:.2f}, limit {a.limit:.2f}), {self.fused.verdict} to {self.worst.verdict}"
        )


@dataclass(frozen=True, kw_only=True)
class SpeedDetails:
    """What was measured of an engine beside the timings in turns; empty where it was not.

    `fair_speedups` are against PyTorch's fastest form at each batch size.
    """

    fair_speedups: tuple[Speedup, ...] = ()
    shares: tuple[RooflineShare, ...] = ()
    memory: tuple[PeakMemory, ...] = ()
    energy: tuple[Energy, ...] = ()
    from_files: tuple[EndToEnd, ...] = ()
    scenarios: ScenarioResult | None = None


@dataclass(frozen=True, kw_only=True)
class ReportRow:
    """One engine: what it is, and what was found.

    `name` ('INT8 on OpenVINO') is unique in a report and what every table and chart
    calls it; `file` is the engine's. `note` says why a row failed or could not run,
    or what a reader must know. `targets` are the
    devices it was built for. `throughput` and `speedups` (against the source)
    have one entry a batch size. `forecast` is what emulations of the graph say
    the accuracy will be. `stable` is False where timings were accepted
    although they did not settle.
    """

    name: str
    backend: str
    precision: str
    status: Status
    note: str = ""
    file: str = ""
    size_bytes: int | None = None
    targets: tuple[str, ...] = ()
    accuracy: AnyComparison | None = None
    forecast: AccuracyForecast | None = None
    throughput: tuple[Measurement, ...] = ()
    speedups: tuple[Speedup, ...] = ()
    stable: bool = True
    graph_digest: str = ""
    engine_digest: str = ""
    details: SpeedDetails = SpeedDetails()

    @property
    def not_compared(self) -> str:
        """Why, in a few words, a row that says nothing of accuracy does not."""
        if self.status == "failed":
            return "failed"
        of_others = self.status == "built" and self.targets not in ((), ("cpu",))
        return "built here for other machines" if of_others else "not evaluated yet"

    @property
    def best_speedup(self) -> Speedup | None:
        """The batch size at which the lower end of the interval is highest."""
        return max(self.speedups, key=lambda value: value.low, default=None)


@dataclass(frozen=True)
class Flip:
    """An image that source and engine name differently; `thumbnail` is a PNG data URI.

    Raises InputError for any other URI: a report fetches nothing.
    """

    engine: str
    image: str
    thumbnail: str
    true_label: str | None
    source_prediction: str
    engine_prediction: str

    def __post_init__(self) -> None:
        if not self.thumbnail.startswith(PNG):
            raise InputError(
                f"the thumbnail of {self.image} is not embedded", hint=f"begin it with {PNG}"
            )

    @property
    def outcome(self) -> str:
        """Who is right, in words; that the answers differ where nothing is known to be true."""
        if self.true_label is None:
            return "other answers"
        true, source, engine = (
            set(said.split(", "))
            for said in (self.true_label, self.source_prediction, self.engine_prediction)
        )
        if source == true:
            return "only the source is right"
        return "only the engine is right" if engine == true else "both are wrong"


@dataclass(frozen=True, kw_only=True)
class Report:
    """One model on one machine: source, engines, evidence and provenance.

    `created` is ISO 8601. `model` describes the fp32 graph, `quantization` is
    that of the INT8 graph. `source_label` says what engines are compared with
    ('PyTorch eager FP32', 'reference outputs'); `native_top1` is the source's
    top-1 (of multi-label models: mAP) at `native_resolution`, `source_top1` at
    the exported one, both shares in [0, 1] and None without labels.
    `unreadable` are images left out; `images_digest` names the others, in
    whatever order (empty: nothing was evaluated, or by an older version).
    `source_throughput` is of the source as speed-ups are against it,
    `source_forms` of its other forms (compiled, half precision), one a batch
    size each. `peak` and `conditions` (before and after) are the machine's.
    """

    title: str
    created: str
    model: ModelDescription
    source_label: str
    native_resolution: tuple[int, int]
    native_top1: float | None
    source_top1: float | None
    evaluation_images: int
    evaluation_root: str
    rows: tuple[ReportRow, ...]
    environment: Environment
    unreadable: tuple[str, ...] = ()
    verification: Verification | None = None
    quantization: Quantization | None = None
    source_throughput: tuple[Measurement, ...] = ()
    source_forms: tuple[Measurement, ...] = ()
    peak: MachinePeak | None = None
    conditions: tuple[Conditions, ...] = ()
    flips: tuple[Flip, ...] = ()
    positions: ReportedPositions | None = None
    notes: tuple[str, ...] = ()
    score_name: str = "Top-1"
    images_digest: str = ""
    schema_version: int = SCHEMA_VERSION

    def verdict(self) -> str:
        """What to do, in a plain sentence or two.

        The fastest engine whose accuracy holds is named; it may be shipped
        where its timings settled. Where that is not a quantized one although
        some were compared, the best of those is said not to have paid, and why.
        What failed is named last.
        """
        compared = self._compared()
        if not compared:
            return self._nothing_compared()
        best = max(compared, key=_rank)
        sentence = self._judge(best)
        quantized = [row for row in compared if is_quantized(row.precision)]
        if quantized and not is_quantized(best.precision):
            other = max(quantized, key=_rank)
            told = "did not pay" if _is_told(other) else "was not seen to pay"
            sentence += f" INT8 {told}: {self._findings(other)}."
        failed = [row.name for row in self.rows if row.status == "failed"]
        return sentence + (f" {' and '.join(failed)} failed here." if failed else "")

    def tone(self) -> Verdict:
        """What the verdict comes to, for its colour: 'inconclusive' also where timings drifted."""
        compared = self._compared()
        if not compared:
            return "inconclusive"
        best = max(compared, key=_rank)
        assert best.accuracy is not None
        if best.accuracy.verdict == "pass" and not best.stable:
            return "inconclusive"
        return best.accuracy.verdict

    def _compared(self) -> list[ReportRow]:
        return [row for row in self.rows if row.status == "ok" and row.accuracy is not None]

    def _nothing_compared(self) -> str:
        kinds = [row.not_compared for row in self.rows]
        parts = [f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds)]
        told = f" ({', '.join(parts)})" if parts else ""
        source = self.source_label or "its source"
        return f"No engine was compared with {source}{told}: nothing is proven yet."

    def _judge(self, row: ReportRow) -> str:
        findings, accuracy = self._findings(row), row.accuracy
        assert accuracy is not None
        if accuracy.verdict == "fail":
            return f"No engine is good enough: {findings}. Do not ship."
        if accuracy.verdict == "inconclusive":
            if accuracy.images_needed is None:
                need = "the loss is at the limit, more images will not settle it"
                do = "Keep layers in float (build-engine --keep), or allow more with --max-drop"
            else:
                need = f"about {accuracy.images_needed:,} images needed"
                do = "Evaluate again on that many images, or allow more with --max-drop"
            return f"Inconclusive: {need}. {findings}. {do}."
        speedup = row.best_speedup
        if speedup is None:
            return f"{findings}: the accuracy holds, the speed was not compared."
        if not row.stable:
            return f"{findings}: the accuracy holds, the speed is not known. Time it again."
        if speedup.low <= 1:
            return f"{row.name} did not pay: {findings}."
        return f"{findings}: ship it."

    def _findings(self, row: ReportRow) -> str:
        """'INT8 on ONNX Runtime is 2.1x (2.0 to 2.2) as fast as PyTorch and loses ...'."""
        speedup, parts = row.best_speedup, []
        if speedup is not None:
            unsettled = "" if row.stable else " (timings did not settle)"
            # Without the source in the same rounds, speeds are against the first engine.
            baseline = self.source_label if self.source_throughput else speedup.baseline
            parts.append(
                f"is {wording.speedup(speedup)} as fast as {baseline} "
                f"at batch {speedup.batch}{unsettled}"
            )
        if row.accuracy is not None:
            parts.append(row.accuracy.in_words())
        return f"{row.name} {' and '.join(parts)}"


def _is_told(row: ReportRow) -> bool:
    """Whether what was found of an engine that is not the best says that it is worse."""
    assert row.accuracy is not None
    verdict = row.accuracy.verdict
    timed = verdict == "pass" and row.best_speedup is not None
    return row.stable and (timed or verdict == "fail")


def _rank(row: ReportRow) -> tuple[int, bool, float, bool]:
    """Best last: by verdict, then speed; where speeds are unknown, quantized ones."""
    assert row.accuracy is not None
    verdict = ("fail", "inconclusive", "pass").index(row.accuracy.verdict)
    speedup = row.best_speedup
    return (
        verdict,
        speedup is not None,
        speedup.low if speedup else 0.0,
        is_quantized(row.precision),
    )
