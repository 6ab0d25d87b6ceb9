"""`vitdeploy adopt`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from vitdeploy.cli import console
from vitdeploy.cli.next_step import building_of
from vitdeploy.cli.options import (
    PATH,
    ModelName,
    Resolution,
    json_option,
    output_option,
    preprocessing_options,
    workspace,
)


@click.command()
@click.argument("graph", type=PATH)
@preprocessing_options("preprocessor_config.json beside the graph")
@click.option("--res", type=Resolution(), help="Size of the images, where the graph takes any.")
@click.option(
    "--name", type=ModelName(), help="What the model is called (default: the file's name)."
)
@click.option(
    "--task",
    type=click.Choice(["classify", "multilabel", "regress", "features"]),
    help="What the answer is (default: classify; features where it has an axis of tokens).",
)
@click.option("--answer", metavar="OUTPUT", help="Which output to keep, where there are several.")
@click.option(
    "--labels",
    type=PATH,
    help="Names of the classes, one a line (default: config.json beside the graph, else numbers).",
)
@click.option(
    "--opset",
    type=click.IntRange(17, 25),
    default=20,
    show_default=True,
    help="Least opset of the copy (17 to 19 for older runtimes).",
)
@click.option(
    "--external-data", is_flag=True, help="Weights in a second file (always done above 2 GB)."
)
@click.option("--data", type=PATH, help="Images to compare on (default: seeded noise).")
@output_option
@json_option
def command(
    graph: Path,
    data: Path | None,
    output: Path | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Take in GRAPH, a float32 ONNX file that vitdeploy did not export.

    Writes a copy in the form that the other commands work on, and says what it
    recognised: LayerNorm, GELU, Linear layers and attention, however they were
    written. The copy is compared with the file at batch 1, 2 and 5; a fixed
    batch is opened where that is exact. Preprocessing is never guessed.

    \b
      vitdeploy adopt vit.onnx --mean 0.5,0.5,0.5 --std 0.5,0.5,0.5
      vitdeploy adopt exported/model.onnx --res 224
      vitdeploy build-engine artifacts/vit_224x224_fp32-*.onnx --int8 --calib train/
    """
    from vitdeploy.artifacts.files import require_file

    require_file(graph, what="ONNX model")

    from vitdeploy import adoption
    from vitdeploy.export.adopting.adopt import AdoptOptions
    from vitdeploy.export.adopting.companions import PreprocessingFlags
    from vitdeploy.images import scan

    sink = console.progress()
    place = workspace(sink.note)
    flags = ("mean", "std", "interpolation", "crop_pct", "crop_mode")
    options = AdoptOptions(
        preprocessing=PreprocessingFlags(**{name: given[name] for name in flags}),
        resolution=given["res"],
        name=given["name"],
        task=given["task"],
        answer=given["answer"],
        labels=None if given["labels"] is None else _lines_of(given["labels"]),
        opset=given["opset"],
        external_data=True if given["external_data"] else None,
    )
    images = None if data is None else scan(data)
    adopted = adoption.adopt(graph, output or place.output, options, images=images, progress=sink)
    recognised = adoption.recognise(adopted)
    console.emit(as_json, _record(adopted, recognised), _in_words(graph, adopted, recognised, data))


def _lines_of(path: Path) -> tuple[str, ...]:
    from vitdeploy.artifacts.files import read_text

    return tuple(filter(None, map(str.strip, read_text(path, what="labels").splitlines())))


def _record(adopted: Any, recognised: Any) -> dict[str, Any]:
    from vitdeploy.artifacts.files import plain

    description = adopted.description
    return {
        "path": str(adopted.path),
        "digest": adopted.digest,
        "resolution": list(description.resolution),
        "output": description.output,
        "passes": list(description.passes),
        "max_error": description.verification.max_error,
        "agreement": description.verification.agreement,
        "preprocessing": description.source.preprocessing.describe_at(description.resolution),
        "recognised": plain(recognised),
    }


def _in_words(graph: Path, adopted: Any, recognised: Any, data: Path | None) -> str:
    description = adopted.description
    check = description.verification
    kind = "images" if check.real_images else "noise images"
    height, width = description.resolution
    opened = any(each.startswith("open_batch") for each in description.passes)
    lines = [
        f"{adopted.path}",
        f"  {height}x{width}, fp32, {adopted.size_bytes / 1e6:.1f} MB, opset {description.opset}"
        + (", its fixed batch opened" if opened else ""),
        *(f"  {line}" for line in recognised.lines),
        f"  it equals {graph.name} on {check.images} {kind} at batch 1, 2 and 5: largest "
        f"difference {check.max_error:.1e} deviations of the {description.output}",
        f"  images: {description.source.preprocessing.describe_at(description.resolution)}",
        f"  {building_of(adopted, calibrated=False, images=data)}",
    ]
    return "\n".join(lines)
