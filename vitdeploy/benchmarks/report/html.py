"""A report as one HTML file that fetches nothing."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from vitdeploy.benchmarks.report.charts import BAR_WIDTH, fallback_svg, interval_bars, latency_svg
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
    template = files("vitdeploy.benchmarks.report").joinpath("template.html")
    page = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True).from_string(
        template.read_text(encoding="utf-8")
    )
    header, cells = table_rows(report)
    plots = _plots(report)
    return page.render(
        report=report,
        verdict=report.verdict(),
        tone=_tone(report),
        header=header,
        rows=list(zip(["source", *map(_row_tone, report.rows)], cells, strict=True)),
        bars=interval_bars(report),
        bar_width=BAR_WIDTH,
        plots=plots or [],
        fallback=fallback_rows(report),
        fallback_plot=_fallback_plot(report),
        plots_left_out=PLOTS_LEFT_OUT if plots is None else "",
        facts=comparison_facts(report),
        provenance=provenance(report),
    )


def _plots(report: Report) -> list[_Plot] | None:
    """One plot a batch size; None where there is something to draw and nothing to draw with."""
    measured = [*report.source_throughput, *(m for row in report.rows for m in row.throughput)]
    plots = []
    for batch in sorted({m.batch for m in measured}):
        svg = latency_svg([m for m in measured if m.batch == batch])
        if svg is None:
            return None
        label = f"Latency of each engine in ms per image at batch {batch}; see the table"
        plots.append(_Plot(batch, _labelled(svg, label)))
    return plots


def _fallback_plot(report: Report) -> Markup:
    """Nothing where no layer was searched for, or where there is nothing to draw with."""
    steps = () if report.quantization is None else report.quantization.fallback
    svg = fallback_svg(steps) if steps else None
    return Markup() if svg is None else _labelled(svg, "Drop against nodes in float; see the table")


def _labelled(svg: str, label: str) -> Markup:
    return Markup(svg.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1))


def _row_tone(row: ReportRow) -> str:
    return row.status if row.accuracy is None or row.status != "ok" else row.accuracy.verdict


def _tone(report: Report) -> str:
    tones = [_row_tone(row) for row in report.rows]
    return next((tone for tone in ("pass", "inconclusive", "fail") if tone in tones), "none")
