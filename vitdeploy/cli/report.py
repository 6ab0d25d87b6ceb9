"""`vitdeploy report`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from vitdeploy.cli import console
from vitdeploy.cli.options import PATH, json_option, workspace


@click.command()
@click.argument("engines", type=PATH, nargs=-1)
@click.option(
    "-o",
    "--out",
    "output",
    type=PATH,
    default="report",
    show_default=True,
    help="Folder for report.json, report.md and report.html.",
)
@json_option
def command(engines: tuple[Path, ...], output: Path, as_json: bool) -> None:
    """Write what was found out about ENGINES (default: the newest engine's folder).

    Takes the results that `evaluate` and `benchmark` left beside the engines.
    Without arguments, every engine of the newest one's model and resolution.

    \b
      vitdeploy report
      vitdeploy report artifacts/*.engine -o report
    """
    from vitdeploy import api
    from vitdeploy.artifacts.engine import read_engine
    from vitdeploy.benchmarks.report import markdown
    from vitdeploy.benchmarks.report.assemble import Evidence
    from vitdeploy.pipeline import now

    sink = console.progress()
    if engines:
        loaded = [read_engine(path) for path in engines]
    else:
        loaded = _siblings(workspace(sink.note).engine(None))
    evidence = Evidence(
        engines=loaded,
        evaluations=_evaluations(loaded, sink.note),
        benchmark=_benchmark(loaded, sink.note),
        created=now(),
    )
    report, written = api.report(evidence, output)
    if as_json:
        click.echo(written["json"].read_text(encoding="utf-8"))
        return
    console.table(*markdown.table_rows(report))
    click.echo(report.verdict())
    click.echo("written: " + ", ".join(str(path) for path in written.values()))


def _siblings(newest: Any) -> list[Any]:
    """The engines beside the newest one that are of the same model and resolution."""
    from vitdeploy.artifacts.engine import manifest_path, read_engine

    def key(engine: Any) -> tuple[Any, ...]:
        return (engine.manifest.model.source.weights_digest, engine.manifest.model.resolution)

    paths = sorted(newest.path.parent.glob("*.engine"))
    found = [read_engine(path) for path in paths if manifest_path(path).is_file()]
    return [engine for engine in found if key(engine) == key(newest)]


def _evaluations(engines: list[Any], note: Any) -> dict[str, Any]:
    from vitdeploy.artifacts.files import from_json
    from vitdeploy.benchmarks.evaluation import EvaluationResult

    found = {}
    for engine in engines:
        path = engine.path.with_suffix(".accuracy.json")
        if not path.is_file():
            note(f"not evaluated yet: {engine.path.name}")
            continue
        result = from_json(path.read_text(encoding="utf-8"), EvaluationResult, origin=str(path))
        if result.engine_digest != engine.manifest.engine_digest:
            note(f"left out: {path.name} is of an older build of this engine")
            continue
        found[engine.manifest.engine_digest] = result
    return found


def _benchmark(engines: list[Any], note: Any) -> Any:
    from vitdeploy.artifacts.files import from_json
    from vitdeploy.benchmarks.throughput import BenchmarkResult
    from vitdeploy.cli.benchmark import FILE_NAME

    path = engines[0].path.with_name(FILE_NAME)
    if not path.is_file():
        note("not timed yet: run `vitdeploy benchmark`")
        return None
    result = from_json(path.read_text(encoding="utf-8"), BenchmarkResult, origin=str(path))
    known = {engine.manifest.engine_digest for engine in engines}
    if not known & set(result.engine_digests):
        note(f"left out: {path} is of other engines")
        return None
    return result
