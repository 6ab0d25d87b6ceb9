"""`vitdeploy build-engine`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import click

from vitdeploy.cli import console
from vitdeploy.cli.calibrate import show_findings
from vitdeploy.cli.next_step import evaluation_of
from vitdeploy.cli.options import (
    PATH,
    POINTS,
    SEED,
    json_option,
    output_option,
    workspace,
)
from vitdeploy.cli.runtime_options import runtime_options, with_runtime_options
from vitdeploy.cli.tensorrt_options import build_options, read_build_options


@click.command()
@click.argument("graph", type=PATH, required=False)
@click.option("--int8", is_flag=True, help="Linear layers in INT8, the rest in FP16 on GPUs.")
@click.option("--fp8", is_flag=True, help="Linear layers in FP8 (Ada, Hopper and later).")
@click.option("--fp16", is_flag=True, help="All (with --int8: the rest) in FP16, for GPUs.")
@click.option("--fp32", is_flag=True, help="As exported (the default); with --int8: the rest.")
@click.option(
    "--calib",
    type=PATH,
    help="Calibration images: a folder, a set that `vitdeploy calibrate` drew, or 'demo'.",
)
@click.option("--calib-images", type=click.IntRange(1, 10_000_000), default=512, show_default=True)
@click.option(
    "--range",
    "method",
    type=click.Choice(["auto", "mse", "entropy", "percentile", "absmax"]),
    default="auto",
    show_default=True,
    help="How the ranges of activations are chosen; auto tries all on every layer.",
)
@click.option("--keep", multiple=True, metavar="NODE", help="Leave this node in float.")
@click.option(
    "--attention/--no-attention",
    default=True,
    show_default=True,
    help="Quantize attention products where the target computes them fused.",
)
@click.option(
    "--max-drop",
    type=POINTS,
    metavar="POINTS",
    help="Take sensitive layers back to float until the accuracy on --eval drops by no more.",
)
@click.option("--eval", "evaluation", type=PATH, help="Images for --max-drop, labelled or not.")
@click.option("--force", is_flag=True, help="Write an INT8 graph that has lost its answers.")
@click.option("--seed", type=SEED, default=0, show_default=True, help="Draw of calibration images.")
@click.option(
    "--backend",
    default="auto",
    show_default=True,
    help="openvino, onnxruntime, tensorrt or tensorrt-rtx.",
)
@click.option("--target", help="cpu, sm89, jetson-orin, or several: sm86,sm89,sm120.")
@build_options
@runtime_options
@output_option
@json_option
def command(
    graph: Path | None,
    output: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Build an engine from GRAPH (default: the newest graph of the recipe's model).

    On a CPU that is OpenVINO where installed, else ONNX Runtime; with an NVIDIA
    target TensorRT or TensorRT-RTX. It says which it took and why.

    \b
      vitdeploy build-engine --int8
      vitdeploy build-engine model.onnx --int8 --calib train/ --backend onnxruntime
      vitdeploy build-engine model.onnx --fp16 --target sm86,sm89,sm120
    """
    from vitdeploy import api
    from vitdeploy.artifacts.files import require_writable
    from vitdeploy.target import parse_targets

    numbers = _numbers(options)
    sink = console.progress()
    place = workspace(sink.note)
    folder = output or place.output
    require_writable(folder / "engine")
    targets = None if options["target"] is None else parse_targets(options["target"])
    how = with_runtime_options(read_build_options(options, targets), options)
    found = place.graph(graph, precision="fp32")
    backend, why = api.choose_backend(options["backend"], targets)
    sink.note(f"backend: {backend.name} ({why})")
    model = found or _exported(place, folder, sink)
    on_gpu = backend.name.startswith("tensorrt")
    half = options["fp16"] or (numbers is not None and on_gpu and not options["fp32"])
    api.check_options(backend, how, _precision(model, numbers, half))
    gates = _gates(options, place, model)
    request = api.PrecisionRequest(
        precision=numbers or ("fp16" if half else "fp32"),
        half=half,
        calibration=_calibration(options, numbers, place, model, as_json),
        quantization=_quantization(options, numbers, backend, targets),
        gates=gates,
        cache_folder=folder / "statistics",
    )
    typed = api.with_precision(model, request, folder, progress=sink)
    engine = api.build_engine(typed, backend, folder, how, progress=sink)
    following = evaluation_of(
        engine,
        place,
        named=bool(graph or output),
        graph=model.path,
        images=options["evaluation"],
    )
    _show(as_json, engine, typed, following)


