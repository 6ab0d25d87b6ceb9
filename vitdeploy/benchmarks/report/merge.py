"""Reports of one model from several machines as one comparison: `MergedReport`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from vitdeploy.benchmarks.accuracy.comparison import Verdict
from vitdeploy.benchmarks.naming import backend_title, told_apart
from vitdeploy.benchmarks.report import wording
from vitdeploy.benchmarks.report.model import Report, ReportRow
from vitdeploy.errors import InputError

SCHEMA_VERSION = 2
ABOUT_SPEEDUPS = (
    "Speed-ups are against the source in the same run, which stands above its engines; where it "
    "was not timed, against the first engine."
)


@dataclass(frozen=True)
class Device:
    """A machine and its software, under a name that is unique in a merge.

    `reports` are of different engines; each was timed by itself, against its own source.
    """

    name: str
    reports: tuple[Report, ...]


@dataclass(frozen=True)
class MergedReport:
    """Reports of one model at one resolution, on the same images, from several devices.

    The flips' thumbnails stay in the reports they come from.
    """

    title: str
    created: str
    devices: tuple[Device, ...]
    schema_version: int = SCHEMA_VERSION
    kind: str = "merged-report"

    def heading(self) -> str:
        """'vit_tiny at 224x224 in 3 environments': some may be of one CPU."""
        count = len(self.devices)
        return f"{self.title} in {count} environment{'s' if count > 1 else ''}"

    def verdict(self) -> str:
        """The fastest engine of all that holds its accuracy, and whether its speed is known."""
        found = self._best()
        if found is None:
            return "On no device was an engine both timed and found to keep the accuracy."
        speed, device, row = found
        unsettled = "" if row.stable else " Its timings did not settle: time it again."
        return (
            f"Of those that keep the accuracy, {row.name} is the fastest: {speed:,.0f} images/s on "
            f"{device.name}.{unsettled}"
        )

    def tone(self) -> Verdict:
        """What the verdict comes to, for its colour."""
        found = self._best()
        return "pass" if found is not None and found[2].stable else "inconclusive"

    def _best(self) -> tuple[float, Device, ReportRow] | None:
        passing = [
            (speed, device, row)
            for device in self.devices
            for report in device.reports
            for row in report.rows
            if row.accuracy is not None
            and row.accuracy.verdict == "pass"
            and (speed := best_images_per_second(row)) is not None
        ]
        return max(passing, key=lambda found: found[0], default=None)


def best_images_per_second(row: ReportRow) -> float | None:
    """The throughput at the best batch size; None where it was not timed."""
    return max((m.images_per_second() for m in row.throughput), default=None)


def merge(
    reports: Sequence[Report], *, created: str = "", files: Sequence[str] = ()
) -> MergedReport:
    """One comparison of what was found on several devices, or of several engines on one.

    Reports of one machine with the same software are one device. `files` are what errors call
    the reports. Raises InputError unless there are at least two, each once, no engine stands in
    two of one device, all are of the same weights, resolution, preprocessing and output, and all
    accuracies are of the same images.
    """
    if len(reports) < 2:
        raise InputError(
            f"there is {len(reports)} report to merge", hint="give two or more report.json"
        )
    names = list(files) or [f"report {number}" for number in range(1, len(reports) + 1)]
    for number, report in enumerate(reports):
        if report in reports[:number]:
            one, other = names[reports.index(report)], names[number]
            both = f"{one} is given twice" if one == other else f"{one} and {other} are the same"
            raise InputError(
                f"{both}: {report.title} ({report.created}) on {_hardware(report)}",
                hint="give each report once",
            )
    first = reports[0]
    for other in reports[1:]:
        require_comparable(first, other)
    devices = _devices(reports)
    for own in devices:
        _require_engines_once([(names[i], reports[i]) for i in own])
    found = [_told_apart([replace(reports[i], flips=()) for i in own]) for own in devices]
    wholes = [replace(own[0], rows=tuple(row for r in own for row in r.rows)) for own in found]
    named = zip(device_names(wholes), found, strict=True)
    return MergedReport(first.title, created, tuple(Device(*device) for device in named))


def _devices(reports: Sequence[Report]) -> list[list[int]]:
    """Which reports are of one device: of one GPU or CPU, under the same software."""
    devices: list[list[int]] = []
    for i, report in enumerate(reports):
        for own in devices:
            known = reports[own[0]]
            same = known.environment == report.environment
            if same and _hardware(known) == _hardware(report):
                own.append(i)
                break
        else:
            devices.append([i])
    return devices


def _require_engines_once(reports: Sequence[tuple[str, Report]]) -> None:
    """Raise InputError where two reports of one device tell of the same engine.

    By its digest; where one of both does not know that, by its name.
    """
    known: list[tuple[str, ReportRow]] = []
    for file, report in reports:
        own = [row for row in report.rows if row.status != "failed"]
        for row in own:
            other = next((before for before, found in known if _same_engine(found, row)), None)
            if other is not None:
                raise InputError(
                    f"{other} and {file} both tell of {row.name} on {_hardware(report)}: the same "
                    "engine on the same machine with the same software",
                    hint="give one of them; `vitdeploy report NEW --baseline OLD` compares two of "
                    "one machine",
                )
        known += [(file, row) for row in own]


def _same_engine(one: ReportRow, other: ReportRow) -> bool:
    if one.engine_digest and other.engine_digest:
        return one.engine_digest == other.engine_digest
    return one.name == other.name


def _told_apart(reports: Sequence[Report]) -> tuple[Report, ...]:
    """With engines of one kind in two reports told apart, as those in one report are."""
    rows = [row for report in reports for row in report.rows]
    names = iter(told_apart([row.name for row in rows], [row.engine_digest for row in rows]))
    return tuple(
        replace(report, rows=tuple(replace(row, name=next(names)) for row in report.rows))
        for report in reports
    )


def require_comparable(first: Report, other: Report) -> None:
    """Raise InputError unless both are of the same model and, where evaluated, the same images."""
    one, two = first.model, other.model
    facts: list[tuple[str, str, str]] = [
        ("weights", one.source.weights_digest[:8], two.source.weights_digest[:8]),
        ("resolution", wording.size(one.resolution), wording.size(two.resolution)),
        ("preprocessing", one.source.preprocessing.digest[:8], two.source.preprocessing.digest[:8]),
        ("output", one.output, two.output),
    ]
    if _evaluated(first) and _evaluated(other):
        if first.images_digest and other.images_digest:
            facts.append(("images", first.images_digest[:8], other.images_digest[:8]))
        counts = [f"{report.evaluation_images:,}" for report in (first, other)]
        facts.append(("number of images", counts[0], counts[1]))
    for what, here, there in facts:
        if here != there:
            raise InputError(
                f"{first.title} ({first.created}) and {other.title} ({other.created}) cannot be "
                f"compared: the {what} differ, {here} and {there}",
                hint="evaluate both on the same images with engines of the same export",
            )


def device_names(reports: Sequence[Report]) -> list[str]:
    """What each report was made on: its GPU where an engine ran there, else its CPU.

    Those of one machine are told apart by what differs first: versions of the runtimes that ran
    and of Python, the time.
    """
    names = [_hardware(report) for report in reports]
    for tell in (_versions, lambda report: f", {wording.day(report.created)}"):
        told = [(name, tell(report)) for name, report in zip(names, reports, strict=True)]
        names = [
            name + more if len({other for same, other in told if same == name}) > 1 else name
            for name, more in told
        ]
    return [
        name if names.count(name) == 1 else f"{name} ({names[:i].count(name) + 1})"
        for i, name in enumerate(names)
    ]


def header(merged: MergedReport) -> tuple[str, ...]:
    """Of the table of all engines."""
    return (
        "Engine", "MB", merged.devices[0].reports[0].score_name, "Agreement",
        "Drop, points (95 % bound)", "ms/image (batch)", "images/s (batch)",
        "Speed-up (95 % interval)", "Verdict",
    )  # fmt: skip


def rows_of(device: Device) -> list[tuple[ReportRow | None, tuple[str, ...]]]:
    """(engine, cells): the source of each run (None), then the engines of that run.

    Reports of one run have one source.
    """
    found: list[tuple[ReportRow | None, tuple[str, ...]]] = []
    before = None
    for report in device.reports:
        source = _source_cells(report)
        if (source, report.source_throughput) != before:
            found.append((None, source))
        before = source, report.source_throughput
        found += [(row, _cells(row)) for row in report.rows]
    return found


def table_rows(merged: MergedReport) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """(header, rows) where there is no other way to say which device rows are of: its name
    stands in the first of them."""
    rows = []
    for device in merged.devices:
        cells = [cells for _, cells in rows_of(device)]
        names = [device.name, *[""] * (len(cells) - 1)]
        rows += [(name, *own) for name, own in zip(names, cells, strict=True)]
    return ("Device", *header(merged)), rows


def machine_facts(device: Device) -> list[tuple[str, str]]:
    """(name, value) of where a device's reports were made."""
    machine = device.reports[0].environment
    return [
        ("Machine", f"{wording.cores(machine)}, {machine.system}"),
        ("GPU", machine.gpu or "none"),
        ("Python", machine.python),
        ("Packages", ", ".join(f"{n} {v}" for n, v in sorted(machine.packages.items()))),
    ]


