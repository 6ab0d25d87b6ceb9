"""`vitdeploy evaluate`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vitdeploy.cli import console
from vitdeploy.cli.options import (
    PATH,
    POINTS,
    json_option,
    model_options,
    requested_model,
    threads_option,
    workspace,
)
from vitdeploy.cli.sizes import at_size, size_option

if TYPE_CHECKING:
    from vitdeploy.api import Baseline
    from vitdeploy.artifacts.engine import Engine
    from vitdeploy.artifacts.onnx_model import ModelDescription, OnnxModel
    from vitdeploy.benchmarks.accuracy.evaluation import EvaluationResult
    from vitdeploy.benchmarks.accuracy.judging import AnyComparison
    from vitdeploy.benchmarks.report.model import AccuracyForecast
    from vitdeploy.images import ImageSet
    from vitdeploy.models.request import ModelRequest
    from vitdeploy.workspace import Workspace


@click.command()
@click.argument("engines", metavar="[ENGINES]...", type=PATH, nargs=-1)
@click.option(
    "--data",
    type=PATH,
    help="Evaluation images: a folder (one sub-folder a class, or flat), a .csv of path,label, "
    "or a Hugging Face dataset on disk.",
)
@click.option(
    "--class-map",
    type=PATH,
    help="Labels of a flat folder: LOC_val_solution.csv, or lines of file and label.",
)
@click.option(
    "--label-order",
    type=click.Choice(["natural", "string"]),
    default="natural",
    show_default=True,
    help="Of classes, where the model has no names for its own: 1, 2, 10 or 1, 10, 2.",
)
@click.option("--reference", type=PATH, help="Stored outputs of the source: no PyTorch needed.")
@click.option("--save-reference", type=PATH, help="Store the source's outputs in this .npz file.")
@click.option(
    "--max-drop",
    type=POINTS,
    default=0.5,
    show_default=True,
    help="Points of top-1 (or mAP) that may be lost, with 95 % confidence.",
)
@size_option
@click.option("--skip-unreadable", is_flag=True, help="Leave broken images out, and list them.")
@model_options
@threads_option
@json_option
def command(engines: tuple[Path, ...], as_json: bool, **options: Any) -> None:
    """Judge ENGINES (default: the newest) against their source on the same images.

    Classes by top-1, multi-label heads by mAP, features by cosine and nearest
    neighbours, numbers by R2. Exits with 0 where the accuracy holds, 10 where
    it does not, and 11 where there are too few images to tell; of several
    engines the worst counts. The result is also written beside each engine, for
    `vitdeploy report`.

    An .onnx graph in place of an engine is forecast: what its engine will answer
    on a GPU, as a span between two emulations.

    \b
      vitdeploy evaluate
      vitdeploy evaluate vit_int8.engine --data val/ --model my_vit.safetensors
      vitdeploy evaluate vit_int8.engine --data val/ --class-map LOC_val_solution.csv
      vitdeploy evaluate vit_int8.engine --data val.csv --reference source.npz
      vitdeploy evaluate vit_fp16.onnx --data val/ --model my_vit.safetensors
    """
    from vitdeploy.artifacts import reference as references

    if len(engines) > 1 and (as_json or options["save_reference"] is not None):
        raise click.UsageError("--json and --save-reference are for one engine at a time")
    sink = console.progress()
    place = workspace(sink.note)
    if options["save_reference"] is not None:
        references.require_destination(options["save_reference"])
    models = [_opened(path, place, options, sink) for path in engines or (None,)]
    if len(models) == 1:
        _evaluate_one(models[0], place, options, sink, as_json)
    else:
        _evaluate_each(models, place, options, sink)


def _opened(
    path: Path | None, place: Workspace, options: dict[str, Any], sink: Any
) -> Engine | OnnxModel:
    from vitdeploy.artifacts.onnx_model import read_onnx_model

    if path is not None and path.suffix == ".onnx":
        return at_size(read_onnx_model(path), options["size"], sink.note)
    return at_size(place.engine(path), options["size"], sink.note)


def _evaluate_one(
    model: Engine | OnnxModel, place: Workspace, options: dict[str, Any], sink: Any, as_json: bool
) -> None:
    from vitdeploy.artifacts.engine import Engine

    if isinstance(model, Engine):
        _measure(model, place, options, sink, as_json)
    else:
        _forecast(model, place, options, sink, as_json)


def _evaluate_each(
    models: Sequence[Engine | OnnxModel], place: Workspace, options: dict[str, Any], sink: Any
) -> None:
    """All of them, whatever the verdicts on the first; then the worst verdict is raised."""
    from vitdeploy.errors import GateFailedError, InconclusiveError

    bad: list[tuple[str, GateFailedError | InconclusiveError]] = []
    for model in models:
        try:
            _evaluate_one(model, place, options, sink, as_json=False)
        except (GateFailedError, InconclusiveError) as verdict:
            sink.note(f"{verdict.label}: {model.path.name}: {verdict}")
            bad.append((model.path.name, verdict))
    if bad:
        name, worst = min(bad, key=lambda pair: isinstance(pair[1], InconclusiveError))
        raise type(worst)(
            f"{len(bad)} of {len(models)} did not pass; {name}: {worst}", hint=worst.hint
        )


def _measure(
    loaded: Engine, place: Workspace, options: dict[str, Any], sink: Any, as_json: bool
) -> None:
    from vitdeploy import api
    from vitdeploy.artifacts.engine import beside
    from vitdeploy.benchmarks.findings import write_finding
    from vitdeploy.cli.report import ACCURACY_SUFFIX

    description = loaded.manifest.model
    request = _request(place, options)
    images = _images(place, description, options)
    # What would be refused in the end is refused before minutes go into the source.
    written = beside(loaded.path, loaded.path.with_suffix(ACCURACY_SUFFIX).name)
    session = api.load_engine(loaded, threads=options["threads"], alone=False)
    images, left_out = _readable(images, options["skip_unreadable"], sink)
    api.require_unseen(loaded, images)
    baseline = _baseline(description, images, request, options, sink)
    forecast = _forecast_beside(loaded, images, sink.note)
    found = api.evaluate(
        loaded,
        baseline,
        images,
        api.Criterion(options["max_drop"], options["task"]),
        session=session,
        progress=sink,
    )
    result = replace(found, unreadable=left_out, forecast=forecast)
    _show(as_json, result)
    write_finding(written, result, sink.note)
    _judge(result.comparison)


def _forecast(
    graph: OnnxModel, place: Workspace, options: dict[str, Any], sink: Any, as_json: bool
) -> None:
    from vitdeploy import api
    from vitdeploy.artifacts.engine import beside
    from vitdeploy.benchmarks.findings import write_finding
    from vitdeploy.cli.report import FORECAST_SUFFIX

    request = _request(place, options)
    images = _images(place, graph.description, options)
    written = beside(graph.path, graph.path.with_suffix(FORECAST_SUFFIX).name)
    images, _ = _readable(images, options["skip_unreadable"], sink)
    baseline = _baseline(graph.description, images, request, options, sink)
    found = api.forecast(
        graph,
        baseline.logits,
        images,
        max_drop_points=options["max_drop"],
        task=options["task"],
        threads=options["threads"],
        progress=sink,
    )
    _show_forecast(as_json, found, baseline)
    write_finding(written, found, sink.note)
    _judge(found.fused)


def _images(place: Workspace, description: ModelDescription, options: dict[str, Any]) -> ImageSet:
    from vitdeploy.benchmarks.accuracy.kinds import kind_of
    from vitdeploy.errors import InputError
    from vitdeploy.workspace import Labelling

    source = description.source
    kind = kind_of(source.task, description.output, asked=options["task"])
    if kind in ("features", "regression"):
        source = replace(source, labels=())  # nothing is judged by them, so any folder will do
    labelling = Labelling(options["class_map"], options["label_order"])
    images = place.evaluation(options["data"], source, labelling)
    if images is None:
        raise InputError("no evaluation images were named", hint="give --data FOLDER")
    return images


def _request(place: Workspace, options: dict[str, Any]) -> ModelRequest | None:
    """The source that PyTorch is to load; None where stored answers or a graph stand for it.

    Looked at before images are read: what is not there is said at once.
    """
    from vitdeploy.artifacts.files import require_file
    from vitdeploy.cli.options import MODEL_KEYS

    if options["reference"] is not None:
        require_file(options["reference"], what="reference file")
        return None
    model = {key: options[key] for key in MODEL_KEYS}
    if str(model["model_name"]).endswith(".onnx"):
        return None
    if model["model_name"] is None:
        model["task"] = None  # how to judge, not which model
    return place.model_request(requested_model(None, model))


def _baseline(
    description: ModelDescription,
    images: ImageSet,
    request: ModelRequest | None,
    options: dict[str, Any],
    sink: Any,
) -> Baseline:
    """The source's answers: stored ones, those of an adopted graph, or of PyTorch itself."""
    from vitdeploy import api
    from vitdeploy.artifacts import reference as references
    from vitdeploy.benchmarks.accuracy.evaluation import reference_outputs
    from vitdeploy.cli.options import MODEL_KEYS

    stored, threads = options["reference"], options["threads"]
    if stored is not None:
        baseline = api.baseline_from_reference(references.load(stored), description, images)
    elif request is None:
        model = {key: options[key] for key in MODEL_KEYS}
        baseline = _of_adopted_graph(description, images, model, threads, sink)
    else:
        source = api.load_model(request)
        api.require_same_source(source.description, description)
        source = replace(source, output=description.output)
        baseline = api.baseline_from_source(
            source, description.resolution, images, threads=threads, progress=sink
        )
    destination = options["save_reference"]
    if destination is not None:
        references.save(reference_outputs(baseline.logits, images, description), destination)
        sink.note(f"reference outputs: {destination}")
    return baseline


