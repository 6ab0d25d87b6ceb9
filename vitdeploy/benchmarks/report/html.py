"""Reports, and merged ones, as one HTML file each that fetches nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources import files

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from vitdeploy.benchmarks.report import merge, wording
from vitdeploy.benchmarks.report.charts import (
    BAR_WIDTH,
    fallback_svg,
    interval_bars,
    latency_svg,
    sweep_svg,
)
from vitdeploy.benchmarks.report.figures import sections, sweeps
from vitdeploy.benchmarks.report.markdown import (
    comparison_facts,
    fallback_rows,
    provenance,
    table_rows,
)
from vitdeploy.benchmarks.report.model import Report, ReportRow

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
    return _render(
        "report.html",
        title=report.title,
        created=report.created,
        verdict=report.verdict(),
        tone=report.tone(),
        report=report,
        header=header,
        rows=rows,
        tones=["source"] * (len(rows) - len(tones)) + tones,
        bars=interval_bars(report),
        bar_width=BAR_WIDTH,
        sections=sections(report),
        plots=plots or [],
        sweep_plot=_sweep_plot(report),
        fallback=fallback_rows(report),
        fallback_plot=_fallback_plot(report),
        plots_left_out=PLOTS_LEFT_OUT if plots is None else "",
        facts=comparison_facts(report),
        provenance=provenance(report),
    )


def merged_to_html(merged: merge.MergedReport) -> str:
    """Several devices on one page, escaped alike; the figures of each under its name."""
    header, rows = merge.table_rows(merged)
    return _render(
        "merged.html",
        title=f"{merged.title}: {len(merged.devices)} reports",
        created=merged.created,
        verdict=merged.verdict(),
        tone=merged.tone(),
        header=header,
        rows=rows,
        tones=[tone for d in merged.devices for tone in ("source", *map(_tone, d.report.rows))],
        about=merge.ABOUT_SPEEDUPS,
        devices=[
            {
                "name": device.name,
                "facts": merge.facts(device),
                "sections": sections(device.report),
                "bars": interval_bars(device.report),
            }
            for device in merged.devices
        ],
        bar_width=BAR_WIDTH,
    )


def _render(template: str, **content: object) -> str:
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        loader=FunctionLoader(_template),
    )
    environment.globals["nothing"] = wording.NOTHING
    return environment.get_template(template).render(**content)


def _template(name: str) -> str:
    return files("vitdeploy.benchmarks.report").joinpath(name).read_text(encoding="utf-8")


def _plots(report: Report) -> list[_Plot] | None:
    """One plot a batch size; None where there is something to draw and nothing to draw with."""
    measured = [*report.source_throughput, *(m for row in report.rows for m in row.throughput)]
    plots = []
    for batch in sorted({m.batch for m in measured}):
        svg = latency_svg([m for m in measured if m.batch == batch])
        if svg is None:
            return None
        label = f"Latency of each engine in ms per image at batch {batch}; see the table"
        plots.append(_Plot(batch, _labelled(svg, label, f"latency{batch}")))
    return plots


def _sweep_plot(report: Report) -> Markup:
    """Nothing where throughput is known at one batch size only, or nothing can draw."""
    found = sweeps(report)
    svg = sweep_svg(found) if found else None
    return (
        Markup() if svg is None else _labelled(svg, "Images a second over the batch size", "sweep")
    )


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
    return row.status if row.accuracy is None or row.status != "ok" else row.accuracy.verdict
