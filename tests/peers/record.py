"""What is known of one peer on one subject, as it stands in `results/`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vitdeploy.artifacts.files import from_json, read_text, to_json, write_text
from vitdeploy.benchmarks.accuracy.classes import AccuracyComparison
from vitdeploy.benchmarks.speed.throughput import ThroughputComparison

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What quantizing took, imports apart.

    `peak_bytes` is the process's largest resident size, of which
    `imported_bytes` were there before the work began. CPU seconds are of all
    threads; on a machine with other work they say more than wall seconds.
    """

    file: str
    wall_seconds: float
    cpu_seconds: float
    peak_bytes: int
    imported_bytes: int
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class Answers:
    """How a file answers on one runtime, against the float model on ONNX Runtime."""

    runtime: str
    comparison: AccuracyComparison | None = None
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class Acceptance:
    """Whether TensorRT-RTX built an engine of it for `targets`, or what it said instead."""

    version: str
    targets: tuple[str, ...]
    engine_bytes: int | None = None
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Where and when, with which versions; `load` is the machine's load average before."""

    date: str
    load: float
    machine: str
    cores: int
    threads: int
    python: str
    versions: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class PeerRecord:
    """A row. `error` is what stopped the peer itself; then nothing else is known."""

    subject: str
    peer: str
    images: int
    setting: Setting
    cost: Cost | None = None
    answers: tuple[Answers, ...] = ()
    acceptance: Acceptance | None = None
    error: str = ""
    schema_version: int = 1
    kind: str = "peer"


@dataclass(frozen=True, kw_only=True)
class Timed:
    """One file on one runtime in a timing run; `error` where the runtime refused it."""

    peer: str
    runtime: str
    error: str = ""

    @property
    def name(self) -> str:
        return f"{self.peer} on {self.runtime}"


@dataclass(frozen=True, kw_only=True)
class TimingRecord:
    """All files of a subject in one interleaved run, the baseline first."""

    subject: str
    setting: Setting
    entries: tuple[Timed, ...]
    comparison: ThroughputComparison
    schema_version: int = 1
    kind: str = "timing"


def path_of(subject: str, name: str) -> Path:
    """Where a record stands; `name` is a peer's key or 'throughput'."""
    return RESULTS / subject / f"{name}.json"


def write(record: PeerRecord | TimingRecord) -> None:
    name = record.peer if isinstance(record, PeerRecord) else "throughput"
    write_text(path_of(record.subject, name), to_json(record))


def read_peer(subject: str, peer: str) -> PeerRecord | None:
    """None where the peer has not run yet. Raises InputError for a damaged file."""
    path = path_of(subject, peer)
    if not path.exists():
        return None
    return from_json(read_text(path, what="record"), PeerRecord, origin=str(path))


def read_timing(subject: str) -> TimingRecord | None:
    """None where nothing was timed yet. Raises InputError for a damaged file."""
    path = path_of(subject, "throughput")
    if not path.exists():
        return None
    return from_json(read_text(path, what="record"), TimingRecord, origin=str(path))