def _of_adopted_graph(
    description: Any, images: Any, model: dict[str, Any], threads: int | None, sink: Any
) -> Any:
    """The float32 graph stands for a source that is known by its graph alone."""
    from vitdeploy.adoption import baseline_from_graph
    from vitdeploy.artifacts.onnx_model import read_onnx_model

    graph = Path(model.pop("model_name"))
    model.pop("task")
    given = [f"--{key.replace('_', '-')}" for key, value in model.items() if value]
    if given:
        raise click.UsageError(f"--model {graph.name} is a graph: leave {', '.join(given)} out")
    return baseline_from_graph(
        read_onnx_model(graph), description, images, threads=threads, progress=sink
    )


def _forecast_beside(
    engine: Engine, images: ImageSet, note: Callable[[str], None]
) -> AccuracyForecast | None:
    """What was forecast of the engine's graph on these very images; None where nothing was."""
    from vitdeploy.benchmarks.accuracy.evaluation import digest_of
    from vitdeploy.cli.report import forecasts_beside

    beside = forecasts_beside([engine], note, digest_of(images))
    return beside.get(engine.manifest.model_digest)


def _readable(images: ImageSet, skip: bool, sink: Any) -> tuple[ImageSet, tuple[str, ...]]:
    """The images that can be read and the names of the others, if those may be left out.

    All are read once before anything runs: one broken image at the end would cost the whole run.
    """
    from vitdeploy.errors import InputError
    from vitdeploy.images import require_readable, unreadable

    if not skip:
        try:
            require_readable(images, sink)
        except InputError as error:
            more = f"{error.hint}; --skip-unreadable leaves such images out and lists them"
            raise InputError(str(error), hint=more) from error
        return images, ()
    broken = unreadable(images, sink)
    if not broken:
        return images, ()
    if len(broken) == len(images):
        raise InputError(
            f"none of the {len(images)} images can be read", hint="give the folder of other images"
        )
    names = tuple(images.name(i) for i in broken)
    sink.note(f"left out, unreadable: {', '.join(names)}")
    kept = sorted(set(range(len(images))) - set(broken))
    return images.take(kept), names


