"""`vitdeploy export`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vitdeploy.cli import console
from vitdeploy.cli.next_step import building_of
from vitdeploy.cli.options import (
    PATH,
    ModelName,
    Resolution,
    ResolutionSpan,
    json_option,
    model_options,
    output_option,
    requested_model,
    workspace,
)

if TYPE_CHECKING:
    from vitdeploy.artifacts.onnx_model import OnnxModel, Verification
    from vitdeploy.models.request import ModelRequest
    from vitdeploy.models.source import SourceModel
    from vitdeploy.workspace import Workspace


@click.command()
@click.argument("model", required=False)
@model_options
@click.option("--res", type=Resolution(), help="Target resolution, 384 or 384x512.")
@click.option(
    "--dynamic-res",
    type=ResolutionSpan(),
    help="One graph for every size from LOW to HIGH (absolute and rotary positions).",
)
@click.option(
    "--precision",
    type=click.Choice(["fp32", "fp16", "bf16"]),
    default="fp32",
    show_default=True,
    help="Half precision is judged by emulation; what would overflow stays in float32.",
)
@click.option(
    "--input",
    "input_type",
    type=click.Choice(["float32", "uint8"]),
    default="float32",
    show_default=True,
    help="uint8 takes (n, height, width, channels) bytes and normalizes in the graph.",
)
@click.option(
    "--output",
    "kind",
    type=click.Choice(["logits", "probabilities", "features", "tokens"]),
    help="What the graph answers (default: logits; features with --task features).",
)
@click.option("--opset", type=int, help="ONNX opset (default 20; 17 to 19 for older runtimes).")
@click.option(
    "--external-data",
    is_flag=True,
    help="Weights in a second file (always done above 2 GB).",
)
@click.option(
    "--name",
    type=ModelName(),
    help="What files and reports call the model (default: its own name, which for a "
    "checkpoint of another program is the architecture's).",
)
@click.option("--data", type=PATH, help="Images to verify on (default: the recipe's, else noise).")
@output_option
@json_option
def command(
    model: str | None,
    name: str | None,
    data: Path | None,
    output: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Export MODEL to an ONNX graph and prove that it equals PyTorch.

    Positions are resampled by the source library's own method. The graph is
    written only after it has answered as PyTorch does at batch 1, 2 and 5. A
    wildcard, as in 'vit_tiny*', exports every timm model it names.

    \b
      vitdeploy export --res 384
      vitdeploy export vit_small_patch16_224 --pretrained --res 384x512
      vitdeploy export my_vit.safetensors --dynamic-res 224:512 --precision fp16
      vitdeploy export vit_base_patch16_224 --checkpoint flowers.pth --name flowers
      vitdeploy export torchvision:vit_b_16 --pretrained --res 384 --input uint8
    """
    from vitdeploy import api

    sink = console.progress()
    place = workspace(sink.note)
    export_options = _export_options(options)
    request = place.model_request(requested_model(model, options))
    images = None if data is None else place.calibration(data, None)
    requests = _expanded(request)
    for one in requests:
        _require_sizes(one, export_options)
    if name is not None and len(requests) > 1:
        raise click.UsageError(f"--name is for one model, and {request.name} names {len(requests)}")
    written = []
    for one in requests:
        source = _loaded(one, name)
        own = place.calibration(None, source.description) if images is None else images
        folder = output or place.output
        written.append(api.export(source, export_options, folder, images=own, progress=sink))
    records = [_record(each) for each in written]
    console.emit(
        as_json,
        records[0] if len(records) == 1 else {"exports": records},
        "\n".join(f"{_in_words(each)}\n  {_next(each, place, data)}" for each in written),
    )


def _next(written: OnnxModel, place: Workspace, data: Path | None) -> str:
    known = place.recipe.data.calibration is not None and place.is_own(written.description.source)
    return building_of(written, calibrated=known and data is None, images=None if known else data)


