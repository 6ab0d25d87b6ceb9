"""`vitdeploy report`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from vitdeploy.cli import console
from vitdeploy.cli.options import PATH, json_option, workspace
from vitdeploy.cli.sizes import at_size, size_option

if TYPE_CHECKING:
    from vitdeploy.artifacts.engine import Engine
    from vitdeploy.benchmarks.accuracy.evaluation import EvaluationResult
    from vitdeploy.benchmarks.report.model import AccuracyForecast, Report
    from vitdeploy.benchmarks.report.positions import ReportedPositions
    from vitdeploy.benchmarks.speed.scenarios import ScenarioResult
    from vitdeploy.benchmarks.speed.throughput import BenchmarkResult
    from vitdeploy.preprocessing import Size

ACCURACY_SUFFIX = ".accuracy.json"
FORECAST_SUFFIX = ".forecast.json"
OfEngine = TypeVar("OfEngine", "EvaluationResult", "ScenarioResult")
Say = Callable[[str], None]


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
@size_option
@json_option
def command(
    files: tuple[Path, ...],
    baseline: Path | None,
    output: Path,
    size: Size | None,
    as_json: bool,
) -> None:
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
    if reports and size is not None:
        raise click.UsageError("--res is of engines: a report is of the size it is of")
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
    from vitdeploy.benchmarks.report.read import read_report

    before = None if baseline is None else read_report(baseline)
    if reports:
        report = read_report(reports[0])
    else:
        report = _of_engines(files, size, output, as_json and baseline is None, quiet=as_json)
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


def _of_engines(
    engines: tuple[Path, ...], size: Size | None, output: Path, as_json: bool, *, quiet: bool
) -> Report:
    """Write the report of engines and what lies beside them."""
    from vitdeploy import api
    from vitdeploy.artifacts.engine import read_engine
    from vitdeploy.benchmarks.report import markdown
    from vitdeploy.benchmarks.report.assemble import Evidence
    from vitdeploy.pipeline import now

    sink = console.progress()
    note = _Notes(sink.note)
    if engines:
        loaded = [at_size(read_engine(path), size, note) for path in engines]
    else:
        loaded = _siblings(workspace(note).newest_engine(announced=False), size, note)
    evaluations = _evaluations(loaded, note)
    images = next((found.images_digest for found in evaluations.values()), "")
    evidence = Evidence(
        engines=loaded,
        evaluations=evaluations,
        forecasts=forecasts_beside(loaded, note, images),
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
    from vitdeploy.benchmarks.report.read import read_report
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
        if any(change.what.startswith("speed") for change in found.changes):
            click.echo(f"speeds are compared by {found.speed_basis}")
        click.echo(f"written: {written}")
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
        from vitdeploy.benchmarks.findings import LEFT_OUT

        return tuple(printable(line) for line in self._said if line.startswith(LEFT_OUT))


def _siblings(newest: Path, size: Size | None, note: Say) -> list[Engine]:
    """The engines beside `newest` of the same model that were made for the same size, or for the
    one asked for; damaged ones apart."""
    from vitdeploy.artifacts.engine import read_engine, read_manifest
    from vitdeploy.benchmarks.findings import LEFT_OUT
    from vitdeploy.errors import EngineError, InputError

    own = read_manifest(newest).model
    wanted = size or own.resolution
    found = []
    for path in sorted(newest.parent.glob("*.engine")):
        if path.name.startswith("."):
            continue
        try:
            model = read_manifest(path).model
            sizes = model.resolution_range if size else None
            fits = model.resolution == wanted or (sizes is not None and sizes.takes(wanted))
            if fits and model.source.weights_digest == own.source.weights_digest:
                found.append(read_engine(path).at(size))
        except (InputError, EngineError) as error:
            note(f"{LEFT_OUT}{error}")
    if not found:
        which = f" for {wanted[0]}x{wanted[1]}" if size else ""
        raise InputError(
            f"{newest.parent} holds no whole engine{which}",
            hint="run `vitdeploy build-engine` again",
        )
    note(
        f"engines: {len(found)} of {own.source.name} at {wanted[0]}x{wanted[1]} in "
        f"{newest.parent} (the newest is {newest.name})"
    )
    return found


def _evaluations(engines: list[Engine], note: Say) -> dict[str, EvaluationResult]:
    """Of each engine the newest on the same images, by the engine's digest.

    Those are what most engines were judged on; of several such, what more of them were judged on
    last, and then the larger set.
    """
    from vitdeploy.benchmarks.accuracy.evaluation import EvaluationResult
    from vitdeploy.benchmarks.findings import LEFT_OUT

    beside = [(e, list(_beside(e, ACCURACY_SUFFIX, EvaluationResult, note))) for e in engines]
    sets = [[result.images_digest for result in results] for _, results in beside]
    counts = {r.images_digest: r.comparison.images for _, results in beside for r in results}

    def rank(images: str) -> tuple[int, int, int]:
        held = [own for own in sets if images in own]
        return len(held), sum(own[0] == images for own in held), counts[images]

    chosen = max(counts, key=rank, default="")
    found = {}
    for engine, results in beside:
        own = next((result for result in results if result.images_digest == chosen), None)
        if own is not None:
            found[own.engine_digest] = own
        elif results:
            note(
                f"{LEFT_OUT}{engine.path.name} was evaluated on {results[0].comparison.images:,} "
                f"other images than the rest ({counts[chosen]:,}): evaluate it on the same"
            )
        else:
            note(f"not evaluated yet: {engine.path.name}")
    return found


def _scenarios(engines: list[Engine], note: Say) -> dict[str, ScenarioResult]:
    from vitdeploy.benchmarks.speed.scenarios import ScenarioResult
    from vitdeploy.cli.benchmark import SCENARIOS_SUFFIX

    beside = [list(_beside(e, SCENARIOS_SUFFIX, ScenarioResult, note)) for e in engines]
    return {results[0].engine_digest: results[0] for results in beside if results}


def _beside(engine: Engine, suffix: str, kind: type[OfEngine], note: Say) -> Iterator[OfEngine]:
    """What a command left beside an engine at its size, the newest first; of older builds
    nothing."""
    from vitdeploy.benchmarks.findings import LEFT_OUT, newest_first, read_finding

    for path in newest_first(engine.path.with_suffix(suffix)):
        result = read_finding(path, kind, note)
        if result is None:
            continue
        if result.engine_digest != engine.manifest.engine_digest:
            note(f"{LEFT_OUT}{path.name} is of an older build of this engine")
        elif result.size() not in (None, engine.manifest.model.resolution):
            note(_of_another_size(path, result.size()))
        else:
            yield result


def _of_another_size(path: Path, size: Size | None) -> str:
    from vitdeploy.benchmarks.findings import LEFT_OUT

    height, width = size or (0, 0)
    return f"{LEFT_OUT}{path.name} is of {height}x{width}: report --res {height}x{width} shows it"


def forecasts_beside(
    engines: list[Engine], note: Say, images: str = ""
) -> dict[str, AccuracyForecast]:
    """What `evaluate GRAPH` left beside the engines at their size, by the digest of the graph.

    Of each the newest, of these `images` where their digest is given.
    """
    from vitdeploy.benchmarks.findings import LEFT_OUT, newest_first, read_finding
    from vitdeploy.benchmarks.report.model import AccuracyForecast

    wanted = {engine.manifest.model_digest: engine.manifest.model for engine in engines}
    folders = dict.fromkeys(engine.path.parent for engine in engines)
    newest = [path for folder in folders for path in sorted(folder.glob(f"*{FORECAST_SUFFIX}"))]
    found: dict[str, AccuracyForecast] = {}
    others: dict[str, str] = {}
    for path in (path for each in newest for path in newest_first(each)):
        forecast = read_finding(path, AccuracyForecast, note)
        if forecast is None or forecast.graph_digest not in wanted:
            continue
        if forecast.resolution in (None, wanted[forecast.graph_digest].resolution):
            if images in ("", forecast.images_digest):
                found.setdefault(forecast.graph_digest, forecast)
            else:
                others.setdefault(forecast.graph_digest, path.name)
    for graph, name in others.items():
        if graph not in found:
            note(f"{LEFT_OUT}{name} is of other images")
    return found


def _benchmark(engines: list[Engine], note: Say) -> BenchmarkResult | None:
    """The newest run of any of the engines at their size: figures are compared within one run."""
    from vitdeploy.benchmarks.findings import LEFT_OUT, newest_first, read_finding
    from vitdeploy.benchmarks.speed.throughput import BenchmarkResult
    from vitdeploy.cli.benchmark import FILE_NAME

    path, *others = dict.fromkeys(engine.path.with_name(FILE_NAME) for engine in engines)
    for other in others:
        if other.exists():
            note(f"{LEFT_OUT}{other} is of another run: report on each folder, and merge those")
    names = {engine.manifest.engine_digest: engine.path.name for engine in engines}
    chosen = None
    for each in newest_first(path):
        run = read_finding(each, BenchmarkResult, note)
        known = [] if run is None else [d for d in run.engine_digests if d in names]
        if run is None or not known:
            continue
        if run.resolution not in (None, engines[0].manifest.model.resolution):
            note(_of_another_size(each, run.resolution))
        elif chosen is None:
            chosen = run
        else:
            shown = chosen.times()
            only = [
                f"{names[digest]} at batch {batch}"
                for digest, batch in run.times()
                if digest in names and (digest, batch) not in shown
            ]
            if only:
                note(
                    f"{LEFT_OUT}{each.name} timed {', '.join(only)} in an earlier run; to see all "
                    "side by side, name engines and batches in one `vitdeploy benchmark`"
                )
    if chosen is None:
        note("not timed yet: run `vitdeploy benchmark`")
    return chosen