def _show(as_json: bool, result: EvaluationResult) -> None:
    import json

    from vitdeploy.artifacts.files import to_json
    from vitdeploy.errors import counted

    c = result.comparison
    height, width = result.size()
    lines = [
        f"{result.engine_file} against {result.source_label} on {c.images} images at "
        f"{height}x{width}"
    ]
    lines += [f"  {name}: {value}" for name, value in c.facts()]
    if c.kind == "classes":
        names = result.model.source.labels or [str(i) for i in range(len(c.classes))]
        lines += [
            f"  class {names[k.index]}: {k.engine_right} of {k.images} right, the source "
            f"{k.source_right}"
            for k in c.most_changed()
        ]
    if result.native_top1 is not None:
        lines.append(f"  the source at its own resolution: {result.native_top1:.2%}")
    if result.unreadable:
        lines.append(f"  left out, unreadable: {counted(len(result.unreadable), 'image')}")
    if result.forecast is not None:
        lines.append(f"  {result.forecast.in_words()}")
    lines.append(f"  verdict: {c.verdict}")
    console.emit(as_json, json.loads(to_json(result)), "\n".join(lines))


def _show_forecast(as_json: bool, found: AccuracyForecast, baseline: Baseline) -> None:
    import json

    from vitdeploy.artifacts.files import to_json

    at = "" if found.resolution is None else " at {}x{}".format(*found.resolution)
    lines = [
        f"{found.graph_file} ({found.precision}) against {baseline.label} on "
        f"{found.fused.images} images{at}",
        f"  {found.in_words()}",
    ]
    for name, comparison in (("fused", found.fused), ("worst", found.worst)):
        lines += [f"  {name}: {what}: {value}" for what, value in comparison.facts()]
    lines.append("  a forecast by emulation, no measurement: evaluate the engine where it runs")
    console.emit(as_json, json.loads(to_json(found)), "\n".join(lines))


def _judge(c: AnyComparison) -> None:
    """The verdict as an exit code."""
    from vitdeploy.errors import GateFailedError, InconclusiveError

    if c.verdict == "fail":
        raise GateFailedError(
            f"the engine is worse than its source by more than allowed: it {c.in_words()}",
            hint="keep layers in float with `build-engine --keep`, try another --range, "
            "or allow more with --max-drop",
        )
    if c.verdict == "inconclusive":
        needed = (
            f"about {c.images_needed} images would do, or allow more with --max-drop"
            if c.images_needed
            else ("more images will not help if the drop stays as it is")
        )
        raise InconclusiveError(
            f"{c.images} images cannot tell whether the accuracy holds", hint=needed
        )
