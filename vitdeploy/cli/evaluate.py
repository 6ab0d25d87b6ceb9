"""`vitdeploy evaluate`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from vitdeploy.cli import console
from vitdeploy.cli.options import (
    PATH,
    Finite,
    json_option,
    model_options,
    requested_model,
    threads_option,
    workspace,
)


@click.command()
@click.argument("engine", type=PATH, required=False)
@click.option("--data", type=PATH, help="Evaluation images, one sub-folder a class, or flat.")
@click.option("--reference", type=PATH, help="Stored outputs of the source: no PyTorch needed.")
@click.option("--save-reference", type=PATH, help="Store the source's outputs in this .npz file.")
@click.option(
    "--max-drop",
    type=Finite(min=0, min_open=True),
    default=0.5,
    show_default=True,
    help="Points of top-1 that may be lost, with 95 % confidence.",
)
@click.option("--skip-unreadable", is_flag=True, help="Leave broken images out, and list them.")
@model_options
@threads_option
@json_option
def command(
    engine: Path | None,
    data: Path | None,
    reference: Path | None,
    save_reference: Path | None,
    max_drop: float,
    skip_unreadable: bool,
    threads: int | None,
    as_json: bool,
    **model: Any,
) -> None:
    """Judge ENGINE (default: the newest) against its source on the same images.

    Exits with 0 where the accuracy holds, 10 where it does not, and 11 where
    there are too few images to tell. The result is also written beside the
    engine, for `vitdeploy report`.

    \b
      vitdeploy evaluate
      vitdeploy evaluate vit_int8.engine --data val/ --model my_vit.safetensors
      vitdeploy evaluate vit_int8.engine --data val/ --reference source.npz
      vitdeploy evaluate vit_int8.engine --data val/ --model adopted_fp32.onnx
    """
    from vitdeploy import api
    from vitdeploy.artifacts import reference as references
    from vitdeploy.artifacts.engine import COPY_FIRST, beside
    from vitdeploy.artifacts.files import to_json, write_text
    from vitdeploy.benchmarks.evaluation import reference_outputs, require_classes
    from vitdeploy.errors import InputError

    sink = console.progress()
    place = workspace(sink.note)
    loaded = place.engine(engine)
    description = loaded.manifest.model
    images = place.evaluation(data, description.source)
    if images is None:
        raise InputError("no evaluation images were named", hint="give --data FOLDER")
    # What would be refused in the end is refused before minutes go into the source.
    written = beside(loaded.path, loaded.path.with_suffix(".accuracy.json").name)
    if save_reference is not None:
        references.require_destination(save_reference)
    require_classes(description)
    api.load_engine(loaded, threads=threads)
    images, left_out = _readable(images, skip_unreadable, sink.note)
    api.require_unseen(loaded, images)
    if reference is not None:
        baseline = api.baseline_from_reference(references.load(reference), description, images)
    elif str(model["model_name"]).endswith(".onnx"):
        baseline = _of_adopted_graph(description, images, model, threads, sink)
    else:
        source = api.load_model(place.model_request(requested_model(None, model)))
        api.require_same_source(source.description, description)
        source = replace(source, output=description.output)
        baseline = api.baseline_from_source(
            source, description.resolution, images, threads=threads, progress=sink
        )
    if save_reference is not None:
        references.save(reference_outputs(baseline.logits, images, description), save_reference)
        sink.note(f"reference outputs: {save_reference}")
    result = api.evaluate(
        loaded,
        baseline,
        images,
        max_drop_points=max_drop,
        unreadable=left_out,
        threads=threads,
        progress=sink,
    )
    _show(as_json, result)
    write_text(written, to_json(result), remedy=COPY_FIRST)
    sink.note(f"written: {written}")
    _judge(result.comparison)


def _of_adopted_graph(
    description: Any, images: Any, model: dict[str, Any], threads: int | None, sink: Any
) -> Any:
    """The float32 graph stands for a source that is known by its graph alone."""
    from vitdeploy.adoption import baseline_from_graph
    from vitdeploy.artifacts.onnx_model import read_onnx_model

    graph = Path(model.pop("model_name"))
    given = [f"--{key.replace('_', '-')}" for key, value in model.items() if value]
    if given:
        raise click.UsageError(f"--model {graph.name} is a graph: leave {', '.join(given)} out")
    return baseline_from_graph(
        read_onnx_model(graph), description, images, threads=threads, progress=sink
    )


def _readable(images: Any, skip: bool, note: Callable[[str], None]) -> tuple[Any, tuple[str, ...]]:
    """Without --skip-unreadable the evaluation itself stops at the first broken image."""
    if not skip:
        return images, ()
    from vitdeploy.artifacts.strict import printable
    from vitdeploy.images import unreadable

    broken = unreadable(images)
    if not broken:
        return images, ()
    names = tuple(printable(str(images.items[i].path.relative_to(images.root))) for i in broken)
    note(f"left out, unreadable: {', '.join(names)}")
    kept = sorted(set(range(len(images))) - set(broken))
    return images.take(kept), names


def _show(as_json: bool, result: Any) -> None:
    import json

    from vitdeploy.artifacts.files import to_json

    c = result.comparison
    low, high = c.agreement_interval
    lines = [
        f"{result.engine_file} against {result.source_label} on {c.images} images",
        f"  agreement {c.agreement:.2%} (95 % interval {low:.2%} to {high:.2%})",
    ]
    if c.labelled:
        native = (
            ""
            if result.native_top1 is None
            else (f"; the source at its own resolution {result.native_top1:.2%}")
        )
        lines.append(f"  top-1 {c.engine_top1:.2%}, the source {c.source_top1:.2%}{native}")
        lines.append(
            f"  drop {c.drop_points:+.2f} points, at most {c.drop_upper_points:.2f} with 95 % "
            f"confidence ({c.lost} lost, {c.gained} gained)"
        )
    lines.append(f"  verdict: {c.verdict}")
    console.emit(as_json, json.loads(to_json(result)), "\n".join(lines))


def _judge(c: Any) -> None:
    """The verdict as an exit code."""
    from vitdeploy.errors import GateFailedError, InconclusiveError

    if c.verdict == "fail":
        raise GateFailedError(
            "the engine is worse than its source by more than allowed",
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
