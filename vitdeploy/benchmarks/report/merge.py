"""Reports of one model from several machines as one comparison: `MergedReport`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from vitdeploy.benchmarks.accuracy.comparison import Verdict
from vitdeploy.benchmarks.report import wording
from vitdeploy.benchmarks.report.model import Report, ReportRow
from vitdeploy.errors import InputError

SCHEMA_VERSION = 1
ABOUT_SPEEDUPS = (
    "Speed-ups are of one run on one device: against the source, or where it was not timed, "
    "against the first engine."
)


@dataclass(frozen=True)
class DeviceReport:
    """What was found on one device; `name` says what that is, and is unique in a merge."""

    name: str
    report: Report


@dataclass(frozen=True)
class MergedReport:
    """Reports of one model at one resolution, on the same images, from several devices.

    The flips' thumbnails stay in the reports they come from.
    """

    title: str
    created: str
    devices: tuple[DeviceReport, ...]
    schema_version: int = SCHEMA_VERSION
    kind: str = "merged-report"

    def verdict(self) -> str:
        """The fastest engine of all that holds its accuracy, and whether its speed is known."""
        found = self._best()
        if found is None:
            return "On no device was an engine both timed and found to keep the accuracy."
        speed, device, row = found
        unsettled = "" if row.stable else " Its timings did not settle: time it again."
        return (
            f"Of those that keep the accuracy, {row.title} on {device.name} is the fastest: "
            f"{speed:,.0f} images/s.{unsettled}"
        )

    def tone(self) -> Verdict:
        """What the verdict comes to, for its colour."""
        found = self._best()
        return "pass" if found is not None and found[2].stable else "inconclusive"

    def _best(self) -> tuple[float, DeviceReport, ReportRow] | None:
        passing = [
            (speed, device, row)
            for device in self.devices
            for row in device.report.rows
            if row.accuracy is not None
            and row.accuracy.verdict == "pass"
            and (speed := best_images_per_second(row)) is not None
        ]
        return max(passing, key=lambda found: found[0], default=None)


def best_images_per_second(row: ReportRow) -> float | None:
    """The throughput at the best batch size; None where it was not timed."""
    return max((m.images_per_second() for m in row.throughput), default=None)


def merge(reports: Sequence[Report], *, created: str = "") -> MergedReport:
    """One comparison of what was found on several devices.

    Raises InputError unless there are at least two, each once, all of the same
    weights, resolution, preprocessing and output, and all accuracies are of
    the same images.
    """
    if len(reports) < 2:
        raise InputError(
            f"there is {len(reports)} report to merge", hint="give two or more report.json"
        )
    for number, report in enumerate(reports):
        if report in reports[:number]:
            raise InputError(
                f"reports {reports.index(report) + 1} and {number + 1} are one and the same: "
                f"{report.title} ({report.created}) on {_device(report)}",
                hint="give each report once",
            )
    first = reports[0]
    for other in reports[1:]:
        require_comparable(first, other)
    names = device_names(reports)
    return MergedReport(
        first.title,
        created,
        tuple(
            DeviceReport(name, replace(report, flips=()))
            for name, report in zip(names, reports, strict=True)
        ),
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

    Reports of one machine are told apart by what differs first: runtimes,
    versions of those and of Python, the time.
    """
    names = [_device(report) for report in reports]
    for tell in (_runtimes, _versions, lambda report: f", {report.created}"):
        told = [(name, tell(report)) for name, report in zip(names, reports, strict=True)]
        names = [
            name + more if len({other for same, other in told if same == name}) > 1 else name
            for name, more in told
        ]
    return [
        name if names.count(name) == 1 else f"{name} ({names[:i].count(name) + 1})"
        for i, name in enumerate(names)
    ]


def table_rows(merged: MergedReport) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """(header, rows): each device's source, then its engines that ran there."""
    header = (
        "Device", "Engine", "Precision", "MB", merged.devices[0].report.score_name, "Agreement",
        "Drop, points (95 % bound)", "ms/image (batch)", "images/s (batch)",
        "Speed-up on this device", "Verdict",
    )  # fmt: skip
    rows = []
    for device in merged.devices:
        rows.append(_source_cells(device))
        rows.extend(_cells(device.name, row) for row in device.report.rows)
    return header, rows


def facts(device: DeviceReport) -> list[tuple[str, str]]:
    """(name, value) of what a device's report comes to and where it was made."""
    report, machine = device.report, device.report.environment
    found = [
        ("Verdict", report.verdict()),
        ("Measured", report.created),
        ("Machine", f"{machine.cpu}, {machine.cores} cores, {machine.system}"),
        ("GPU", machine.gpu or "none"),
        ("Python", machine.python),
        ("Packages", ", ".join(f"{n} {v}" for n, v in sorted(machine.packages.items()))),
    ]
    found += [("Ran under", seen.in_words()) for seen in report.conditions[-1:]]
    return found + [("Note", note) for note in report.notes]


def _evaluated(report: Report) -> bool:
    return any(row.accuracy is not None for row in report.rows)


def _device(report: Report) -> str:
    machine = report.environment
    on_gpu = any(row.status == "ok" and row.targets not in ((), ("cpu",)) for row in report.rows)
    if on_gpu and machine.gpu:
        return machine.gpu
    return f"{machine.cpu}, {machine.cores} core{'s' if machine.cores > 1 else ''}"


def _runtimes(report: Report) -> str:
    ran = [wording.backend_title(row.backend) for row in report.rows if row.status == "ok"]
    return f" with {' and '.join(dict.fromkeys(ran)) or 'no runtime'}"


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


def _source_cells(device: DeviceReport) -> tuple[str, ...]:
    report = device.report
    nothing = wording.NOTHING
    return (
        device.name, report.source_label, "fp32", nothing, wording.percent(report.source_top1),
        nothing, nothing, *_fastest(report.source_throughput), nothing, "the source",
    )  # fmt: skip


def _cells(device: str, row: ReportRow) -> tuple[str, ...]:
    accuracy, best = row.accuracy, row.best_speedup
    if row.status != "ok":
        verdict = row.status + (f": {row.note}" if row.note else "")
    else:
        verdict = "not compared" if accuracy is None else accuracy.verdict
        verdict += "" if row.stable else ", timings did not settle"
    return (
        device,
        wording.backend_title(row.backend),
        row.precision,
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
