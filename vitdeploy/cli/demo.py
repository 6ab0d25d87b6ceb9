"""`vitdeploy demo`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from vitdeploy.cli import console
from vitdeploy.cli.options import PATH, Finite, Resolution, json_option


@click.command()
@click.option("--res", type=Resolution(), help="Target resolution (default 192; native is 128).")
@click.option(
    "-o",
    "--out",
    "output",
    type=PATH,
    default="report",
    show_default=True,
    help="Folder for the report; graphs and engines go to its 'artifacts'.",
)
@click.option(
    "--images",
    type=click.IntRange(100, 2000),
    default=2000,
    show_default=True,
    help="Evaluation images, taken evenly over the embedded 2,000.",
)
@click.option(
    "--seconds",
    type=Finite(min=2),
    default=20,
    show_default=True,
    help="Time for the benchmark, per batch size.",
)
@json_option
def command(
    res: tuple[int, int] | None, output: Path, images: int, seconds: float, as_json: bool
) -> None:
    """Take the embedded model all the way, offline: export at another resolution,
    verify, INT8, engines, evidence, report.

    The model is a small ViT trained on Fashion-MNIST at 128 pixels. FP32 and
    INT8 run on ONNX Runtime and, where installed, OpenVINO; TensorRT-RTX builds
    FP16 and INT8 engines for three GPU generations, even without a GPU.
    """
    from vitdeploy.artifacts.files import require_writable
    from vitdeploy.demo import assets
    from vitdeploy.models.preflight import require_sizes
    from vitdeploy.models.request import ModelRequest

    require_sizes(ModelRequest(name=str(assets.CHECKPOINT)), [] if res is None else [res])
    require_writable(output / "report.json")

    from vitdeploy import pipeline
    from vitdeploy.benchmarks.report import markdown
    from vitdeploy.benchmarks.report.write import write_report

    sink = console.progress()
    report = pipeline.demo(
        output / "artifacts", resolution=res, images=images, seconds=seconds, progress=sink
    )
    written = write_report(report, output)
    if as_json:
        click.echo(json.dumps({name: str(path) for name, path in written.items()}))
    else:
        console.table(*markdown.table_rows(report))
        for note in report.notes:
            click.echo(f"note: {note}")
        click.echo(report.verdict())
        click.echo("written: " + ", ".join(str(path) for path in written.values()))
    pipeline.require_passing(report)
