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
    from vitdeploy.benchmarks.evaluation import EvaluationResult
    from vitdeploy.benchmarks.throughput import BenchmarkResult

Finding = TypeVar("Finding")
Say = Callable[[str], None]


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
    from vitdeploy.artifacts.strict import printable
    from vitdeploy.benchmarks.report import markdown
    from vitdeploy.benchmarks.report.assemble import Evidence
    from vitdeploy.pipeline import now

    sink = console.progress()
    left_out: list[str] = []

    def leave_out(reason: str) -> None:
        """Said here and in the report, so that nobody misses it there."""
        left_out.append(printable(f"left out: {reason}"))
        sink.note(left_out[-1])

    if engines:
        loaded = [read_engine(path) for path in engines]
    else:
        loaded = _siblings(workspace(sink.note).newest_engine(), leave_out)
    evidence = Evidence(
        engines=loaded,
        evaluations=_evaluations(loaded, sink.note, leave_out),
        benchmark=_benchmark(loaded, sink.note, leave_out),
        notes=left_out,
        created=now(),
    )
    report, written = api.report(evidence, output)
    if as_json:
        click.echo(written["json"].read_text(encoding="utf-8"))
        return
    console.table(*markdown.table_rows(report))
    click.echo(report.verdict())
    click.echo("written: " + ", ".join(str(path) for path in written.values()))


def _siblings(newest: Path, leave_out: Say) -> list[Engine]:
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
            leave_out(str(error))
    if not found:
        raise InputError(
            f"{newest.parent} holds no whole engine", hint="run `vitdeploy build-engine` again"
        )
    return found


def _evaluations(engines: list[Engine], note: Say, leave_out: Say) -> dict[str, EvaluationResult]:
    from vitdeploy.benchmarks.evaluation import EvaluationResult

    found = {}
    for engine in engines:
        path = engine.path.with_suffix(".accuracy.json")
        result = _finding(path, EvaluationResult, leave_out)
        if result is None:
            note(f"not evaluated yet: {engine.path.name}")
        elif result.engine_digest != engine.manifest.engine_digest:
            leave_out(f"{path.name} is of an older build of this engine")
        else:
            found[engine.manifest.engine_digest] = result
    return found


def _benchmark(engines: list[Engine], note: Say, leave_out: Say) -> BenchmarkResult | None:
    from vitdeploy.benchmarks.throughput import BenchmarkResult
    from vitdeploy.cli.benchmark import FILE_NAME

    path = engines[0].path.with_name(FILE_NAME)
    result = _finding(path, BenchmarkResult, leave_out)
    if result is None:
        note("not timed yet: run `vitdeploy benchmark`")
        return None
    known = {engine.manifest.engine_digest for engine in engines}
    if not known & set(result.engine_digests):
        leave_out(f"{path} is of other engines")
        return None
    return result


def _finding(path: Path, kind: type[Finding], leave_out: Say) -> Finding | None:
    """What a command left beside an engine; None where it is not there or damaged."""
    from vitdeploy.artifacts.files import from_json, read_text, reading
    from vitdeploy.errors import InputError

    try:
        with reading(path, "result"):
            if not path.exists():
                return None
        return from_json(read_text(path, what="result"), kind, origin=str(path))
    except InputError as error:
        leave_out(str(error))
        return None