def run_name(report: Report) -> str:
    """'ONNX Runtime and OpenVINO (report of 2026-11-30 20:45 UTC)'."""
    ran = dict.fromkeys(backend_title(row.backend) for row in report.rows)
    return f"{' and '.join(ran)} (report of {wording.day(report.created)})"


def facts(report: Report) -> list[tuple[str, str]]:
    """(name, value) of what a device's report comes to."""
    found = [("Verdict", report.verdict())]
    found += [("Ran under", seen.in_words()) for seen in report.conditions[-1:]]
    return found + [("Note", note) for note in report.notes]


def _evaluated(report: Report) -> bool:
    return any(row.accuracy is not None for row in report.rows)


def _hardware(report: Report) -> str:
    machine = report.environment
    on_gpu = any(row.status == "ok" and row.targets not in ((), ("cpu",)) for row in report.rows)
    return machine.gpu if on_gpu and machine.gpu else wording.cores(machine)


def _versions(report: Report) -> str:
    """' (onnxruntime 1.20.1, Python 3.12.1)': the packages of the runtimes that ran."""
    machine = report.environment
    ran = {row.backend for row in report.rows if row.status == "ok"}
    packages = [
        f"{name} {version}"
        for name, version in sorted(machine.packages.items())
        if any(name.startswith(backend.split("-")[0]) for backend in ran)
    ]
    return f" ({', '.join([*packages, f'Python {machine.python}'])})"


