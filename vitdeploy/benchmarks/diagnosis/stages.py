"""The forms a model takes on its way to an engine, as `diagnose` compares them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vitdeploy.artifacts.engine import Engine
from vitdeploy.artifacts.onnx_model import ModelDescription, OnnxModel, read_onnx_model
from vitdeploy.backends.base import Session
from vitdeploy.backends.onnxruntime_ import GraphSession
from vitdeploy.benchmarks.diagnosis.diagnose import Stage
from vitdeploy.benchmarks.diagnosis.layers import observe_graph
from vitdeploy.errors import InputError
from vitdeploy.graph import files
from vitdeploy.graph.emulation import emulated
from vitdeploy.images import ImageSet, batches

_TITLES = {"fp32": "ONNX fp32", "int8-fp32": "Q/DQ graph", "fp8-fp32": "Q/DQ graph"}


def input_of(model: ModelDescription, images: ImageSet) -> NDArray:
    """One batch of all images, as a graph with this description takes it."""
    as_bytes = model.input_format == "uint8-nhwc"
    preprocessing, count = model.source.preprocessing, len(images)
    return next(batches(images, preprocessing, model.resolution, count, as_bytes=as_bytes))


def lineage(model: OnnxModel, note: Callable[[str], None]) -> list[OnnxModel]:
    """The graphs that `model` was made from, and itself, the first made first.

    They are looked for in its folder; where one is missing, `note` hears of it.
    """
    found = [model]
    wanted = model.description.parent_digest
    candidates = [path for path in model.path.parent.glob("*.onnx") if path != model.path]
    known: dict[str, OnnxModel] = {}
    while wanted and model.description.precision != "fp32":
        for path in candidates if not known else ():
            try:
                other = read_onnx_model(path)
            except InputError as error:
                note(f"left out: {error}")
                continue
            known[other.digest] = other
        parent = known.get(wanted)
        if parent is None:
            note(f"the graph that {found[0].path.name} was made from is not beside it")
            break
        found.insert(0, parent)
        wanted = parent.description.parent_digest
        if parent.description.precision == "fp32":
            break
    return found


def graph_of(engine: Engine) -> OnnxModel | None:
    """The graph an engine was built from, where it lies beside it."""
    for path in sorted(engine.path.parent.glob("*.onnx")):
        try:
            found = read_onnx_model(path)
        except InputError:
            continue
        if found.digest == engine.manifest.model_digest:
            return found
    return None


def graph_stage(model: OnnxModel, images: ImageSet, *, threads: int | None = None) -> Stage:
    """A graph as it is written; a half-precision one through its fused emulation."""
    description = model.description
    graph = files.load(model)
    if description.precision.endswith(("fp16", "bf16")):
        graph = emulated(graph, "fused")
    inputs = input_of(description, images)
    session = GraphSession(files.runnable(graph), optimize=False, threads=threads)
    title = _TITLES.get(description.precision, f"typed graph {description.precision} (emulated)")
    return Stage(
        f"{title} {model.path.name}",
        description.precision,
        session.run(inputs),
        partial(observe_graph, graph, inputs, threads=threads),
    )


def engine_stage(
    engine: Engine,
    session: Session,
    graph: OnnxModel | None,
    images: ImageSet,
    *,
    threads: int | None = None,
) -> Stage:
    """An engine; of ONNX Runtime's the graph, as it is optimized, stands for what is inside."""
    manifest = engine.manifest
    inputs = input_of(manifest.model, images)
    observe = None
    if graph is not None and manifest.backend == "onnxruntime":
        opened: ir.Model = files.load(graph)
        observe = partial(observe_graph, opened, inputs, optimize=True, threads=threads)
    name = f"{manifest.backend} engine {engine.path.name}"
    return Stage(name, manifest.model.precision, _run(session, inputs, engine), observe)


def _run(session: Session, inputs: NDArray, engine: Engine) -> NDArray[np.float32]:
    largest = engine.manifest.batch[2]
    parts = [session.run(inputs[i : i + largest]) for i in range(0, len(inputs), largest)]
    return np.concatenate(parts)
