"""Adopting: a graph of another exporter becomes an artifact like any other."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes.common import RemoveUnusedNodesPass

from vitdeploy import __version__
from vitdeploy.artifacts.onnx_model import (
    ModelDescription,
    OnnxModel,
    Output,
    Verification,
    recipe_digest,
    stem_of,
)
from vitdeploy.artifacts.source import SourceDescription, Task
from vitdeploy.errors import ExportError, InputError
from vitdeploy.export.adopting.companions import (
    PreprocessingFlags,
    labels_for,
    preprocessing_for,
)
from vitdeploy.export.adopting.foreign import Foreign, read_foreign, require_supported
from vitdeploy.export.adopting.normal_form import normal_form
from vitdeploy.export.adopting.open_batch import BATCH, open_batch
from vitdeploy.export.adopting.same_answers import original_answers, require_same
from vitdeploy.export.samples import sample_inputs
from vitdeploy.graph import files
from vitdeploy.images import ImageSet
from vitdeploy.preprocessing import Preprocessing, Size
from vitdeploy.progress import SILENT, Progress

DEFAULT_OPSET = 20
"""As export's: the first with Gelu as one operator."""

LIBRARY = "onnx"
"""What `SourceDescription.library` says of a model that is known by its graph alone."""


@dataclass(frozen=True, kw_only=True)
class AdoptOptions:
    """What the file does not tell.

    `resolution` is needed where the graph takes any size. `answer` names the
    output to keep where there are several. `labels` None takes those of a
    config.json beside the graph, else numbers. `opset` is the least the
    adopted graph has.
    """

    preprocessing: PreprocessingFlags = field(default_factory=PreprocessingFlags)
    resolution: Size | None = None
    name: str | None = None
    task: Task | None = None
    answer: str | None = None
    labels: tuple[str, ...] | None = None
    opset: int = DEFAULT_OPSET
    external_data: bool | None = None


def adopt(
    path: Path,
    folder: Path,
    options: AdoptOptions | None = None,
    *,
    images: ImageSet | None = None,
    progress: Progress = SILENT,
) -> OnnxModel:
    """Write a normalized, described copy of a float32 graph that vitdeploy did not export.

    A fixed batch is opened where that is exact. The copy is compared with the
    file, image by image, at batch 1, 2 and 5, on `images` or on seeded noise;
    the description keeps the figures. PyTorch is not needed.

    Raises InputError for graphs that are not a ViT's in float32 taking images
    of one size, and where preprocessing or size are not known; ExportError
    where the batch cannot be opened, or the copy answers otherwise.
    """
    options = options or AdoptOptions()
    with progress.task(f"adopting {path.name}", total=3) as task:
        found = read_foreign(path, output=options.answer)
        size = _size(found, options.resolution)
        preprocessing = preprocessing_for(path, size, options.preprocessing)
        _require_channels(found, preprocessing)
        source = _source(found, size, preprocessing, options)
        inputs, real = sample_inputs(source, size, images)
        expected = original_answers(found, inputs)
        task.advance()
        answers = (inputs, expected)
        adopted = _adopted(found, source, options.opset, answers, real_images=real)
        task.advance()
        model = adopted.model
        source, output = _answering(found, source, model, options)
        description = ModelDescription(
            source=source,
            resolution=size,
            precision="fp32",
            opset=model.graph.opset_imports[""],
            input_name=str(model.graph.inputs[0].name),
            output_name=str(model.graph.outputs[0].name),
            passes=adopted.passes,
            parent_digest=found.digest,
            verification=adopted.verification,
            positions="as the file has them",
            output=output,
            producer=f"vitdeploy {__version__}, from a graph by {found.producer}",
        )
        target = folder / f"{stem_of(description, recipe_digest(description))}.onnx"
        saved = files.save(model, description, target, external_data=options.external_data)
        task.advance()
    return saved


@dataclass(frozen=True)
class _Adopted:
    model: ir.Model
    passes: tuple[str, ...]
    verification: Verification


def _adopted(
    found: Foreign,
    source: SourceDescription,
    opset: int,
    answers: tuple[NDArray[np.float32], NDArray[np.float32]],
    *,
    real_images: bool,
) -> _Adopted:
    """The normalized graph for any batch, proved on (inputs, the file's answers).

    Many a file says that its batch is open and holds the traced one inside:
    where the plain way fails, that is one image.
    """
    shape = (source.in_chans, *source.native_resolution)
    attempts = [found.batch] if found.batch is not None else [None, 1]
    refused: ExportError | None = None
    for batch in attempts:
        model = _prepared(found, batch, shape)
        try:
            model, passes = _normalized(model, found, batch, opset)
            graph = files.runnable(model)
            return _Adopted(model, passes, require_same(graph, *answers, real_images=real_images))
        except ExportError as error:
            refused = refused or error
    assert refused is not None  # there is at least one attempt
    raise refused


