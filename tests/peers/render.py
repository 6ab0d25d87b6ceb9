"""Records to docs/peers.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tests.peers import record
from tests.peers.leads import Compared, columns_lost, cosine_distance
from tests.peers.record import Answers, PeerRecord, Setting, TimingRecord
from tests.peers.registry import PEERS, Peer
from tests.peers.sessions import RUNTIMES
from tests.peers.subjects import SUBJECTS, Subject

_HEAD = """# Beside other quantizers

Every peer quantizes the same float model with the same calibration images (preprocessed once, by
the model's own recipe, and handed over as arrays; vitdeploy alone decodes them itself), each in a
process of its own. Its file then answers the same evaluation images on ONNX Runtime and OpenVINO
and is offered to TensorRT-RTX. A peer that fails is a row that says so. This page is made from the
records in `tests/peers/results/`:

```console
$ make peers                                   # an environment of their own, and the records
$ .peers/bin/python -m tests.peers run --model demo --peer nncf-onnx --again
$ .peers/bin/python -m tests.peers time --model vit-base
$ .peers/bin/python -m tests.peers run --model my.onnx --calib train/ --eval val/
$ .peers/bin/python -m tests.peers table       # this page
```

- **agreement**: images with the float model's own top-1 (of ONNX Runtime), with the 95 % interval;
  **drop**: the one-sided 95 % bound of the paired loss of top-1, in points.
- **distance**: 1 less the cosine between the logits and the float model's, the mean over images in
  millionths: finer than agreement.
- **CPU s**: seconds of processor time that quantizing took, all threads together and imports apart
  (other work on the machine does not count); wall seconds in brackets.
- **peak MB**: the process at its largest; in brackets what of it quantizing added to the imports.
- **RTX**: TensorRT-RTX's parser and builder made an engine for SM86, SM89 and SM120 of it.
"""

_TIMED = """
## Throughput

All files on both runtimes in turns in one process, medians; in brackets how many times as fast as
the float model on ONNX Runtime in the same rounds, with the 95 % interval over rounds. The ratios
are what to compare: other work on the machine changes the rates. Where a run has not settled,
differences within the intervals mean nothing.
"""


def rendered() -> str:
    """The page. What has not been run says so."""
    subjects = _subjects()
    parts = [_HEAD, *_settings(subjects), "\n## Who, and how they are called\n"]
    parts += [f"- **{peer.title}**: {peer.setting}." for peer in PEERS.values()]
    compared: list[Compared] = []
    for subject in subjects:
        rows = {key: record.read_peer(subject.key, key) for key in PEERS}
        timed = record.read_timing(subject.key)
        parts += [f"\n## {subject.title[0].upper()}{subject.title[1:]}\n"]
        parts += _subject(subject, rows)
        compared.append(Compared(subject, rows, timed))
    parts.append(_TIMED)
    for entry in compared:
        if entry.timed is not None:
            parts += _throughput(entry.subject, entry.timed)
    missing = [entry.subject.title for entry in compared if entry.timed is None]
    if missing:
        parts.append(f"\nNot timed: {'; '.join(missing)}.")
    parts += [
        "\n## Where vitdeploy does not lead\n",
        *(columns_lost(compared) or ["Nowhere in these records."]),
    ]
    return "\n".join(parts) + "\n"


def _subjects() -> list[Subject]:
    """Those that are named here, and every other that has records."""
    folders = sorted(record.RESULTS.iterdir()) if record.RESULTS.is_dir() else []
    others = [folder.name for folder in folders if folder.name not in SUBJECTS]
    known = SUBJECTS["demo"]
    return [*SUBJECTS.values(), *(replace(known, key=name, title=name) for name in others)]


def _settings(subjects: Sequence[Subject]) -> list[str]:
    found = [
        row.setting
        for subject in subjects
        for key in PEERS
        if (row := record.read_peer(subject.key, key)) is not None
    ]
    if not found:
        return ["\nNothing has been run yet."]
    versions = {f"{name} {v}" for one in found for name, v in one.versions.items()}
    loads = [one.load for one in found]
    machines = sorted({_machine(one) for one in found})
    dates = sorted({one.date for one in found})
    return [
        f"\nTaken {_span(dates)} on {'; '.join(machines)}; load average before each run "
        f"{min(loads)} to {max(loads)}. Versions: {', '.join(sorted(versions))}."
    ]


def _machine(setting: Setting) -> str:
    return f"{setting.machine}, {setting.cores} cores, Python {setting.python}"


def _span(values: list[str]) -> str:
    return values[0] if values[0] == values[-1] else f"{values[0]} to {values[-1]}"


def _subject(subject: Subject, rows: Mapping[str, PeerRecord | None]) -> list[str]:
    titles = ["peer"]
    if subject.judged:
        for name in ("ONNX Runtime", "OpenVINO"):
            titles += [f"agreement, {name}", f"top-1 (drop), {name}"]
        titles.append("distance")
    titles += ["CPU s", "peak MB", "file MB", "RTX"]
    lines = [f"| {' | '.join(titles)} |", f"|{'---|' * len(titles)}"]
    notes: list[str] = []
    for key, peer in PEERS.items():
        cells = _cells(subject, peer, rows[key], notes)
        cells += ["-"] * (len(titles) - 1 - len(cells))
        lines.append(f"| {peer.title} | {' | '.join(cells)} |")
    compared = next(
        (a.comparison for r in rows.values() if r for a in r.answers if a.comparison), None
    )
    images = next((row.images for row in rows.values() if row), subject.calibration_images)
    said = f"\n{images} calibration images"
    if compared is not None:
        entropy = f"{compared.source_entropy_bits:.2f} bits"
        said += f", {compared.images} evaluation images (entropy of the float answers {entropy})"
    if not subject.judged:
        said += ". The weights are random, so that agreement would mean little: not judged"
    lines.append(said + ".")
    return lines + (["", *notes] if notes else [])


def _cells(subject: Subject, peer: Peer, row: PeerRecord | None, notes: list[str]) -> list[str]:
    if row is None:
        return ["not run"]
    if row.error or row.cost is None:
        notes.append(f"- {peer.title} failed: {row.error}")
        return ["failed"]
    cells: list[str] = []
    if subject.judged:
        for runtime in RUNTIMES:
            answers = next((a for a in row.answers if a.runtime == runtime), None)
            cells += _answer_cells(answers, peer, notes)
        distance = cosine_distance(row)
        cells.append("-" if distance is None else f"{distance:.0f}")
    cost = row.cost
    added = cost.peak_bytes - cost.imported_bytes
    cells += [
        f"{cost.cpu_seconds:.1f} ({cost.wall_seconds:.1f})",
        f"{cost.peak_bytes / 1e6:.0f} ({added / 1e6:.0f})",
        f"{cost.size_bytes / 1e6:.1f}",
    ]
    acceptance = row.acceptance
    if acceptance is None or acceptance.error:
        # What stands in brackets is the vendor's own text, whole in the record.
        why = acceptance.error.partition(" [")[0] if acceptance else "not tried"
        notes.append(f"- {peer.title}, TensorRT-RTX: {why}.")
        return [*cells, "no"]
    return [*cells, "yes"]


def _answer_cells(answers: Answers | None, peer: Peer, notes: list[str]) -> list[str]:
    if answers is None:
        return ["another format", "-"]
    if answers.comparison is None:
        notes.append(f"- {peer.title}, {answers.runtime}: {answers.error}")
        return ["no answers", "-"]
    found = answers.comparison
    low, high = (100 * end for end in found.agreement_interval)
    top1 = found.engine_top1 or 0.0
    return [
        f"{100 * found.agreement:.2f} % ({low:.1f} to {high:.1f})",
        f"{100 * top1:.2f} % ({found.drop_upper_points:+.2f})",
    ]


def _throughput(subject: Subject, timed: TimingRecord) -> list[str]:
    compared = timed.comparison
    rates = {m.name: m.images_per_second() for m in compared.measurements}
    ratios = {s.name: s for s in compared.speedups}
    lines = [f"\n### {subject.title}\n", "| peer | ONNX Runtime | OpenVINO |", "|---|---|---|"]
    notes: list[str] = []
    for key, peer in PEERS.items():
        cells = []
        for runtime in RUNTIMES:
            entry = next((e for e in timed.entries if (e.peer, e.runtime) == (key, runtime)), None)
            if entry is None:
                cells.append("-")
            elif entry.error:
                notes.append(f"- {peer.title}, {runtime}: {entry.error}")
                cells.append("refused")
            else:
                ratio = ratios.get(entry.name)
                times = (
                    f" ({ratio.ratio:.2f}x, {ratio.low:.2f} to {ratio.high:.2f})" if ratio else ""
                )
                cells.append(f"{rates[entry.name]:.1f}/s{times}")
        lines.append(f"| {peer.title} | {' | '.join(cells)} |")
    rounds = len(compared.measurements[0].samples_ms)
    settled = "settled" if compared.stable else f"not settled (drift {100 * compared.drift:.0f} %)"
    lines.append(
        f"\nBatch {compared.batch}, {timed.setting.threads} threads, {rounds} rounds, {settled}, "
        f"load average before {timed.setting.load}, {timed.setting.date}, "
        f"{_machine(timed.setting)}."
    )
    return [*lines, *_after_blank(notes)]


def _after_blank(notes: Iterable[str]) -> list[str]:
    found = list(notes)
    return ["", *found] if found else []
