"""`vitdeploy package`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vitdeploy.cli import console
from vitdeploy.cli.options import (
    PATH,
    POINTS,
    SEED,
    json_option,
    model_options,
    requested_model,
    threads_option,
    workspace,
)

if TYPE_CHECKING:
    from vitdeploy.artifacts.onnx_model import ModelDescription, OnnxModel
    from vitdeploy.artifacts.reference import ReferenceOutputs
    from vitdeploy.artifacts.source import SourceDescription
    from vitdeploy.images import ImageSet
    from vitdeploy.workspace import Workspace

_PRECISIONS = ("fp16", "int8", "fp8")


@click.command()
@click.argument("graphs", type=PATH, nargs=-1)
@click.option(
    "--format", "kind", type=click.Choice(["kit"]), default="kit", show_default=True, help="What."
)
@click.option("--fp16", is_flag=True, help="Also the graph in FP16, for the device's GPU.")
@click.option("--int8", is_flag=True, help="Also Linear layers in INT8, the rest in FP16.")
@click.option("--fp8", is_flag=True, help="Also Linear layers in FP8, the rest in FP16 (Thor).")
@click.option("--calib", type=PATH, help="Calibration images of --int8 and --fp8.")
@click.option("--calib-images", type=click.IntRange(1, 10_000_000), default=512, show_default=True)
@click.option(
    "--target", default="jetson-orin", show_default=True, help="What --int8 and --fp8 are for."
)
@click.option("--data", type=PATH, help="Labelled or unlabelled images to take the subset from.")
@click.option(
    "--images", "count", type=click.IntRange(1, 1_000_000), default=500, show_default=True
)
@click.option("--seed", type=SEED, default=0, show_default=True, help="Draw of the subset.")
@click.option("--reference", type=PATH, help="Stored outputs of the source: no PyTorch needed.")
@click.option(
    "--max-drop",
    type=POINTS,
    default=0.5,
    show_default=True,
    help="Points of accuracy that an engine may lose on the device.",
)
@click.option(
    "--wheel", "wheels", type=PATH, multiple=True, help="A wheel that the device cannot download."
)
@click.option("--constraints", type=PATH, help="Versions for the device's pip, as in constraints/.")
@click.option(
    "-o",
    "--out",
    "output",
    type=PATH,
    default="kit.zip",
    show_default=True,
    help="A .zip or folder.",
)
@model_options
@threads_option
@json_option
def command(graphs: tuple[Path, ...], output: Path, as_json: bool, **options: Any) -> None:
    """Pack GRAPHS (default: the newest) for a device that must build its engines itself.

    A kit holds the graphs, a subset of the evaluation images, the source's
    answers on them, and one command that builds, judges and times engines on
    the device without PyTorch, and leaves a report to bring back.

    \b
      vitdeploy package fp32.onnx --fp16 --int8 --calib train/ --data val/ --model my.safetensors
      vitdeploy package fp16.onnx int8.onnx --data val/ --reference source.npz -o kit.zip
    """
    from vitdeploy.artifacts.files import require_file
    from vitdeploy.errors import InputError, counted

    if options["calib"] is not None and not (options["int8"] or options["fp8"]):
        raise click.UsageError("--calib goes with --int8 or --fp8, and neither was given")
    sink = console.progress()
    place = workspace(sink.note)
    for given in (*options["wheels"], *filter(None, [options["constraints"]])):
        require_file(given, what="file for the kit")
    wanted = "fp32" if any(options[name] for name in _PRECISIONS) else None
    found = [place.graph(path, precision=wanted) for path in graphs or (None,)]
    models = [model for model in found if model is not None]
    if not models:
        raise InputError("there is no graph to pack", hint="run `vitdeploy export` first")

    from vitdeploy.kit.packing import KitContent, pack, require_destination, require_one_model

    require_destination(output)
    require_one_model(models)
    # What would be refused in the end is refused before graphs are quantized.
    images = _images(models[0].description, place, options, sink)
    source = _answers(models[0].description, images, place, options)
    models += _typed(models, place, options, sink)
    unnamed = [] if graphs else _not_packed(models, place)
    if unnamed:
        sink.note(
            f"not in the kit: {', '.join(unnamed)} (of graphs that are not named the newest is "
            "taken; name all that are to be packed)"
        )
    content = KitContent(
        graphs=models,
        reference=source(sink),
        images=images,
        max_drop_points=options["max_drop"],
        wheels=options["wheels"],
        constraints=options["constraints"],
    )
    kit = pack(content, output)
    size = output.stat().st_size if output.is_file() else _size(output)
    record = {
        "path": str(output),
        "size_bytes": size,
        "graphs": list(kit.graphs),
        "not_packed": unnamed,
    }
    text = (
        f"{output}\n  {counted(len(kit.graphs), 'graph')} of {kit.model}, "
        f"{counted(len(kit.images), 'image')} with the source's answers: {size / 1e6:.1f} MB\n"
        "  on the device: unpack it, then sh run.sh"
    )
    console.emit(as_json, {**record, "images": len(kit.images)}, text)


def _images(
    model: ModelDescription, place: Workspace, options: dict[str, Any], sink: Any
) -> ImageSet:
    """The subset of the evaluation images, each of which was read."""
    from vitdeploy.errors import InputError
    from vitdeploy.images import require_readable
    from vitdeploy.kit.packing import subset

    images = place.evaluation(options["data"], _labels_apart(model))
    if images is None:
        raise InputError("no evaluation images were named", hint="give --data FOLDER")
    images = subset(images, options["count"], options["seed"])
    require_readable(images, sink)
    return images


def _not_packed(models: list[OnnxModel], place: Workspace) -> list[str]:
    """Other graphs of the same model where results lie: one may be taken to be in the kit."""
    from vitdeploy.artifacts.lookup import made_from

    digest = models[0].description.source.weights_digest
    packed = {model.path.name for model in models}
    found = made_from(place.output, "onnx", lambda graph: graph.source.weights_digest == digest)
    return [path.name for path in found if path.name not in packed]


def _typed(
    models: list[OnnxModel], place: Workspace, options: dict[str, Any], sink: Any
) -> list[OnnxModel]:
    """The float32 graphs in the precisions asked for, written where results go.

    Raises InputError where a precision was asked for and no graph is float32,
    and for FP8 and FP16 on a target that has none.
    """
    from vitdeploy.errors import InputError
    from vitdeploy.target import parse_targets

    asked = [name for name in _PRECISIONS if options[name]]
    plain = [model for model in models if model.description.precision == "fp32"]
    targets = parse_targets(options["target"])
    if not asked:
        return []
    if not plain:
        raise InputError(
            f"--{asked[0]} needs a float32 graph, and none was given",
            hint="name the graph that `vitdeploy export` wrote, or pack the others as they are",
        )
    on_cpu = targets[0].is_cpu
    if "fp16" in asked and on_cpu:
        raise InputError(
            "--fp16 is for GPUs, and --target is cpu", hint="leave --fp16 out, or name the GPU"
        )
    if {"int8", "fp8"} & {*asked}:
        names = ", ".join(target.name for target in targets)
        sink.note(f"quantized for {names} (--target)")
    if "fp8" in asked and not all(target.has_fp8 for target in targets):
        raise InputError(
            f"{options['target']} has no FP8", hint="use --int8, or --target jetson-thor"
        )

    from vitdeploy import api
    from vitdeploy.calibration.quantize import QuantizationOptions
    from vitdeploy.workspace import Draw

    typed = []
    for model in plain:
        source = model.description.source
        draw = Draw(count=options["calib_images"], seed=options["seed"], evaluation=options["data"])
        images = place.calibration_set(options["calib"], source, draw, sink)
        for name in asked:
            request = api.PrecisionRequest(
                precision=name,  # pyright: ignore[reportArgumentType]
                half=not on_cpu,
                calibration=images,
                quantization=QuantizationOptions(
                    targets=targets, runtime="" if on_cpu else "tensorrt"
                ),
                cache_folder=place.output / "statistics",
            )
            typed.append(api.with_precision(model, request, place.output, progress=sink))
    return typed


def _labels_apart(model: ModelDescription) -> SourceDescription:
    """The source; without its labels where nothing is judged by them, so any folder will do."""
    from vitdeploy.benchmarks.accuracy.kinds import kind_of

    judged = kind_of(model.source.task, model.output) in ("classes", "multilabel")
    return model.source if judged else replace(model.source, labels=())


def _answers(
    model: ModelDescription, images: ImageSet, place: Workspace, options: dict[str, Any]
) -> Callable[[Any], ReferenceOutputs]:
    """What gives the source's answers, stored ones or PyTorch's, once it is clear that it will.

    Raises InputError where stored answers are not of this model and these
    images, and where files of the source named are not there.
    """
    from vitdeploy import api
    from vitdeploy.artifacts import reference as references
    from vitdeploy.benchmarks.accuracy.evaluation import reference_outputs
    from vitdeploy.cli.options import MODEL_KEYS

    if options["reference"] is not None:
        stored = references.load(options["reference"])
        api.baseline_from_reference(stored, model, images)
        return lambda sink: stored
    request = place.model_request(requested_model(None, {key: options[key] for key in MODEL_KEYS}))

    def computed(sink: Any) -> ReferenceOutputs:
        source = api.load_model(request)
        api.require_same_source(source.description, model)
        source = replace(source, output=model.output)
        baseline = api.baseline_from_source(
            source, model.resolution, images, threads=options["threads"], progress=sink
        )
        return reference_outputs(baseline.logits, images, model)

    return computed


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