def _size(found: Foreign, asked: Size | None) -> Size:
    if found.size is None and asked is None:
        raise InputError(
            f"{found.path} takes images of any size, and one has to be chosen",
            hint="give --res, the size it was trained for",
        )
    if found.size is not None and asked not in (None, found.size):
        raise InputError(
            f"{found.path} takes {found.size[0]}x{found.size[1]} alone",
            hint="leave --res out; only a source model can be exported at another size",
        )
    size = found.size or asked
    assert size is not None
    return size


def _require_channels(found: Foreign, preprocessing: Preprocessing) -> None:
    if found.channels not in (None, preprocessing.channels):
        raise InputError(
            f"{found.path} takes images of {found.channels} channels, and mean and std are of "
            f"{preprocessing.channels}",
            hint="give as many values with --mean and --std",
        )


def _prepared(found: Foreign, batch: int | None, shape: tuple[int, int, int]) -> ir.Model:
    """A copy of the graph with one output, images of (batch, channels, height, width)."""
    model = found.model.clone()
    graph = model.graph
    graph.outputs[:] = [graph.outputs[found.output]]
    RemoveUnusedNodesPass()(model)
    image = next(value for value in graph.inputs if not value.is_initializer())
    if found.channels_last:
        _take_channels_first(graph, image)
    image.shape = ir.Shape([ir.SymbolicDim(BATCH) if batch is None else batch, *shape])
    return model


def _take_channels_first(graph: ir.Graph, image: ir.Value) -> None:
    """Everything else here hands images over channels first."""
    turned = ir.node("Transpose", [image], {"perm": [0, 2, 3, 1]}, name="channels_last")
    turned.outputs[0].name, turned.outputs[0].type = "channels_last_out", image.type
    ir.convenience.replace_all_uses_with(image, turned.outputs[0])
    turned.replace_input_with(0, image)
    graph.insert_before(graph[0], turned)


def _normalized(
    model: ir.Model, found: Foreign, batch: int | None, opset: int
) -> tuple[ir.Model, tuple[str, ...]]:
    model = normal_form(model, opset=opset)
    passes = (f"normal_form[{opset}]",)
    require_supported(model, found.path)
    if batch is None:
        return model, passes
    opened = normal_form(open_batch(model), opset=opset)
    return opened, (*passes, f"open_batch[{batch}]")


def _source(
    found: Foreign, size: Size, preprocessing: Preprocessing, options: AdoptOptions
) -> SourceDescription:
    name = options.name or found.path.stem
    return SourceDescription(
        name=name,
        library=LIBRARY,
        architecture=name,
        model_kwargs={},
        native_resolution=size,
        in_chans=preprocessing.channels,
        labels=(),
        weights_digest=found.digest,
        preprocessing=preprocessing,
        origin=found.path.name,
    )


def _answering(
    found: Foreign, source: SourceDescription, model: ir.Model, options: AdoptOptions
) -> tuple[SourceDescription, Output]:
    """The source with its task and labels, and what kind of answer the graph gives."""
    answer = model.graph.outputs[0]
    sides = list(answer.shape) if answer.shape is not None else []
    if len(sides) not in (2, 3):
        raise ExportError(
            f"{found.path} answers {answer.shape or 'an unknown shape'}",
            hint="it has to answer (batch, classes), (batch, width) or (batch, tokens, width): "
            "name another output with --answer",
        )
    task = options.task or ("features" if len(sides) == 3 else "classify")
    classes = 0 if task == "features" else int(sides[-1])  # type: ignore[arg-type]
    labels = labels_for(found.path, classes, options.labels)
    return replace(source, task=task, labels=labels), _kind_of(answer, len(sides), task)


def _kind_of(answer: ir.Value, rank: int, task: Task) -> Output:
    if rank == 3:
        return "tokens"
    if task == "features":
        return "features"
    producer = answer.producer()
    ends = "" if producer is None else producer.op_type
    return "probabilities" if ends in ("Softmax", "Sigmoid") else "logits"
