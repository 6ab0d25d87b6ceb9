"""`vitdeploy inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from vitdeploy.cli import console
from vitdeploy.cli.options import PATH, Resolution, json_option, workspace

if TYPE_CHECKING:
    from vitdeploy.artifacts.engine import Engine
    from vitdeploy.artifacts.onnx_model import ModelDescription
    from vitdeploy.graph.inspection import GraphFile, Inspection
    from vitdeploy.graph.positions import PositionGrid
    from vitdeploy.graph.similarity import GridFigures, PositionFigures
    from vitdeploy.graph.summary import GraphSummary, Port
    from vitdeploy.workspace import Workspace

_LABEL_WIDTH = 15


@click.command()
@click.argument("file", type=PATH, required=False)
@click.option("--res", type=Resolution(), help="Size to look at a graph of dynamic size at.")
@click.option("--positions", type=PATH, help="Draw the positions' similarity (.png, .svg, .pdf).")
@click.option(
    "--compare",
    type=PATH,
    help="Where the positions were resampled from: .safetensors, or a graph of the native size.",
)
@json_option
def command(
    file: Path | None,
    res: tuple[int, int] | None,
    positions: Path | None,
    compare: Path | None,
    as_json: bool,
) -> None:
    """Show what is in FILE, a graph or an engine (default: the newest graph).

    Works on any ONNX file and runs nothing. GMACs count matrix products,
    convolutions and attention for one image. Positions are compared with
    --compare, else with those of the native size in a graph of dynamic size, else
    with the checkpoint in vitdeploy.toml if the graph was made from it.

    \b
      vitdeploy inspect
      vitdeploy inspect vit_384x384_fp32.onnx --positions positions.png
      vitdeploy inspect resized.onnx --compare native.onnx --json
    """
    place = workspace(console.progress().note)
    path = file or _newest_graph(place)
    if path.suffix == ".engine":
        if res or positions or compare:
            raise click.UsageError("--res, --positions and --compare are for .onnx files")
        _show_engine(path, as_json)
        return
    from vitdeploy.artifacts.files import to_json
    from vitdeploy.graph.inspection import inspection_of, read_graph

    graph = read_graph(path, resolution=res)
    figures, problem = _positions(graph, place, positions, compare)
    found = inspection_of(graph, figures, positions_problem=problem)
    if as_json:
        click.echo(to_json(found), nl=False)
        return
    _show(path, found)
    if positions is not None:
        click.echo(f"written: {positions}")


def _newest_graph(place: Workspace) -> Path:
    from vitdeploy.errors import InputError

    graph = place.graph(None)
    if graph is None:
        raise InputError(
            f"{place.output} holds no graph of this model",
            hint="run `vitdeploy export` first, or name the .onnx file",
        )
    return graph.path


# --- positions ---------------------------------------------------------------------------


def _positions(
    graph: GraphFile, place: Workspace, picture: Path | None, compare: Path | None
) -> tuple[PositionFigures | None, str]:
    """The figures, or why there are none; draws them where a picture is wanted."""
    from vitdeploy.errors import InputError
    from vitdeploy.graph.similarity import draw, position_figures

    wanted = picture is not None or compare is not None
    try:
        after = graph.positions()
    except InputError as error:
        if wanted:
            raise
        return None, str(error)
    if after is None:
        if wanted:
            raise InputError(
                f"{graph.path} adds no absolute positions to its tokens",
                hint=graph.summary.work.problem
                or "relative and rotary positions are made for each size and not resampled",
            )
        return None, ""
    before, origin = _before(graph, after, place, compare)
    figures = position_figures(after, before, before_from=origin)
    if picture is not None:
        draw(picture, after, before, title=f"Position embeddings of {graph.path.name}")
    return figures, ""


def _before(
    graph: GraphFile, after: PositionGrid, place: Workspace, compare: Path | None
) -> tuple[PositionGrid | None, str]:
    from vitdeploy.graph.inspection import compared_positions, native_grid

    if compare is not None:
        return compared_positions(graph, after, compare), compare.name
    checkpoint = None
    if graph.description is not None:
        checkpoint = place.checkpoint(graph.description.source)
    return native_grid(graph, after, checkpoint)


# --- what people read --------------------------------------------------------------------


def _line(label: str, text: str) -> None:
    click.echo(f"  {label:<{_LABEL_WIDTH}}{text}")


def _show(path: Path, found: Inspection) -> None:
    click.echo(str(path))
    if found.description is None:
        _line("description", "none: this file was not written by vitdeploy")
    else:
        _show_description(found.description)
    _line("digest", found.digest or "none: external data is not beside the file")
    _show_graph(found.graph)
    if found.positions is not None:
        _show_positions(found.positions)
    elif found.positions_problem:
        _line("positions", found.positions_problem)
    rows = [
        (
            name,
            str(operator.nodes),
            f"{operator.macs / 1e9:.4g}" if operator.macs else "",
            ", ".join(f"{count} {kind}" for kind, count in operator.types.items()),
        )
        for name, operator in found.graph.operators.items()
    ]
    console.table(("Operator", "Nodes", "GMACs", "Multiplies in"), rows)


def _show_description(found: ModelDescription) -> None:
    source = found.source
    native = _sized(source.native_resolution)
    _line("source", f"{source.name} ({source.library} {source.architecture}, native {native})")
    if source.origin:
        _line("weights", f"{source.origin}, digest {source.weights_digest[:12]}")
    if found.parent_digest:
        _line("made from", f"the graph with digest {found.parent_digest[:12]}")
    _line("written by", f"{found.producer or 'unknown'}; passes: {', '.join(found.passes) or '-'}")
    _line("precision", found.precision)
    _line("resolution", _resolution(found))
    preprocessing = source.preprocessing.describe_at(found.resolution)
    raw = found.input_format == "uint8-nhwc"
    inside = "; the graph normalizes the bytes itself" if raw else ""
    _line("preprocessing", preprocessing + inside)
    _line("output", found.output)
    _line("labels", _labels(source.labels))
    if found.positions:
        _line("resampling", found.positions)
    _show_checks(found)


def _show_checks(found: ModelDescription) -> None:
    check, forecast, int8 = found.verification, found.forecast, found.quantization
    if check is not None:
        kind = "images" if check.real_images else "noise images"
        _line(
            "verified",
            f"against PyTorch on {check.images} {kind}: largest difference {check.max_error:.1e} "
            f"deviations of the logits, agreement {check.agreement:.1%}"
            + (f"; ONNX Runtime's rounding {error:.1e}" if (error := check.runtime_error) else ""),
        )
    if int8 is not None:
        _line(
            "quantized",
            f"{len(int8.quantized)} nodes by {int8.method} on {int8.images} images; "
            f"{len(int8.kept)} kept in float",
        )
        for step in int8.fallback:
            _line("fallback", step.in_words())
    if forecast is not None:
        fused, worst = forecast.fused, forecast.worst
        _line(
            "forecast",
            f"cosine {worst.cosine:.5f} to {fused.cosine:.5f}, agreement {worst.agreement:.1%} "
            f"to {fused.agreement:.1%} with float32 on {forecast.images} images",
        )
    for reason in dict.fromkeys(found.kept_float32.values()):
        names = [name for name, why in found.kept_float32.items() if why == reason]
        _line("in float32", f"{reason}: {len(names)} node(s), {', '.join(names)}")


def _show_graph(found: GraphSummary) -> None:
    opsets = ", ".join(
        str(version) if domain == "ai.onnx" else f"{domain} {version}"
        for domain, version in found.opsets.items()
    )
    _line("file", f"{_bytes(found.size_bytes)}, opset {opsets}, by {found.producer or 'unknown'}")
    for file in found.external:
        size = "MISSING" if file.size_bytes is None else _bytes(file.size_bytes)
        _line("external data", f"{file.location}: {size}")
    for label, ports in (("takes", found.inputs), ("answers", found.outputs)):
        for port in ports:
            _line(label, _port(port))
    stored = ", ".join(f"{_bytes(of.size_bytes)} of {name}" for name, of in found.constants.items())
    _line("parameters", f"{_count(found.parameters)} ({stored or 'no constants'})")
    _line("work", _work(found))
    if found.work.uncounted:
        missing = ", ".join(f"{count} {name}" for name, count in found.work.uncounted.items())
        _line("not counted", missing)


def _work(found: GraphSummary) -> str:
    work = found.work
    if work.problem or not work.macs:
        return work.problem or "no products found"
    least = "at least " if work.uncounted else ""
    shape = "x".join(map(str, work.input_shape))
    kinds = ", ".join(f"{macs / work.macs:.1%} {kind}" for kind, macs in work.by_type.items())
    return (
        f"{least}{work.macs / 1e9:.4g} GMACs an image at {shape or 'the input'} ({kinds}; "
        f"{work.attention_macs / work.macs:.1%} are attention products)"
    )


def _show_positions(found: PositionFigures) -> None:
    _line("positions", _grid(found.after))
    if found.before is None:
        return
    _line("resampled from", f"{_grid(found.before)}; {found.before_from}")
    _line(
        "kept",
        f"cosine {found.kept_cosine:.4f} at the same places of the image, "
        f"at the least {found.least_kept_cosine:.4f}",
    )


def _grid(found: GridFigures) -> str:
    prefix = f" after {found.prefix_tokens} prefix token(s)" if found.prefix_tokens else ""
    return (
        f"{found.name}: {found.rows}x{found.columns} of width {found.width}{prefix}, "
        f"neighbours' cosine {found.neighbour_cosine:.3f}"
    )


def _resolution(found: ModelDescription) -> str:
    span = found.resolution_range
    if span is None:
        return _sized(found.resolution)
    return (
        f"{_sized(span.low)} to {_sized(span.high)} in steps of {_sized(span.step)}, "
        f"best at {_sized(found.resolution)}"
    )


def _labels(labels: tuple[str, ...]) -> str:
    if not labels:
        return "none"
    shown = ", ".join(labels) if len(labels) <= 6 else f"{', '.join(labels[:4])}, ..., {labels[-1]}"
    return f"{len(labels)}: {shown}"


def _port(port: Port) -> str:
    return f"{port.name}: {port.type} {' x '.join(map(str, port.shape)) or 'scalar'}"


def _sized(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"


def _bytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"


def _count(number: int) -> str:
    return f"{number / 1e6:.2f} million" if number >= 1e6 else f"{number:,}"


# --- engines -----------------------------------------------------------------------------


def _show_engine(path: Path, as_json: bool) -> None:
    from vitdeploy.artifacts.engine import read_engine
    from vitdeploy.artifacts.files import to_json

    engine = read_engine(path)
    if as_json:
        click.echo(to_json(engine.manifest), nl=False)
        return
    click.echo(str(path))
    _show_manifest(engine)
    _show_description(engine.manifest.model)


def _show_manifest(engine: Engine) -> None:
    found = engine.manifest
    low, best, high = found.batch
    _line("engine", f"{found.backend} {found.backend_version}, {_bytes(engine.size_bytes)}")
    _line("targets", ", ".join(found.targets))
    _line("built on", f"{found.device} in {found.build_seconds:.1f} s")
    _line("batch", f"{low} to {high}, best {best}")
    _line("graph", f"digest {found.model_digest[:12]}")
    if found.settings:
        _line("settings", ", ".join(f"{key}={value}" for key, value in found.settings.items()))
    for entry in found.build_log:
        _line("log", entry)
