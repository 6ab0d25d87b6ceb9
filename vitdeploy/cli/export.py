"""`vitdeploy export`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from vitdeploy.cli import console
from vitdeploy.cli.options import (
    PATH,
    Resolution,
    json_option,
    model_options,
    output_option,
    requested_model,
    workspace,
)


@click.command()
@click.argument("model", required=False)
@model_options
@click.option("--res", type=Resolution(), help="Target resolution, 384 or 384x512.")
@click.option("--opset", type=int, help="ONNX opset (default 20; 17 to 19 for older runtimes).")
@click.option("--data", type=PATH, help="Images to verify on (default: the recipe's, else noise).")
@output_option
@json_option
def command(
    model: str | None,
    res: tuple[int, int] | None,
    opset: int | None,
    data: Path | None,
    output: Path | None,
    as_json: bool,
    **model_options: Any,
) -> None:
    """Export MODEL to a float32 ONNX graph and prove that it equals PyTorch.

    Positions are resampled by timm's own method. The graph is written only
    after it has answered as PyTorch does at batch 1, 2 and 5.

    \b
      vitdeploy export --res 384
      vitdeploy export vit_small_patch16_224 --pretrained --res 384x512
      vitdeploy export my_vit.safetensors --res 256 --data photos/
    """
    sink = console.progress()
    place = workspace(sink.note)
    request = place.model_request(requested_model(model, model_options))
    from vitdeploy import api

    source = api.load_model(request)
    from vitdeploy.export.export import ExportOptions

    options = (
        ExportOptions(resolution=res)
        if opset is None
        else ExportOptions(resolution=res, opset=opset)
    )
    images = place.calibration(data, source.description)
    written = api.export(source, options, output or place.output, images=images, progress=sink)
    check = written.description.verification
    assert check is not None  # export returns verified graphs only
    kind = "images" if check.real_images else "noise images"
    size = "x".join(map(str, written.description.resolution))
    record = {
        "path": str(written.path),
        "digest": written.digest,
        "resolution": list(written.description.resolution),
        "max_error": check.max_error,
        "agreement": check.agreement,
        "preprocessing": source.description.preprocessing.describe_at(
            written.description.resolution
        ),
    }
    console.emit(
        as_json,
        record,
        f"{written.path}\n"
        f"  {size}, {written.size_bytes / 1e6:.1f} MB, opset {written.description.opset}\n"
        f"  equals PyTorch on {check.images} {kind} at batch 1, 2 and 5: largest difference "
        f"{check.max_error:.1e} deviations of the logits\n"
        f"  images: {record['preprocessing']}",
    )
