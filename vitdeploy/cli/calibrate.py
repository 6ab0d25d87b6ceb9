"""`vitdeploy calibrate`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vitdeploy.cli import console
from vitdeploy.cli.next_step import command_line
from vitdeploy.cli.options import PATH, SEED, json_option, workspace

if TYPE_CHECKING:
    from vitdeploy.artifacts.calibration import Finding
    from vitdeploy.artifacts.source import SourceDescription
    from vitdeploy.calibration.image_set import CalibrationSet
    from vitdeploy.workspace import Workspace

_SHOWN = 3
"""Names in a cell of the table; the manifest has them all."""


@click.command()
@click.argument("folder", type=PATH, required=False)
@click.option(
    "--count",
    type=click.IntRange(1, 10_000_000),
    default=512,
    show_default=True,
    help="Images to draw, evenly over the classes where there are any.",
)
@click.option("--seed", type=SEED, default=0, show_default=True, help="Of the draw.")
@click.option(
    "--eval",
    "evaluation",
    type=PATH,
    help="Evaluation images, none of which may be drawn (default: the recipe's).",
)
@click.option(
    "--model",
    type=PATH,
    help="Graph, engine or described checkpoint whose classes are to be covered "
    "(default: the recipe's model).",
)
@click.option(
    "-o",
    "--out",
    "output",
    type=PATH,
    help="The manifest, a .json file (default: in the recipe's output folder).",
)
@json_option
def command(
    folder: Path | None,
    count: int,
    seed: int,
    evaluation: Path | None,
    model: Path | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Draw calibration images from FOLDER (default: the recipe's), examine them,
    and write down which they are.

    Images that cannot be read and copies are passed over, and listed; what else
    is unusual is shown in one table. It stops where an image is among the
    evaluation images, and where too few differ. Only the images drawn are read.

    \b
      vitdeploy calibrate train/ --eval val/ --model vit_384x384_fp32.onnx
      vitdeploy build-engine --int8 --calib artifacts/calibration-1a2b3c4d.json
    """
    from vitdeploy.artifacts.calibration import ANOTHER_FILE, require_destination
    from vitdeploy.artifacts.files import require_writable
    from vitdeploy.calibration.image_set import save_calibration_set
    from vitdeploy.workspace import Draw

    sink = console.progress()
    place = workspace(sink.note)
    if output is not None:
        require_destination(output)
    require_writable(output or place.output / "calibration.json", remedy=ANOTHER_FILE)
    draw = Draw(count=count, seed=seed, evaluation=evaluation)
    drawn = place.draw_calibration_set(folder, _described(model, place), draw, sink)
    path = output or place.output / f"calibration-{drawn.digest[:8]}.json"
    save_calibration_set(drawn, path)
    _show(drawn, path, _graph_to_build(model, place), as_json)


def show_findings(drawn: CalibrationSet, *, as_json: bool) -> None:
    """One table of what is worth knowing; a line on standard error where JSON is asked for."""
    findings = drawn.findings
    if not findings:
        return
    if as_json:
        kinds = ", ".join(f"{_title(f)} ({len(f.about)})" for f in findings)
        console.progress().note(f"calibration images: {kinds}")
        return
    rows = [
        (_title(f), str(len(f.about) or "-"), _examples(f), f.meaning, f.remedy) for f in findings
    ]
    console.table(("Calibration images", "Number", "For example", "What it means", "Remedy"), rows)


def _title(finding: Finding) -> str:
    return {"exif_rotated": "EXIF-rotated", "cmyk": "CMYK", "16_bit": "16-bit"}.get(
        finding.kind, finding.kind.replace("_", " ")
    )


def _examples(finding: Finding) -> str:
    names = [f"{name} ({detail})" if detail else name for name, detail in finding.about.items()]
    more = f"; {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return "; ".join(names[:_SHOWN]) + more


def _described(model: Path | None, place: Workspace) -> SourceDescription | None:
    """The source whose classes are to be covered; None where nothing says which they are."""
    if model is None:
        return place.description()
    from vitdeploy.artifacts.engine import read_manifest
    from vitdeploy.artifacts.onnx_model import read_description
    from vitdeploy.artifacts.source import description_in
    from vitdeploy.demo import assets
    from vitdeploy.errors import InputError
    from vitdeploy.workspace import DEMO

    path = assets.CHECKPOINT if str(model) == DEMO else model
    readers: dict[str, Callable[[], SourceDescription | None]] = {
        ".onnx": lambda: read_description(path).source,
        ".engine": lambda: read_manifest(path).model.source,
        ".safetensors": lambda: description_in(path),
    }
    source = readers.get(path.suffix, lambda: None)()
    if source is None:
        raise InputError(
            f"{model} does not say which classes it has",
            hint="give the .onnx file that `vitdeploy export` wrote, an .engine, or a .safetensors "
            "file that `vitdeploy train` wrote",
        )
    return source


def _graph_to_build(model: Path | None, place: Workspace) -> list[Path]:
    """What `build-engine` has to be told; nothing where it finds a graph or exports one."""
    if model is not None and model.suffix == ".onnx":
        return [model]
    finds = place.recipe.model is not None or any(place.output.glob("*.onnx"))
    return [] if finds else [Path("GRAPH.onnx")]


def _show(drawn: CalibrationSet, path: Path, graph: list[Path], as_json: bool) -> None:
    from vitdeploy.artifacts.calibration import read_manifest
    from vitdeploy.artifacts.files import plain

    if as_json:
        record = {"path": str(path), "digest": drawn.digest, **plain(read_manifest(path))}
        click.echo(json.dumps(record, indent=2))
        return
    show_findings(drawn, as_json=False)
    counts = drawn.counts()
    classes = ""
    if counts:
        fewest, most = min(counts.values()), max(counts.values())
        each = str(most) if fewest == most else f"{fewest} to {most}"
        classes = f" of {len(counts)} classes, {each} each"
    click.echo(f"{path}\n  {len(drawn)} images{classes}; seed {drawn.seed}")
    click.echo(f"  next: {command_line('build-engine', *graph, '--int8', '--calib', path)}")
