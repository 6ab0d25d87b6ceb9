"""Reports as Markdown; and the table that every face of a report draws."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vitdeploy.artifacts.onnx_model import Quantization
from vitdeploy.benchmarks.report import flips, merge, wording
from vitdeploy.benchmarks.report.figures import Section, sections, sections_and_terms
from vitdeploy.benchmarks.report.model import Report, ReportRow
from vitdeploy.benchmarks.report.positions import ABOUT_POSITIONS
from vitdeploy.benchmarks.speed.throughput import Measurement

_SPECIAL = str.maketrans(
    # A control character would speak to the terminal that shows the file.
    {**{chr(code): "\ufffd" for code in (*range(32), *range(127, 160))}, "\t": " ",
     "&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "\\|", "`": "\\`", "*": "\\*", "_": "\\_",
     "[": "\\[", "]": "\\]", "\n": " ", "\r": " "}
)  # fmt: skip


def table_rows(report: Report) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """(header, rows) of plain strings: the source first, then every engine, failed ones too.

    Where several batch sizes were timed, cells hold one value each, in the
    order the header names them.
    """
    sizes = " / ".join(map(str, _batch_sizes(report)))
    header = (
        "Engine",
        "MB",
        report.score_name,
        "Agreement",
        "Drop, points (95 % bound)",
        f"ms/image at batch {sizes}" if sizes else "ms/image",
        f"Speed-up (95 % interval) at batch {sizes}" if sizes else "Speed-up",
        "Verdict",
    )
    source = (
        report.source_label,
        wording.NOTHING,
        wording.percent(report.source_top1),
        wording.NOTHING,
        wording.NOTHING,
        wording.per_image(report.source_throughput),
        wording.NOTHING,
        _source_verdict(report),
    )
    forms = dict.fromkeys(measured.name for measured in report.source_forms)
    return header, [
        source,
        *(_form([m for m in report.source_forms if m.name == form]) for form in forms),
        *(_cells(row) for row in report.rows),
    ]


def _form(measured: Sequence[Measurement]) -> tuple[str, ...]:
    """A row of the source in another form; only its speed is known."""
    nothing = wording.NOTHING
    timed = wording.per_image(measured)
    return (measured[0].name, *[nothing] * 4, timed, nothing, "the source in another form")


def _source_verdict(report: Report) -> str:
    """What another resolution costs stands beside the source, whatever engines do."""
    if report.native_top1 is None or report.native_resolution == report.model.resolution:
        return "the source"
    native = wording.percent(report.native_top1)
    return f"the source; {native} at its own {wording.size(report.native_resolution)}"


def _batch_sizes(report: Report) -> list[int]:
    timed = [report.source_throughput, *(row.throughput for row in report.rows)]
    return list(dict.fromkeys(m.batch for measurements in timed for m in measurements))


def subtitle(report: Report) -> str:
    """What is compared with what, where and when, in one line."""
    images = f" on {report.evaluation_images:,} images" if report.evaluation_images else ""
    machine = report.environment
    where = wording.cores(machine) + (f", {machine.gpu}" if machine.gpu else "")
    return (
        f"Engines of {report.model.source.name} against {report.source_label}{images}; "
        f"{where}; {wording.day(report.created)}"
    )


def to_markdown(report: Report) -> str:
    """The whole report as GitHub-flavoured Markdown; text from outside is escaped."""
    header, rows = table_rows(report)
    lines = [f"# {escape(report.title)}", "", escape(subtitle(report)), ""]
    lines += [f"**{escape(report.verdict())}**", ""]
    lines += table(header, rows)
    if report.notes:
        lines += ["", *(f"- {escape(note)}" for note in report.notes)]
    for section in sections(report):
        lines += ["", *section_lines(section, "##")]
    lines += ["", "## What was compared", "", *fact_lines(comparison_facts(report))]
    for of_engine in flips.flips_by_engine(report):
        lines += ["", f"## {flips.TITLE}: {escape(of_engine.engine)}", "", of_engine.about, ""]
        lines += table(*flips.rows(of_engine))
    if report.positions is not None:
        lines += ["", "## Position embeddings", "", f"{escape(report.positions.in_words())}."]
        lines += ["", escape(ABOUT_POSITIONS)]
    if report.quantization is not None:
        lines += ["", *_plan_lines(report.quantization, fallback_rows(report))]
    lines += ["", "## Environment and provenance", ""]
    lines += fact_lines(provenance(report))
    return "\n".join(lines) + "\n"


def _plan_lines(plan: Quantization, curve: Sequence[Sequence[str]]) -> list[str]:
    lines = ["## Quantization plan", "", plan_in_words(plan), ""]
    lines += table(
        ("Kept in float", "Nodes", "Why"),
        [(first_and_last(nodes), str(len(nodes)), why) for why, nodes in kept_by_reason(plan)],
    )
    if curve:
        lines += ["", "### Layers taken back to float", "", *table(curve[0], curve[1:])]
    return lines


def plan_in_words(plan: Quantization) -> str:
    """'Ranges by auto, calibrated on 512 images: 21 nodes quantized, 63 kept; ...'."""
    return (
        f"Ranges by {plan.method}, calibrated on {plan.images:,} images: {len(plan.quantized)} "
        f"nodes quantized, {len(plan.kept)} kept; {len(plan.folded)} outliers folded away, "
        f"{len(plan.bias_corrected)} biases corrected."
    )


def kept_by_reason(plan: Quantization) -> list[tuple[str, list[str]]]:
    """(why, nodes), in the order of the plan."""
    reasons = dict.fromkeys(plan.kept.values())
    return [(why, [node for node, own in plan.kept.items() if own == why]) for why in reasons]


def first_and_last(nodes: Sequence[str]) -> str:
    """'blocks.0/Add ... blocks.4/Add', or the only one."""
    return nodes[0] if len(nodes) == 1 else f"{nodes[0]} ... {nodes[-1]}"


def merged_to_markdown(merged: merge.MergedReport) -> str:
    """Several devices, the figures of each under its name; escaped alike."""
    lines = [f"# {escape(merged.heading())}", ""]
    lines += [f"**{escape(merged.verdict())}**", "", *table(*merge.table_rows(merged))]
    lines += ["", merge.ABOUT_SPEEDUPS]
    found, terms = sections_and_terms([r for device in merged.devices for r in device.reports])
    own_sections = iter(found)
    for device in merged.devices:
        lines += ["", f"## {escape(device.name)}", "", *fact_lines(merge.machine_facts(device))]
        for report in device.reports:
            lines += ["", f"### {escape(merge.run_name(report))}", ""]
            lines += fact_lines(merge.facts(report))
            for section in next(own_sections):
                lines += ["", *section_lines(section, "####")]
    if terms:
        lines += ["", "## Terms"]
    for term in terms:
        lines += ["", escape(term)]
    return "\n".join(lines) + "\n"


def section_lines(section: Section, level: str) -> list[str]:
    """A section under a heading of `level` ('##')."""
    lines = [f"{level} {escape(section.title)}", "", escape(section.about), ""]
    lines += table(section.header, section.rows)
    if section.findings:
        lines += ["", *(f"- {escape(finding)}" for finding in section.findings)]
    for term in section.terms:
        lines += ["", escape(term)]
    return lines


def fallback_rows(report: Report) -> list[list[str]]:
    """Header and rows of the search for layers that had to stay in float; empty without one."""
    steps = () if report.quantization is None else report.quantization.fallback
    if not steps:
        return []
    rows = [["Nodes in float", "Images", "Agreement", "Drop (95 % bound)", "Images/s", "Verdict"]]
    for step in steps:
        drop = wording.NOTHING if step.drop_points is None else f"{step.drop_points:+.2f}"
        upper = "" if step.drop_upper_points is None else f" (<= {step.drop_upper_points:.2f})"
        which = "held out" if step.held_out else "choosing"
        rows.append(
            [
                str(step.kept),
                f"{step.images} ({which})",
                f"{100 * step.agreement:.2f} %",
                f"{drop}{upper} points",
                f"{step.images_per_second:.1f}",
                step.verdict,
            ]
        )
    return rows


def comparison_facts(report: Report) -> list[tuple[str, str]]:
    """(name, value) of what was compared with what, on which images."""
    resolution, native = report.model.resolution, wording.size(report.native_resolution)
    facts = [
        ("Source", f"{report.model.source.name}, as {report.source_label}"),
        ("Resolution", f"{wording.size(resolution)} (native {native})"),
    ]
    if report.evaluation_images:
        facts.append(("Images", f"{report.evaluation_images:,} from {report.evaluation_root}"))
    score = "top-1" if report.score_name == "Top-1" else report.score_name
    for where, found in (("its native", report.native_top1), ("this", report.source_top1)):
        if found is not None:
            facts.append((f"Source {score} at {where} size", wording.percent(found)))
    if report.unreadable:
        shown = ", ".join(report.unreadable[:5])
        more = len(report.unreadable) - 5
        rest = f" and {more} more" if more > 0 else ""
        facts.append(("Unreadable images, left out", f"{shown}{rest}"))
    if report.verification is not None:
        check = report.verification
        facts.append(
            (
                "Exported graph against PyTorch",
                f"largest error {check.max_error:.1e} of the logits' deviation, same top-1 on "
                f"{wording.percent(check.agreement)} of {check.images} "
                f"{'images' if check.real_images else 'random inputs'}",
            )
        )
    return facts


def provenance(report: Report) -> list[tuple[str, str]]:
    """(name, value) of machine, software, digests and preprocessing."""
    machine, source = report.environment, report.model.source
    facts = [
        ("Created", report.created),
        ("Machine", f"{wording.cores(machine)}, {machine.memory_bytes / 1e9:.1f} GB"),
        ("CPU features", ", ".join(machine.cpu_features) or wording.NOTHING),
        ("GPU", machine.gpu or "none"),
        ("System", f"{machine.system}, Python {machine.python}"),
        ("Packages", ", ".join(f"{n} {v}" for n, v in sorted(machine.packages.items()))),
        ("Weights (sha256)", source.weights_digest),
        ("Preprocessing", source.preprocessing.describe_at(report.model.resolution)),
    ]
    if report.conditions:
        whens = ("Ran under, before the timings", "Ran under, after them")
        facts += [(w, c.in_words()) for w, c in zip(whens, report.conditions, strict=False)]
    facts += [(row.name, _files_of(row)) for row in report.rows if row.engine_digest]
    return facts


def _files_of(row: ReportRow) -> str:
    file = f"{row.file}, " if row.file else ""
    graph = f"; of the graph {row.graph_digest}" if row.graph_digest else ""
    return f"{file}sha256 {row.engine_digest}{graph}"


def _cells(row: ReportRow) -> tuple[str, ...]:
    accuracy = row.accuracy
    return (
        row.name,
        wording.megabytes(row.size_bytes),
        wording.score(accuracy),
        wording.percent(accuracy.agreement if accuracy else None),
        wording.drop(accuracy),
        wording.per_image(row.throughput),
        wording.speedups(row.speedups),
        _verdict(row),
    )


def _verdict(row: ReportRow) -> str:
    note = f": {row.note}" if row.note else ""
    if row.status == "failed":
        return f"failed{note}"
    if row.status == "built":
        ahead = f"; {row.forecast.in_words()}" if row.forecast else ""
        return f"built{note or ', not run here'}{ahead}"
    verdict = "not compared" if row.accuracy is None else row.accuracy.verdict
    if row.accuracy is not None and row.accuracy.images_needed is not None:
        verdict += f", about {row.accuracy.images_needed:,} images needed"
    if not row.stable:
        verdict += ", timings did not settle"
    return verdict + note


def fact_lines(facts: Iterable[tuple[str, str]]) -> list[str]:
    """A list of '- name: value', both escaped."""
    return [f"- {escape(name)}: {escape(value)}" for name, value in facts]


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """The lines of a Markdown table; every cell is escaped here."""
    lines = [[escape(cell) for cell in row] for row in (header, *rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return [f"| {' | '.join(cells)} |" for cells in lines]


def escape(text: str) -> str:
    """Text from outside, so that Markdown and HTML in it stay text."""
    return text.translate(_SPECIAL)
