"""What a typed graph's engine will answer on a GPU, forecast on any CPU by two emulations."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vitdeploy.artifacts.onnx_model import OnnxModel
from vitdeploy.artifacts.source import Task
from vitdeploy.artifacts.strict import printable
from vitdeploy.backends.onnxruntime_ import GraphSession
from vitdeploy.benchmarks.accuracy.evaluation import digest_of, logits_of, require_disjoint
from vitdeploy.benchmarks.accuracy.judging import AnyComparison, judge
from vitdeploy.benchmarks.accuracy.kinds import kind_of
from vitdeploy.benchmarks.report.model import AccuracyForecast
from vitdeploy.graph import files
from vitdeploy.graph.emulation import Variant, emulate
from vitdeploy.graph.files import RunnableGraph
from vitdeploy.images import ImageSet
from vitdeploy.progress import SILENT, Progress


def forecast(
    model: OnnxModel,
    source: NDArray[np.float32],
    images: ImageSet,
    *,
    max_drop_points: float = 0.5,
    task: Task | None = None,
    threads: int | None = None,
    progress: Progress = SILENT,
) -> AccuracyForecast:
    """Compare a graph's two emulations with what its source answers, row i of image i.

    `fused` rounds where a runtime's fused kernels end, `worst` after every
    operation; what a GPU answers is expected between them. A graph that
    computes in float32 throughout has one meaning, the graph as it is written
    (no optimization), and both ends of the span are that.

    Raises InputError where images were calibrated with, and what `judge`
    raises: an emulation that overflows is not finite.
    """
    description = model.description
    if description.quantization is not None:
        require_disjoint(description.quantization.image_digests, images)
    kind = kind_of(description.source.task, description.output, asked=task)

    def compared(variant: Variant) -> AnyComparison:
        return judge(
            kind,
            source,
            _answers(model, variant, images, threads, progress),
            images,
            max_drop_points=max_drop_points,
            probabilities=description.output == "probabilities",
        )

    fused = compared("fused")
    return AccuracyForecast(
        graph_file=printable(model.path.name),
        graph_digest=model.digest,
        images_digest=digest_of(images),
        precision=description.precision,
        fused=fused,
        worst=compared("worst") if _is_typed(model) else fused,
        resolution=description.resolution if description.resolution_range else None,
    )


def _answers(
    model: OnnxModel, variant: Variant, images: ImageSet, threads: int | None, progress: Progress
) -> NDArray[np.float32]:
    description = model.description
    session = GraphSession(
        _meaning(model, variant),
        optimize=False,
        threads=threads,
        name=f"{description.precision}, {variant} emulation",
        description=description,
    )
    return logits_of(
        session,
        images,
        description.source.preprocessing,
        description.resolution,
        as_bytes=description.input_format == "uint8-nhwc",
        progress=progress,
    )


def _is_typed(model: OnnxModel) -> bool:
    return model.description.precision.endswith(("fp16", "bf16"))


def _meaning(model: OnnxModel, variant: Variant) -> RunnableGraph:
    return emulate(model, variant) if _is_typed(model) else files.runnable(files.load(model))