def _export_options(given: dict[str, Any]) -> Any:
    """Take the export's own options out of `given`; the model's are left in it."""
    from vitdeploy.export.options import ExportOptions

    resolution, dynamic = given.pop("res"), given.pop("dynamic_res")
    opset = given.pop("opset")
    formats = {"float32": "float32-nchw", "uint8": "uint8-nhwc"}
    return ExportOptions(
        resolution=resolution,
        dynamic_resolution=dynamic,
        precision=given.pop("precision"),
        input_format=formats[given.pop("input_type")],  # pyright: ignore[reportArgumentType]
        output=given.pop("kind"),
        external_data=True if given.pop("external_data") else None,
        **({} if opset is None else {"opset": opset}),
    )


def _require_sizes(request: ModelRequest, options: Any) -> None:
    from vitdeploy.models.preflight import require_sizes

    if options.dynamic_resolution is not None:
        require_sizes(request, options.dynamic_resolution, option="--dynamic-res")
    elif options.resolution is not None:
        require_sizes(request, [options.resolution])


def _expanded(request: ModelRequest) -> list[ModelRequest]:
    from dataclasses import replace

    from vitdeploy.models.names import expand

    return [replace(request, name=name) for name in expand(request.name)]


def _loaded(request: ModelRequest, name: str | None) -> SourceModel:
    from vitdeploy import api

    source = api.load_model(request)
    return source if name is None else api.relabelled(source, name)


def _record(written: OnnxModel) -> dict[str, Any]:
    from vitdeploy.artifacts.files import plain

    description = written.description
    check = description.verification
    assert check is not None  # export returns verified graphs only
    return {
        "path": str(written.path),
        "digest": written.digest,
        "precision": description.precision,
        "resolution": list(description.resolution),
        "resolution_range": plain(description.resolution_range),
        "positions": description.positions,
        "input_format": description.input_format,
        "output": description.output,
        "max_error": check.max_error,
        "runtime_error": check.runtime_error,
        "agreement": check.agreement,
        "kept_float32": description.kept_float32,
        "forecast": plain(description.forecast),
        "preprocessing": description.source.preprocessing.describe_at(description.resolution),
    }


def _in_words(written: OnnxModel) -> str:
    description = written.description
    check = description.verification
    assert check is not None  # export returns verified graphs only
    kind = "images" if check.real_images else "noise images"
    size = "x".join(map(str, description.resolution))
    sizes = description.resolution_range
    if sizes is not None:
        low, high, step = ("x".join(map(str, side)) for side in (sizes.low, sizes.high, sizes.step))
        size = f"{low} to {high} in steps of {step}"
    lines = [
        f"{written.path}",
        f"  {size}, {description.precision}, {written.size_bytes / 1e6:.1f} MB, "
        f"opset {description.opset}",
        f"  the float32 graph equals PyTorch on {check.images} {kind} at batch 1, 2 and 5: "
        f"largest difference {check.max_error:.1e} deviations of the {description.output}",
        *_runtime_lines(check),
        f"  positions: {description.positions}",
        f"  images: {description.source.preprocessing.describe_at(description.resolution)}"
        + (", in the graph" if description.input_format == "uint8-nhwc" else ""),
    ]
    if description.forecast is not None:
        lines += _forecast_lines(description)
    return "\n".join(lines)


def _runtime_lines(check: Verification) -> list[str]:
    if check.runtime_error is None:
        return []
    return [
        f"  ONNX Runtime's own rounding on this CPU adds up to {check.runtime_error:.1e}; "
        "the figure above is of ONNX's reference implementation"
    ]


def _forecast_lines(description: Any) -> list[str]:
    forecast = description.forecast
    lines = [
        f"  forecast of {description.precision} on {forecast.images} images: agreement with "
        f"float32 {forecast.worst.agreement:.1%} to {forecast.fused.agreement:.1%}, smallest "
        f"cosine {forecast.worst.cosine:.5f} to {forecast.fused.cosine:.5f}"
    ]
    kept = description.kept_float32
    if kept:
        shown = list(kept.items())[:5]
        lines.append(f"  {len(kept)} nodes stay in float32:")
        lines += [f"    {name}: {reason}" for name, reason in shown]
        if len(kept) > len(shown):
            lines.append(f"    ... and {len(kept) - len(shown)} more (`vitdeploy inspect`)")
    return lines
