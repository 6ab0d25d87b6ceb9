"""Graphs of other exporters, as Python functions beside those of `vitdeploy.api`.

Nothing here needs PyTorch: the file itself, on ONNX Runtime in float32, is the
source that everything made from it is compared with.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vitdeploy.api import Baseline
from vitdeploy.artifacts.onnx_model import ModelDescription, OnnxModel
from vitdeploy.backends.onnxruntime_ import GraphSession
from vitdeploy.benchmarks.accuracy import evaluation
from vitdeploy.benchmarks.accuracy.kinds import kind_of
from vitdeploy.errors import InputError
from vitdeploy.images import ImageSet
from vitdeploy.progress import SILENT, Progress

if TYPE_CHECKING:
    from vitdeploy.export.adopting.adopt import AdoptOptions
    from vitdeploy.graph.recognition import Recognised


def adopt(
    path: Path,
    folder: Path,
    options: AdoptOptions | None = None,
    *,
    images: ImageSet | None = None,
    progress: Progress = SILENT,
) -> OnnxModel:
    """Take in a float32 graph; see `vitdeploy.export.adopting.adopt.adopt`."""
    from vitdeploy.export.adopting import adopt as stage

    return stage.adopt(path, folder, options, images=images, progress=progress)


def recognise(model: OnnxModel) -> Recognised:
    """The parts of a ViT in a graph file; see `vitdeploy.graph.recognition.recognise`."""
    from vitdeploy.graph import files, recognition

    return recognition.recognise(files.load(model))


def baseline_from_graph(
    graph: OnnxModel,
    model: ModelDescription,
    images: ImageSet,
    *,
    threads: int | None = None,
    progress: Progress = SILENT,
) -> Baseline:
    """What the float32 graph answers, in place of a source that is known by its graph alone.

    Raises InputError where `model` was not made from these weights, with this
    preprocessing, at this resolution, or the graph is not float32.
    """
    own = graph.description
    if own.precision != "fp32" or own.input_format != "float32-nchw":
        raise InputError(
            f"{graph.path} is {own.precision} and takes {own.input_format}",
            hint="give the float32 graph that `vitdeploy adopt` wrote",
        )
    if _identity(own) != _identity(model):
        raise InputError(
            f"the engine was not made from {graph.path}",
            hint="give the float32 graph it was built from",
        )
    session = GraphSession(graph.path, threads=threads, description=own)
    preprocessing = own.source.preprocessing
    logits = evaluation.logits_of(session, images, preprocessing, own.resolution, progress=progress)
    kind = kind_of(own.source.task, own.output)
    top1 = evaluation.score_of(kind, logits, images)
    return Baseline("ONNX Runtime fp32, the adopted graph", logits, top1, top1)


def _identity(model: ModelDescription) -> tuple[object, ...]:
    source = model.source
    return source.weights_digest, source.preprocessing.digest, model.resolution, model.output