def _source_cells(report: Report) -> tuple[str, ...]:
    nothing = wording.NOTHING
    return (
        report.source_label, nothing, wording.percent(report.source_top1), nothing, nothing,
        *_fastest(report.source_throughput), nothing, "the source",
    )  # fmt: skip


def _cells(row: ReportRow) -> tuple[str, ...]:
    accuracy, best = row.accuracy, row.best_speedup
    if row.status != "ok":
        verdict = row.status + (f": {row.note}" if row.note else "")
    else:
        verdict = "not compared" if accuracy is None else accuracy.verdict
        verdict += "" if row.stable else ", timings did not settle"
    return (
        row.name,
        wording.megabytes(row.size_bytes),
        wording.score(accuracy),
        wording.percent(accuracy.agreement if accuracy else None),
        wording.drop(accuracy),
        *_fastest(row.throughput),
        wording.NOTHING if best is None else f"{wording.speedup(best)} at batch {best.batch}",
        verdict,
    )


def _fastest(measured: Sequence[wording.Measurement]) -> tuple[str, str]:
    """ms/image at the smallest batch, images/s at the best one."""
    if not measured:
        return wording.NOTHING, wording.NOTHING
    quick = min(measured, key=lambda m: m.batch)
    fast = max(measured, key=lambda m: m.images_per_second())
    return (
        f"{wording.significant(quick.ms_per_image())} ({quick.batch})",
        f"{wording.significant(fast.images_per_second())} ({fast.batch})",
    )
