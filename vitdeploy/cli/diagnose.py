"""`vitdeploy diagnose`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vitdeploy.cli import console
from vitdeploy.cli.options import (
    PATH,
    json_option,
    model_options,
    requested_model,
    threads_option,
    workspace,
)

if TYPE_CHECKING:
    from vitdeploy.artifacts.onnx_model import ModelDescription
    from vitdeploy.benchmarks.diagnosis.diagnose import LostAnswers, Stage
    from vitdeploy.images import ImageSet
    from vitdeploy.workspace import Workspace

_SHOWN = 12
"""Layers shown around the first that departs; JSON has them all."""


@click.command()
@click.argument("file", type=PATH, required=False)
@click.option("--data", type=PATH, help="Images to look with (default: the recipe's).")
@click.option("--images", "count", type=click.IntRange(2, 256), default=8, show_default=True)
@model_options
@threads_option
@json_option
def command(file: Path | None, data: Path | None, count: int, as_json: bool, **rest: Any) -> None:
    """Find where FILE (an engine or a graph; default: the newest engine) loses its source's
    answers.

    Compares PyTorch, the fp32 graph, the typed and quantized graphs beside FILE
    and the engine, each with the one before it, and names the first that
    departs; then the first layer of it that does, and by how much. Exits with
    10 where one departs. Half-precision graphs are emulated.

    \b
      vitdeploy diagnose
      vitdeploy diagnose vit_int8.engine --data val/ --model my_vit.safetensors
      vitdeploy diagnose vit_fp16.onnx --data val/
    """
    from vitdeploy.benchmarks.diagnosis.diagnose import diagnose
    from vitdeploy.errors import GateFailedError, InputError

    sink = console.progress()
    place = workspace(sink.note)
    threads = rest.pop("threads")
    graphs, engine = _chain(file, place, sink)
    description = graphs[-1].description if engine is None else engine.manifest.model
    source = replace(description.source, labels=())  # nothing here goes by labels
    found = place.evaluation(data, source) or place.calibration(None, description.source)
    if found is None:
        raise InputError("no images were named", hint="give --data FOLDER")
    step = max(1, len(found) // count)
    images = found.take(range(0, len(found), step)[:count])
    stages = _source_stage(place, rest, description, images, sink)
    stages += _stages(graphs, engine, images, threads)
    if len(stages) < 2:
        raise InputError(
            "there is one form of the model only, and nothing to compare it with",
            hint="name its source with --model, or put the graphs it was made from beside it",
        )
    result = diagnose(stages, progress=sink)
    _show(as_json, result)
    if result.departing is not None:
        raise GateFailedError(
            result.in_words(),
            hint="keep that layer in float (`build-engine --keep`), or report it with --json",
        )


def _chain(file: Path | None, place: Workspace, sink: Any) -> tuple[list[Any], Any]:
    """The graphs, first made first, and the engine where one was named."""
    from vitdeploy.artifacts.onnx_model import read_onnx_model
    from vitdeploy.benchmarks.diagnosis.stages import graph_of, lineage

    if file is not None and file.suffix == ".onnx":
        return lineage(read_onnx_model(file), sink.note), None
    engine = place.engine(file)
    graph = graph_of(engine)
    if graph is None:
        sink.note(f"the graph that {engine.path.name} was built from is not beside it")
        return [], engine
    return lineage(graph, sink.note), engine


def _stages(graphs: list[Any], engine: Any, images: ImageSet, threads: int | None) -> list[Stage]:
    from vitdeploy import api
    from vitdeploy.benchmarks.diagnosis.stages import engine_stage, graph_stage

    stages = [graph_stage(graph, images, threads=threads) for graph in graphs]
    if engine is not None:
        session = api.load_engine(engine, threads=threads)
        graph = graphs[-1] if graphs else None
        stages.append(engine_stage(engine, session, graph, images, threads=threads))
    return stages


def _source_stage(
    place: Workspace,
    model: dict[str, Any],
    description: ModelDescription,
    images: ImageSet,
    sink: Any,
) -> list[Stage]:
    """PyTorch, where a model is named (or the recipe's is this one) and it can be loaded."""
    from vitdeploy import api
    from vitdeploy.benchmarks.diagnosis.diagnose import Stage
    from vitdeploy.benchmarks.diagnosis.stages import input_of
    from vitdeploy.errors import MissingDependencyError

    if model["model_name"] is None and not place.knows(description.source):
        sink.note("PyTorch is left out: name the source with --model to compare with it")
        return []
    try:
        request = place.model_request(requested_model(None, model))
        source = api.load_model(request)
        from vitdeploy.backends.torch_layers import observe_source
    except MissingDependencyError as error:
        sink.note(f"PyTorch is left out: {error}")
        return []
    api.require_same_source(source.description, description)
    sized = replace(source, output=description.output).at(description.resolution)
    inputs = input_of(replace(description, input_format="float32-nchw"), images)
    answers = sized.logits(inputs)
    return [Stage("PyTorch", None, answers, lambda: observe_source(sized, inputs))]


def _show(as_json: bool, found: LostAnswers) -> None:
    from vitdeploy.artifacts.files import plain

    if as_json:
        click.echo(json.dumps(plain(found), indent=2))
        return
    rows = [
        (
            f"{s.before} -> {s.after}",
            f"{s.error:.3g}",
            f"{s.bound:.3g}",
            f"{s.agreement:.1%}",
            "departs" if s.departs else "holds",
        )
        for s in found.stages
    ]
    console.table(("Stage", "Error, deviations", "Allowed", "Same answer", ""), rows)
    if found.layers:
        names = [layer.layer for layer in found.layers]
        middle = names.index(found.first.layer) if found.first else len(names)
        start = max(0, min(middle - _SHOWN // 2, len(names) - _SHOWN))
        shown = found.layers[start : start + _SHOWN]
        mark = found.layer_bound
        console.table(
            ("Layer", "Error, deviations", ""),
            [(x.layer, f"{x.error:.3g}", "departs" if x.error > mark else "") for x in shown],
        )
    click.echo(found.in_words())
