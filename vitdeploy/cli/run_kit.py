"""`vitdeploy run-kit`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from vitdeploy.cli import console
from vitdeploy.cli.options import PATH, json_option, timing_options

if TYPE_CHECKING:
    from vitdeploy.benchmarks.report.model import Report


@click.command()
@click.argument("kit", type=PATH, default=Path())
@click.option(
    "--backend",
    "backends",
    multiple=True,
    help="Build with this one; may be given again.  [default: the one `auto` stands for]",
)
@timing_options
@json_option
def command(
    kit: Path, backends: tuple[str, ...], batch: tuple[int, ...], seconds: float, as_json: bool
) -> None:
    """Build, judge and time the engines of KIT, a folder that `vitdeploy package` made.

    The source's stored answers stand for PyTorch, which is not needed. Writes
    results/report.html and results.zip into the kit. Timings that do not settle
    are marked so. Exits with 10 where the accuracy does not hold, else with 6
    where an engine could not be built or run, else with 11 where images are too
    few to tell, else with 7 where timings did not settle, and with 0 where all
    is well.
    """
    from vitdeploy.kit.contents import require_kit

    require_kit(kit)

    from vitdeploy import pipeline
    from vitdeploy.benchmarks.report import markdown
    from vitdeploy.errors import InconclusiveError, OutputError
    from vitdeploy.kit.running import run_kit

    sink = console.progress()
    try:
        report, archive = run_kit(
            kit, backends=backends, batch_sizes=batch, seconds=seconds, progress=sink
        )
    except OutputError as error:
        more = "free some space, or run a copy of the kit where you may write"
        raise OutputError(str(error), hint=more) from error
    if as_json:
        click.echo((kit / "results" / "report.json").read_text(encoding="utf-8"))
    else:
        console.table(*markdown.table_rows(report))
        click.echo(report.verdict())
        click.echo(f"bring back: {archive}")
    try:
        pipeline.require_passing(report)
    except InconclusiveError:
        _require_engines(report)  # what failed is more than what is open
        raise
    _require_engines(report)
    _require_settled(report)


def _require_engines(report: Report) -> None:
    """Raise EngineError where an engine failed, or none ran: then too little was proved."""
    from vitdeploy.errors import EngineError, counted

    failed = [f"{row.name} ({row.note})" for row in report.rows if row.status == "failed"]
    judged = [row for row in report.rows if row.accuracy is not None]
    if failed or not judged:
        engines = counted(len(report.rows), "engine")
        raise EngineError(
            f"{len(failed)} of {engines} failed here: {'; '.join(failed)}"
            if failed
            else "no engine of this kit runs here",
            hint="the report says why for each: `vitdeploy doctor` shows what is missing, and "
            "graphs of another device's precision want `vitdeploy package --target`",
        )


def _require_settled(report: Report) -> None:
    """Raise UnstableMeasurementError where a speed is not known; the findings are kept."""
    from vitdeploy.errors import UnstableMeasurementError

    drifted = [row.name for row in report.rows if row.status == "ok" and not row.stable]
    if drifted:
        raise UnstableMeasurementError(
            f"timings did not settle: {', '.join(drifted)}",
            hint="stop other work on this device and run the kit again, with more --seconds",
        )