def _numbers(options: Any) -> Literal["int8", "fp8"] | None:
    """What Linear layers compute in, int8 or fp8, where one was asked for.

    Raises click.UsageError where options exclude each other, or miss what they go with.
    """
    for one, other in (("fp16", "fp32"), ("int8", "fp8")):
        if options[one] and options[other]:
            raise click.UsageError(f"--{one} and --{other} exclude each other")
    numbers = "int8" if options["int8"] else "fp8" if options["fp8"] else None
    given = {
        "--calib": options["calib"] is not None and not options["fp16"],
        "--range": options["method"] != "auto",
        "--keep": bool(options["keep"]),
        "--no-attention": not options["attention"],
        "--max-drop": options["max_drop"] is not None,
        "--force": options["force"],
    }
    for option, is_given in given.items():
        if is_given and numbers is None:
            raise click.UsageError(f"{option} goes with --int8 or --fp8, and neither was given")
    if options["evaluation"] is not None and options["max_drop"] is None:
        raise click.UsageError("--eval goes with --max-drop")
    return numbers


def _precision(model: Any, numbers: str | None, half: bool) -> str:
    """What the graph that is built will be in; one that is typed or quantized stays as it is."""
    if model.description.precision != "fp32":
        return model.description.precision
    rest = "fp16" if half else "fp32"
    return rest if numbers is None else f"{numbers}-{rest}"


def _calibration(options: Any, numbers: str | None, place: Any, model: Any, as_json: bool) -> Any:
    """The images that ranges come from, or that half precision is judged on."""
    from vitdeploy.workspace import Draw

    source = model.description.source
    if numbers is None or model.description.precision != "fp32":
        wanted = numbers or options["fp16"]
        return place.calibration(options["calib"], source) if wanted else None
    draw = Draw(options["calib_images"], options["seed"], options["evaluation"])
    drawn = place.calibration_set(options["calib"], source, draw, console.progress())
    if drawn is not None:
        show_findings(drawn, as_json=as_json)
    return drawn


def _quantization(
    options: Any, numbers: Literal["int8", "fp8"] | None, backend: Any, targets: Any
) -> Any:
    from vitdeploy import api
    from vitdeploy.calibration.quantize import QuantizationOptions
    from vitdeploy.target import CPU

    return QuantizationOptions(
        method=options["method"],
        numbers=numbers or "int8",
        keep=options["keep"],
        attention=options["attention"],
        targets=api.targets_of(backend, targets) if numbers else (CPU,),
        runtime=backend.name,
    )


def _gates(options: Any, place: Any, model: Any) -> Any:
    """What the graph must hold; looked into before anything is drawn or run."""
    from vitdeploy.calibration.quantize import Gates
    from vitdeploy.errors import InputError
    from vitdeploy.images import require_readable

    if options["max_drop"] is None:
        return Gates(force=options["force"])
    found = model.description
    if found.precision != "fp32":
        raise InputError(
            f"{model.path.name} is {found.precision} already, and --max-drop chooses layers "
            "while a graph is quantized",
            hint="give the fp32 graph, or judge the engine with `vitdeploy evaluate`",
        )
    images = place.evaluation(options["evaluation"], found.source)
    if images is None:
        raise InputError(
            "--max-drop needs images to see the drop on",
            hint="give --eval FOLDER: images that are not calibrated with",
        )
    require_readable(images, console.progress())
    return Gates(max_drop_points=options["max_drop"], evaluation=images, force=options["force"])


def _show(as_json: bool, engine: Any, typed: Any, following: str) -> None:
    manifest = engine.manifest
    record = {
        "path": str(engine.path),
        "graph": str(typed.path),
        "backend": manifest.backend,
        "backend_version": manifest.backend_version,
        "precision": manifest.model.precision,
        "targets": list(manifest.targets),
        "size_bytes": engine.size_bytes,
        "build_seconds": manifest.build_seconds,
    }
    quantization = manifest.model.quantization
    lines = [
        f"{engine.path}",
        f"  {manifest.model.precision} for {', '.join(manifest.targets)} by {manifest.backend} "
        f"{manifest.backend_version}: {engine.size_bytes / 1e6:.1f} MB "
        f"in {manifest.build_seconds:.1f} s",
    ]
    if quantization is not None:
        from vitdeploy.graph.inspection import read_graph

        numbers = manifest.model.precision.partition("-")[0].upper()
        share = read_graph(typed.path).share_of(quantization.quantized)
        lines.append(
            f"  {len(quantization.quantized)} nodes in {numbers}{console.of_the_work(share)}, "
            f"{len(quantization.folded)} outliers folded away, ranges by "
            f"{quantization.method} from {quantization.images} images"
        )
    lines.append(f"  {following}")
    console.emit(as_json, record, "\n".join(lines))


def _exported(place: Any, folder: Path, sink: Any) -> Any:
    """No graph yet: export the recipe's model at its own resolution first, and say so."""
    from vitdeploy import api

    request = place.model_request(None)
    sink.note(f"{folder} holds no graph of this model: exporting it at its own resolution")
    source = api.load_model(request)
    from vitdeploy.export.export import ExportOptions

    images = place.calibration(None, source.description)
    return api.export(source, ExportOptions(), folder, images=images, progress=sink)
