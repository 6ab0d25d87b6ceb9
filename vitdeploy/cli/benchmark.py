"""`vitdeploy benchmark`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from vitdeploy.cli import console
from vitdeploy.cli.options import (
    LARGEST_BATCH,
    PATH,
    Finite,
    Numbers,
    json_option,
    model_options,
    requested_model,
    threads_option,
    workspace,
)

FILE_NAME = "benchmark.json"


@click.command()
@click.argument("engines", type=PATH, nargs=-1)
@click.option(
    "-b", "--batch", type=Numbers(int, most=LARGEST_BATCH), default="1,8", show_default=True
)
@click.option(
    "--seconds",
    type=Finite(min=1),
    default=60,
    show_default=True,
    help="At most so long per batch size.",
)
@click.option("--accept-unstable", is_flag=True, help="Report timings that did not settle.")
@click.option("--no-source", is_flag=True, help="Compare with the first engine, not with PyTorch.")
@model_options
@threads_option
@json_option
def command(
    engines: tuple[Path, ...],
    batch: tuple[int, ...],
    seconds: float,
    accept_unstable: bool,
    no_source: bool,
    threads: int | None,
    as_json: bool,
    **model: Any,
) -> None:
    """Time ENGINES (default: the newest) interleaved with their source.

    Source and engines take turns, so that what slows the machine slows all of
    them; ratios carry 95 % intervals. Timings that do not settle are an error.

    \b
      vitdeploy benchmark
      vitdeploy benchmark fp32.engine int8.engine --batch 1,8,32
    """
    import json

    from vitdeploy import api
    from vitdeploy.artifacts.engine import COPY_FIRST, beside
    from vitdeploy.artifacts.files import to_json, write_text
    from vitdeploy.benchmarks.throughput import TimingConfig

    sink = console.progress()
    place = workspace(sink.note)
    loaded = [place.engine(path) for path in engines or (None,)]
    written = beside(loaded[0].path, FILE_NAME)
    source = None
    if not no_source:
        source = api.load_model(place.model_request(requested_model(None, model)))
        for engine in loaded:
            api.require_same_source(source.description, engine.manifest.model)
    config = TimingConfig(max_seconds=seconds, accept_unstable=accept_unstable)
    result = api.benchmark(
        loaded, source, batch_sizes=batch, config=config, threads=threads, progress=sink
    )
    if as_json:
        console.emit(True, json.loads(to_json(result)), "")
    else:
        header = (
            "Engine",
            "Batch",
            "ms/image",
            "p90 ms/image",
            "images/s",
            "Speed-up (95 % interval)",
        )
        console.table(header, [row for c in result.comparisons for row in _rows(c)])
    write_text(written, to_json(result), remedy=COPY_FIRST)
    sink.note(f"written: {written}")


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
