"""`vitdeploy report`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from vitdeploy.cli import console
from vitdeploy.cli.options import PATH, json_option, workspace

if TYPE_CHECKING:
    from vitdeploy.artifacts.engine import Engine, EngineManifest
    from vitdeploy.benchmarks.accuracy.evaluation import EvaluationResult
    from vitdeploy.benchmarks.report.model import AccuracyForecast, Report
    from vitdeploy.benchmarks.report.positions import ReportedPositions
    from vitdeploy.benchmarks.speed.scenarios import ScenarioResult
    from vitdeploy.benchmarks.speed.throughput import BenchmarkResult

Finding = TypeVar("Finding")
OfEngine = TypeVar("OfEngine", "EvaluationResult", "ScenarioResult")
Say = Callable[[str], None]
_LEFT_OUT = "left out: "


@click.command()
@click.argument("files", metavar="[ENGINES | REPORTS]...", type=PATH, nargs=-1)
@click.option(
    "--baseline",
    type=PATH,
    help="An older report.json: what became worse is listed, and the exit code is then 10.",
)
@click.option(
    "-o",
    "--out",
    "output",
    type=PATH,
    default="report",
    show_default=True,
    help="Folder for report.json, report.md and report.html (merged.* of several reports).",
)
@json_option
def command(files: tuple[Path, ...], baseline: Path | None, output: Path, as_json: bool) -> None:
    """Write what was found out about ENGINES (default: the newest engine's folder).

    Takes the results that `evaluate` and `benchmark` left beside the engines.
    Without arguments, every engine of the newest one's model and resolution.

    Several report.json, one from each device, become one comparison.
    With --baseline, a report (the one given, or the one just written) is
    compared with an older one of the same machine.

    \b
      vitdeploy report
      vitdeploy report artifacts/*.engine -o report
      vitdeploy report jetson/report.json l4/report.json cpu/report.json
      vitdeploy report --baseline main/report.json
    """
    from vitdeploy.artifacts.files import require_file

    reports = [path for path in files if path.suffix == ".json"]
    if reports and len(reports) < len(files):
        raise click.UsageError("give engines, or reports (.json), not both")
    if len(reports) > 1 and baseline is not None:
        raise click.UsageError("--baseline is compared with one report, not with several")
    if len(reports) == 1 and baseline is None:
        raise click.UsageError("one report is nothing to merge: give more, or --baseline")
    if baseline is not None:
        _require_another(baseline, reports, output)
    for path in filter(None, (*files, baseline)):
        require_file(path, what="engine" if path.suffix == ".engine" else "report")
    if len(reports) > 1:
        _merge(reports, output, as_json)
        return
    from vitdeploy.benchmarks.report.model import read_report

    before = None if baseline is None else read_report(baseline)
    if reports:
        report = read_report(reports[0])
    else:
        report = _of_engines(files, output, as_json and baseline is None, quiet=as_json)
    if before is not None:
        _compare(before, report, output, as_json)


def _require_another(baseline: Path, reports: list[Path], output: Path) -> None:
    """Refuse a baseline that is the report itself, or that the new report would take the place of.

    A report is never worse than itself: such a gate would hold whatever happens.
    """
    place = baseline.resolve()
    if place in (report.resolve() for report in reports):
        raise click.UsageError(f"{baseline} is the report that it is compared with")
    if not reports and place == (output / "report.json").resolve():
        raise click.UsageError(
            f"{baseline} would be overwritten by the new report: copy it, or give another --out"
        )


def _of_engines(engines: tuple[Path, ...], output: Path, as_json: bool, *, quiet: bool) -> Report:
    """Write the report of engines and what lies beside them."""
    from vitdeploy import api
    from vitdeploy.artifacts.engine import read_engine
    from vitdeploy.benchmarks.report import markdown
    from vitdeploy.benchmarks.report.assemble import Evidence
    from vitdeploy.pipeline import now

    sink = console.progress()
    note = _Notes(sink.note)
    if engines:
        loaded = [read_engine(path) for path in engines]
    else:
        loaded = _siblings(workspace(note).newest_engine(), note)
    evidence = Evidence(
        engines=loaded,
        evaluations=_evaluations(loaded, note),
        forecasts=forecasts_beside(loaded, note),
        benchmark=_benchmark(loaded, note),
        scenarios=_scenarios(loaded, note),
        positions=_positions(loaded, note),
        notes=note.left_out(),
        created=now(),
    )
    report, written = api.report(evidence, output)
    if as_json:
        click.echo(written["json"].read_text(encoding="utf-8"))
    elif not quiet:
        console.table(*markdown.table_rows(report))
        click.echo(report.verdict())
        click.echo("written: " + ", ".join(str(path) for path in written.values()))
    return report


def _positions(engines: list[Engine], note: Say) -> ReportedPositions | None:
    """Of the engines' graph where it still lies beside their folder."""
    from vitdeploy.benchmarks.report.positions import graph_of, reported_positions

    model, folder = engines[0].manifest.model, engines[0].path.resolve().parent
    graph = graph_of(model, (folder.parent, folder))
    if graph is None:
        return None
    return reported_positions(graph, workspace(note).checkpoint(model.source), note)


def _merge(paths: list[Path], output: Path, as_json: bool) -> None:
    """Several devices as one comparison."""
    from vitdeploy.benchmarks.report.merge import merge, table_rows
    from vitdeploy.benchmarks.report.model import read_report
    from vitdeploy.benchmarks.report.write import write_merged
    from vitdeploy.pipeline import now

    reports = [read_report(path) for path in paths]
    merged = merge(reports, created=now(), files=[str(path) for path in paths])
    written = write_merged(merged, output)
    if as_json:
        click.echo(written["json"].read_text(encoding="utf-8"))
        return
    console.table(*table_rows(merged))
    click.echo(merged.verdict())
    click.echo("written: " + ", ".join(str(path) for path in written.values()))


def _compare(before: Report, report: Report, output: Path, as_json: bool) -> None:
    """List what changed since `before`. Raises GateFailedError where something became worse."""
    from vitdeploy.artifacts.files import to_json, write_text
    from vitdeploy.benchmarks.report.regressions import regressions

    found = regressions(before, report)
    written = output / "regressions.json"
    write_text(written, to_json(found))
    if as_json:
        click.echo(written.read_text(encoding="utf-8"))
    else:
        for change in found.changes:
            click.echo(change.in_words())
        click.echo(f"speeds are compared by {found.speed_basis}; written: {written}")
    found.require_none()


class _Notes:
    """Says each line once, and keeps what was left out: the report says that too."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._said: list[str] = []

    def __call__(self, line: str) -> None:
        if line not in self._said:
            self._said.append(line)
            self._say(line)

    def left_out(self) -> tuple[str, ...]:
        from vitdeploy.artifacts.strict import printable

        return tuple(printable(line) for line in self._said if line.startswith(_LEFT_OUT))


def _siblings(newest: Path, note: Say) -> list[Engine]:
    """The engines beside `newest` that are of the same model and resolution, damaged ones apart."""
    from vitdeploy.artifacts.engine import read_engine, read_manifest
    from vitdeploy.errors import EngineError, InputError

    def key(manifest: EngineManifest) -> tuple[Any, ...]:
        return (manifest.model.source.weights_digest, manifest.model.resolution)

    wanted = key(read_manifest(newest))
    found = []
    for path in sorted(newest.parent.glob("*.engine")):
        try:
            if not path.name.startswith(".") and key(read_manifest(path)) == wanted:
                found.append(read_engine(path))
        except (InputError, EngineError) as error:
            note(f"{_LEFT_OUT}{error}")
    if not found:
        raise InputError(
            f"{newest.parent} holds no whole engine", hint="run `vitdeploy build-engine` again"
        )
    return found


def _evaluations(engines: list[Engine], note: Say) -> dict[str, EvaluationResult]:
    from vitdeploy.benchmarks.accuracy.evaluation import EvaluationResult

    found = _beside(engines, ".accuracy.json", EvaluationResult, note)
    for engine in engines:
        if not engine.path.with_suffix(".accuracy.json").exists():
            note(f"not evaluated yet: {engine.path.name}")
    return found


def _scenarios(engines: list[Engine], note: Say) -> dict[str, ScenarioResult]:
    from vitdeploy.benchmarks.speed.scenarios import ScenarioResult
    from vitdeploy.cli.benchmark import SCENARIOS_SUFFIX

    return _beside(engines, SCENARIOS_SUFFIX, ScenarioResult, note)


def _beside(
    engines: list[Engine], suffix: str, kind: type[OfEngine], note: Say
) -> dict[str, OfEngine]:
    """What a command left beside each engine, by the engine's digest; of older builds nothing."""
    found = {}
    for engine in engines:
        path = engine.path.with_suffix(suffix)
        result = _finding(path, kind, note)
        if result is None:
            continue
        if result.engine_digest == engine.manifest.engine_digest:
            found[result.engine_digest] = result
        else:
            note(f"{_LEFT_OUT}{path.name} is of an older build of this engine")
    return found


def forecasts_beside(engines: list[Engine], note: Say) -> dict[str, AccuracyForecast]:
    """What `evaluate GRAPH` left beside the engines, by the digest of the graph."""
    from vitdeploy.benchmarks.report.model import AccuracyForecast

    wanted = {engine.manifest.model_digest for engine in engines}
    folders = dict.fromkeys(engine.path.parent for engine in engines)
    found = {}
    for path in (path for folder in folders for path in sorted(folder.glob("*.forecast.json"))):
        forecast = _finding(path, AccuracyForecast, note)
        if forecast is not None and forecast.graph_digest in wanted:
            found[forecast.graph_digest] = forecast
    return found


def _benchmark(engines: list[Engine], note: Say) -> BenchmarkResult | None:
    from vitdeploy.benchmarks.speed.throughput import BenchmarkResult
    from vitdeploy.cli.benchmark import FILE_NAME

    # What engines took is compared within one run, and each folder holds one.
    path, *others = dict.fromkeys(engine.path.with_name(FILE_NAME) for engine in engines)
    for other in others:
        if other.exists():
            note(f"{_LEFT_OUT}{other} is of another run: report on each folder, and merge those")
    result = _finding(path, BenchmarkResult, note)
    if result is None:
        note("not timed yet: run `vitdeploy benchmark`")
        return None
    known = {engine.manifest.engine_digest for engine in engines}
    if not known & set(result.engine_digests):
        note(f"{_LEFT_OUT}{path} is of other engines")
        return None
    return result


def _finding(path: Path, kind: type[Finding], note: Say) -> Finding | None:
    """What a command left beside an engine; None where it is not there or damaged."""
    from vitdeploy.artifacts.files import from_json, read_text, reading
    from vitdeploy.errors import InputError

    try:
        with reading(path, "finding"):
            if not path.exists():
                return None
        return from_json(read_text(path, what="finding"), kind, origin=str(path))
    except InputError as error:
        note(f"{_LEFT_OUT}{error}")
        return None
