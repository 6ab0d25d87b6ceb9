"""`vitdeploy benchmark`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vitdeploy.cli import console
from vitdeploy.cli.options import (
    MODEL_KEYS,
    PATH,
    SEED,
    Finite,
    json_option,
    model_options,
    requested_model,
    threads_option,
    timing_options,
    workspace,
)
from vitdeploy.cli.sizes import at_size, size_option

if TYPE_CHECKING:
    from vitdeploy.artifacts.engine import Engine
    from vitdeploy.benchmarks.speed.end_to_end import EndToEnd
    from vitdeploy.benchmarks.speed.throughput import BenchmarkResult
    from vitdeploy.images import ImageSet

FILE_NAME = "benchmark.json"
SCENARIOS_SUFFIX = ".scenarios.json"
_SCENARIOS = ("single-stream", "multi-stream", "offline", "server")


@click.command()
@click.argument("engines", type=PATH, nargs=-1)
@timing_options
@click.option("--accept-unstable", is_flag=True, help="Report timings that did not settle.")
@click.option("--no-source", is_flag=True, help="Compare with the first engine, not with PyTorch.")
@click.option(
    "--quick",
    is_flag=True,
    help="Only eager PyTorch and the engines: neither compiled PyTorch nor the machine's peak, "
    "memory and energy.",
)
@click.option(
    "--scenario",
    "scenarios",
    type=click.Choice([*_SCENARIOS, "all"]),
    multiple=True,
    help="Run each engine as MLPerf does (through LoadGen where it is installed), in place of "
    "the comparison; --seconds bounds each scenario. May be repeated.",
)
@click.option(
    "--bound-ms",
    type=Finite(min=0, min_open=True),
    default=100.0,
    show_default=True,
    help="The latency that 99 % of a server's queries must keep.",
)
@click.option("--seed", type=SEED, default=0, show_default=True, help="Of a server's arrivals.")
@size_option
@click.option("--data", type=PATH, help="Images: also time the way from files to answers.")
@model_options
@threads_option
@json_option
def command(
    engines: tuple[Path, ...], scenarios: tuple[str, ...], as_json: bool, **options: Any
) -> None:
    """Time ENGINES (default: the newest) interleaved with their source.

    Source and engines take turns, so that what slows the machine slows all of
    them; ratios carry 95 % intervals. Timings that do not settle are an error.

    \b
      vitdeploy benchmark
      vitdeploy benchmark fp32.engine int8.engine --batch 1,8,32
      vitdeploy benchmark int8.engine --scenario server --bound-ms 50
    """
    if scenarios:
        _run_scenarios(engines, scenarios, options, as_json)
    else:
        _time_in_turns(engines, options, as_json)


def _time_in_turns(paths: tuple[Path, ...], options: dict[str, Any], as_json: bool) -> None:
    """Time engines interleaved with their source, and write 'benchmark.json' beside the first."""
    from dataclasses import replace

    from vitdeploy import api
    from vitdeploy.artifacts.engine import beside
    from vitdeploy.benchmarks.findings import write_finding

    sink = console.progress()
    place = workspace(sink.note)
    engines = [at_size(place.engine(path), options["size"], sink.note) for path in paths or (None,)]
    written = beside(engines[0].path, FILE_NAME)
    images = _images(options, sink)
    source = None
    if not options["no_source"]:
        _require_exported(engines)
        model = {key: options[key] for key in MODEL_KEYS}
        source = api.load_model(place.model_request(requested_model(None, model)))
        for engine in engines:
            api.require_same_source(source.description, engine.manifest.model)

    from vitdeploy.benchmarks.speed.throughput import TimingConfig

    result = api.benchmark(
        engines,
        source,
        batch_sizes=options["batch"],
        config=TimingConfig(
            max_seconds=options["seconds"], accept_unstable=options["accept_unstable"]
        ),
        thorough=not options["quick"],
        threads=options["threads"],
        progress=sink,
    )
    if images is not None:
        result = replace(result, from_files=_from_files(engines, images, options))
    _show(result, as_json)
    write_finding(written, result, sink.note)


def _require_exported(engines: list[Engine]) -> None:
    from vitdeploy.errors import InputError

    for engine in engines:
        if engine.manifest.model.source.library == "onnx":
            raise InputError(
                f"{engine.path.name} was made from a graph that was taken in: there is no PyTorch "
                "model to time it against",
                hint="give --no-source: engines are then compared with the first one",
            )


def _images(options: dict[str, Any], sink: Any) -> ImageSet | None:
    """Those of --data; what would fail with them is said before minutes of timing."""
    if options["data"] is None:
        return None
    from vitdeploy.benchmarks.speed.end_to_end import require_a_batch
    from vitdeploy.images import require_readable, scan

    images = scan(options["data"])
    require_a_batch(images, max(options["batch"]))
    require_readable(images, sink)
    return images


def _show(result: BenchmarkResult, as_json: bool) -> None:
    if as_json:
        import json

        from vitdeploy.artifacts.files import to_json

        console.emit(True, json.loads(to_json(result)), "")
        return
    header = ("Engine", "Batch", "ms/image", "p90 ms/image", "images/s", "Speed-up (95 % interval)")
    console.table(header, [row for c in result.comparisons for row in _rows(c)])
    for line in _lines(result):
        click.echo(line)


def _rows(comparison: Any) -> list[tuple[str, ...]]:
    speedups = {
        s.name: f"{s.ratio:.2f}x ({s.low:.2f} to {s.high:.2f})" for s in comparison.speedups
    }
    return [
        (
            m.name,
            str(m.batch),
            f"{m.p50_ms() / m.batch:.2f}",
            f"{m.p90_ms() / m.batch:.2f}",
            f"{m.images_per_second():.0f}",
            speedups.get(m.name, "baseline") + ("" if comparison.stable else " (unstable)"),
        )
        for m in comparison.measurements
    ]


def _lines(result: BenchmarkResult) -> list[str]:
    """What the figures mean, a sentence each."""
    from vitdeploy.benchmarks.speed.payoff import payoffs

    lines = [payoff.in_words() for payoff in payoffs(result)]
    for digest in result.engine_digests:
        measured = result.measurements_of(digest)
        name = measured[0].name
        lines += filter(None, (each.device_in_words() for each in measured))
        for fair in result.fair_speedups_of(digest) if result.source_variants else ():
            lines.append(
                f"{name} at batch {fair.batch}: {fair.ratio:.2f}x ({fair.low:.2f} to "
                f"{fair.high:.2f}) as fast as {fair.baseline}, PyTorch's fastest form here"
            )
        for share in result.shares:
            if share.name == name:
                lines.append(f"{name} at batch {share.batch}: {share.in_words()}")
        for memory in result.memory:
            if memory.engine_digest == digest:
                lines.append(f"{name} at batch {memory.batch}: {memory.in_words()}")
    lines += [
        f"{e.name} at batch {e.batch}: {e.joules_per_image:.3g} J an image, {e.watts:.3g} W "
        f"({e.source})"
        for e in result.energy
    ]
    if result.peak is not None:
        lines.append(result.peak.in_words())
    if result.conditions:
        lines.append(f"ran under: {result.conditions[-1].in_words()}")
    lines += [found.in_words() for found in result.from_files]
    return lines


def _from_files(
    engines: list[Engine], images: ImageSet, options: dict[str, Any]
) -> tuple[EndToEnd, ...]:
    """The way from image files to answers of each engine."""
    from vitdeploy import api
    from vitdeploy.benchmarks.speed.end_to_end import measure_end_to_end

    batch, threads = max(options["batch"]), options["threads"]
    return tuple(
        measure_end_to_end(
            engine, api.load_engine(engine, threads=threads, alone=False), images, batch
        )
        for engine in engines
    )


def _run_scenarios(
    paths: tuple[Path, ...], asked: tuple[str, ...], options: dict[str, Any], as_json: bool
) -> None:
    """Run each engine as MLPerf does, and write '<engine>.scenarios.json' beside it."""
    from vitdeploy import api
    from vitdeploy.artifacts.engine import beside
    from vitdeploy.artifacts.files import plain
    from vitdeploy.benchmarks.findings import read_finding, write_finding
    from vitdeploy.benchmarks.speed.loadgen import best_driver
    from vitdeploy.benchmarks.speed.scenario_runs import run_scenarios
    from vitdeploy.benchmarks.speed.scenarios import ScenarioConfig, ScenarioResult

    chosen = _SCENARIOS if "all" in asked else tuple(dict.fromkeys(asked))
    config = ScenarioConfig(
        min_seconds=min(5.0, options["seconds"]),
        max_seconds=options["seconds"],
        bound_ms=options["bound_ms"],
        seed=options["seed"],
        accept_unstable=options["accept_unstable"],
    )
    sink = console.progress()
    place = workspace(sink.note)
    driver = best_driver()
    sink.note(f"queries are sent by {driver.name}")
    found = []
    loaded = [at_size(place.engine(path), options["size"], sink.note) for path in paths or (None,)]
    for engine in loaded:
        written = beside(engine.path, engine.path.stem + SCENARIOS_SUFFIX)
        session = api.load_engine(engine, threads=options["threads"])
        result = run_scenarios(engine, session, chosen, config, driver, sink)
        older = read_finding(written, ScenarioResult, sink.note)
        write_finding(written, result if older is None else result.with_older(older), sink.note)
        found.append(result)
        for line in () if as_json else result.in_words():
            click.echo(line)
    if as_json:
        console.emit(True, {"engines": [plain(result) for result in found]}, "")
