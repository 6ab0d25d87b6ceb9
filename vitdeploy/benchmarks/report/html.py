"""Reports, and merged ones, as one HTML file each that fetches nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from vitdeploy.benchmarks.report import figures, flips, merge, wording
from vitdeploy.benchmarks.report.charts import (
    BAR_WIDTH,
    IntervalBar,
    Sweep,
    fallback_svg,
    interval_bars,
    latency_svg,
    sweep_svg,
)
from vitdeploy.benchmarks.report.figures import Section
from vitdeploy.benchmarks.report.markdown import (
    comparison_facts,
    fallback_rows,
    kept_by_reason,
    plan_in_words,
    provenance,
    subtitle,
    table_rows,
)
from vitdeploy.benchmarks.report.model import Report, ReportRow
from vitdeploy.benchmarks.report.positions import ABOUT_POSITIONS

PLOTS_LEFT_OUT = "Plots were left out: install matplotlib with pip install 'vitdeploy[report]'."


@dataclass(frozen=True)
class _Plot:
    batch: int
    svg: Markup


def to_html(report: Report) -> str:
    """The whole report; everything that came from outside is escaped.

    Where matplotlib is not installed, the page says that plots were left out.
    """
    header, rows = table_rows(report)
    plots = _plots(report)
    tones = [_tone(row) for row in report.rows]
    tones = ["source"] * (len(rows) - len(tones)) + tones
    plan = report.quantization
    return _render(
        "report.html",
        title=report.title,
        subtitle=subtitle(report),
        verdict=report.verdict(),
        tone=report.tone(),
        report=report,
        header=header,
        groups=[("", list(zip(tones, rows, strict=True)))],
        sections=_shown(figures.sections(report), report),
        plots=plots or [],
        sweep_plot=_sweep_plot(figures.timed_sweeps(report), "sweep"),
        fallback=fallback_rows(report),
        fallback_plot=_fallback_plot(report),
        plots_left_out=PLOTS_LEFT_OUT if plots is None else "",
        flips_title=flips.TITLE,
        flips=flips.flips_by_engine(report),
        about_positions=ABOUT_POSITIONS,
        facts=comparison_facts(report),
        plan=plan_in_words(plan) if plan else "",
        kept=kept_by_reason(plan) if plan else [],
        provenance=provenance(report),
    )


def merged_to_html(merged: merge.MergedReport) -> str:
    """Several devices on one page, escaped alike; the figures of each under its name."""
    groups = [
        (device.name, [("source" if row is None else _tone(row), cells) for row, cells in rows])
        for device, rows in ((device, merge.rows_of(device)) for device in merged.devices)
    ]
    found, terms = figures.sections_and_terms(
        [report for device in merged.devices for report in device.reports]
    )
    own_sections = iter(found)
    return _render(
        "merged.html",
        terms=terms,
        title=merged.heading(),
        subtitle=wording.day(merged.created),
        verdict=merged.verdict(),
        tone=merged.tone(),
        header=merge.header(merged),
        groups=groups,
        about=merge.ABOUT_SPEEDUPS,
        devices=[
            {
                "name": device.name,
                "facts": merge.machine_facts(device),
                "runs": [
                    {
                        "name": merge.run_name(report),
                        "facts": merge.facts(report),
                        "sections": _shown(next(own_sections), report, f"device{i}-{j}-"),
                    }
                    for j, report in enumerate(device.reports)
                ],
            }
            for i, device in enumerate(merged.devices)
        ],
    )


@dataclass(frozen=True)
class _Shown:
    """A section with what is drawn for it: bars of accuracy, a sweep over batch sizes."""

    section: Section
    bars: tuple[IntervalBar, ...]
    plot: Markup


def _shown(sections: Sequence[Section], report: Report, prefix: str = "") -> list[_Shown]:
    """`prefix` keeps the ids of one page's plots apart."""
    return [
        _Shown(
            section,
            tuple(interval_bars(report)) if section.title == figures.ACCURACY else (),
            _sweep_plot(section.sweeps, f"{prefix}offline"),
        )
        for section in sections
    ]


def _render(template: str, **content: object) -> str:
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        loader=FunctionLoader(_template),
    )
    environment.globals["nothing"] = wording.NOTHING
    environment.globals["bar_width"] = BAR_WIDTH
    return environment.get_template(template).render(**content)


def _template(name: str) -> str:
    return files("vitdeploy.benchmarks.report").joinpath(name).read_text(encoding="utf-8")


def _plots(report: Report) -> list[_Plot] | None:
    """One plot a batch size; None where there is something to draw and nothing to draw with."""
    named = [(report.source_label, measured) for measured in report.source_throughput]
    named += [(row.name, measured) for row in report.rows for measured in row.throughput]
    plots = []
    for batch in sorted({measured.batch for _, measured in named}):
        svg = latency_svg([(name, measured) for name, measured in named if measured.batch == batch])
        if svg is None:
            return None
        label = f"Latency of each engine in ms per image at batch {batch}; see the table"
        plots.append(_Plot(batch, _labelled(svg, label, f"latency{batch}")))
    return plots


def _sweep_plot(sweeps: Sequence[Sweep], prefix: str) -> Markup:
    """Nothing where throughput is known at one batch size only, or nothing can draw."""
    svg = sweep_svg(sweeps) if sweeps else None
    label = "Images a second over the batch size; the figures are in a table"
    return Markup() if svg is None else _labelled(svg, label, prefix)


def _fallback_plot(report: Report) -> Markup:
    """Nothing where no layer was searched for, or where there is nothing to draw with."""
    steps = () if report.quantization is None else report.quantization.fallback
    svg = fallback_svg(steps) if steps else None
    label = "Drop against nodes in float; see the table"
    return Markup() if svg is None else _labelled(svg, label, "fallback")


def _labelled(svg: str, label: str, prefix: str) -> Markup:
    """With a label, and with `prefix` before every id: matplotlib's are the same in each plot."""
    own = re.sub(r'( id="|url\(#|href="#)', rf"\g<1>{prefix}-", svg)
    return Markup(own.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1))


def _tone(row: ReportRow) -> str:
    """Green is for what may be shipped as it is: not where the speed is not known."""
    if row.accuracy is None or row.status != "ok":
        return row.status
    unknown = row.accuracy.verdict == "pass" and not row.stable
    return "inconclusive" if unknown else row.accuracy.verdict
