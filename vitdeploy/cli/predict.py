"""`vitdeploy predict`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from vitdeploy.cli import console
from vitdeploy.cli.options import PATH, json_option, threads_option
from vitdeploy.cli.sizes import at_size, size_option

if TYPE_CHECKING:
    from vitdeploy.prediction import Prediction, Predictions
    from vitdeploy.preprocessing import Size


@click.command()
@click.argument("model", type=PATH, metavar="ENGINE|GRAPH")
@click.argument("images", type=PATH, nargs=-1, required=True)
@click.option(
    "--top", type=click.IntRange(1, 1000), default=5, show_default=True, help="Answers an image."
)
@size_option
@threads_option
@json_option
def command(
    model: Path,
    images: tuple[Path, ...],
    top: int,
    size: Size | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Labels and scores of IMAGES (files and folders) from an engine or an .onnx graph.

    Images are prepared by the model's own preprocessing. Those that cannot be
    read are listed; where none can, the exit code is 2. Features are shown as
    a summary. PyTorch is not needed.

    \b
      vitdeploy predict vit_int8.engine cat.jpg
      vitdeploy predict vit_fp32.onnx photos/ --top 1 --json
    """
    import json

    from vitdeploy import api
    from vitdeploy.artifacts.engine import read_engine
    from vitdeploy.artifacts.files import require_file, to_json
    from vitdeploy.artifacts.onnx_model import read_onnx_model
    from vitdeploy.errors import InputError
    from vitdeploy.prediction import images_named

    sink = console.progress()
    require_file(model, what="engine or graph")
    if model.suffix not in (".engine", ".onnx"):
        raise InputError(
            f"{model} is neither an engine nor a graph",
            hint="vitdeploy predict MODEL IMAGES: first the .engine file that `vitdeploy "
            "build-engine` wrote, or an .onnx graph",
        )
    named = images_named(images)
    loaded = read_onnx_model(model) if model.suffix == ".onnx" else read_engine(model)
    loaded = at_size(loaded, size, sink.note)
    found = api.predict(loaded, named, top=top, threads=threads, progress=sink)
    for left_out in found.unreadable:
        sink.note(f"left out: {left_out.reason}")
    console.emit(as_json, json.loads(to_json(found)), "\n".join(_lines(found)))


def _lines(found: Predictions) -> list[str]:
    lines = [f"{found.model} by {found.runtime}"]
    for prediction in found.predictions:
        lines.append(prediction.image)
        lines += _of_image(prediction, found.kind)
    return lines


def _of_image(prediction: Prediction, kind: str) -> list[str]:
    features = prediction.features
    if features is not None:
        first = ", ".join(f"{value:.4g}" for value in features.first)
        return [
            f"  features {'x'.join(map(str, features.shape))}: norm {features.norm:.4g}, "
            f"mean {features.mean:.4g}, deviation {features.deviation:.4g}, first {first}"
        ]
    if kind == "regression":
        return [f"  {answer.score:12.6g}  {answer.label}" for answer in prediction.answers]
    return [f"  {answer.score:8.2%}  {answer.label}" for answer in prediction.answers]
