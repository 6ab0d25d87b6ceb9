"""Proof that a graph computes what PyTorch computes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vitdeploy.artifacts.onnx_model import Verification
from vitdeploy.backends.onnxruntime_ import GraphSession
from vitdeploy.errors import EngineError, ExportError, InputError
from vitdeploy.export.samples import sample_inputs
from vitdeploy.export.spread import spread_between_images
from vitdeploy.graph import reference
from vitdeploy.graph.files import RunnableGraph
from vitdeploy.images import ImageSet
from vitdeploy.models.source import SourceModel

BATCH_SIZES = (1, 2, 5)
TOLERANCE = 1e-4
"""Largest logit difference allowed, in deviations of the source's logits."""

RUNTIME_TOLERANCE = 1e-3
"""Largest difference on ONNX Runtime at which the graph is given a second hearing.

Some of its kernels add up long sums one by one (InstanceNormalization over
10,000 values: 1e-6 each), and deep models make that more than `TOLERANCE`.
"""

_REPORT = "report this with the model's name; the graph was not written"


def sample_images(
    source: SourceModel, images: ImageSet | None, *, seed: int = 0
) -> tuple[NDArray[np.float32], bool]:
    """(8, channels, height, width) inputs to compare on, and whether they are real images.

    With images, eight spread over the set; without, seeded smooth noise.
    """
    return sample_inputs(
        source.description, source.resolution, images, count=sum(BATCH_SIZES), seed=seed
    )


def verify(
    graph: bytes | RunnableGraph,
    source: SourceModel,
    inputs: NDArray,
    *,
    real_images: bool,
    batch_sizes: tuple[int, ...] = BATCH_SIZES,
) -> Verification:
    """Run the graph at batch 1, 2 and 5 on ONNX Runtime against PyTorch.

    `inputs` are as many images as `batch_sizes` add up to; bytes, (n, height,
    width, channels) uint8, for a graph that normalizes by itself.

    Images on which ONNX Runtime is beyond `TOLERANCE`, but not far, are answered
    again by ONNX's reference implementation: it decides whether the graph or
    the runtime's rounding is to blame, and `runtime_error` keeps the latter.

    Raises ExportError where logits differ by more than `TOLERANCE` deviations,
    where a value is not finite, where the graph does not load or does not take
    one of the batch sizes, or where PyTorch's logits hardly vary between images
    (then any graph would pass).
    """
    floats = inputs
    if inputs.dtype == np.uint8:
        floats = source.description.preprocessing.normalize_bytes(inputs)
    expected = source.logits(floats)
    spread = spread_between_images(expected, "PyTorch")
    answered = _answers(graph, inputs, expected.shape[1:], batch_sizes)
    if not np.isfinite(answered).all():
        raise ExportError(
            "the graph answers values that are not finite",
            hint=_REPORT,
        )
    answered, runtime_error = heard_again(graph, inputs, answered, expected)
    error = float(np.abs(answered - expected).max() / spread)
    if error > TOLERANCE:
        raise ExportError(
            f"the graph differs from PyTorch by {error:.2e} deviations of the logits "
            f"(at most {TOLERANCE:.0e} is allowed)",
            hint=_REPORT,
        )
    agreement = float((answered.argmax(-1) == expected.argmax(-1)).mean())
    return Verification(len(inputs), batch_sizes, error, agreement, real_images, runtime_error)


def heard_again(
    graph: bytes | RunnableGraph,
    inputs: NDArray,
    answered: NDArray[np.float32],
    expected: NDArray[np.float32],
) -> tuple[NDArray[np.float32], float | None]:
    """The answers, those beyond `TOLERANCE` replaced by ONNX's reference implementation's, and
    ONNX Runtime's largest error; None, and nothing replaced, where none is, one is too far, or
    that implementation cannot run the graph."""
    spread = spread_between_images(expected, "PyTorch")
    differences = np.abs(answered - expected).reshape(len(expected), -1).max(1) / spread
    doubtful = differences > TOLERANCE
    worst = float(differences.max())
    if not doubtful.any() or worst > RUNTIME_TOLERANCE:
        return answered, None
    heard = reference.answers(graph, inputs[doubtful])
    if heard is None:
        return answered, None
    settled = answered.copy()
    settled[doubtful] = heard
    return settled, worst


def _answers(
    graph: bytes | RunnableGraph,
    inputs: NDArray,
    shape: tuple[int, ...],
    batch_sizes: tuple[int, ...],
) -> NDArray[np.float32]:
    """The graph's logits on all inputs, run in batches of `batch_sizes`."""
    try:
        session = GraphSession(graph)
    except EngineError as error:
        raise ExportError(f"the graph was traced wrongly: {error}", hint=_REPORT) from error
    parts, start = [], 0
    for size in batch_sizes:
        try:
            answered = session.run(inputs[start : start + size])
        except (EngineError, InputError) as error:
            raise ExportError(
                f"the graph does not take a batch of {size}: {error}", hint=_REPORT
            ) from error
        if answered.shape != (size, *shape):
            raise ExportError(
                f"the graph answers {answered.shape} for a batch of {size}, "
                f"PyTorch {(size, *shape)}",
                hint=_REPORT,
            )
        parts.append(answered)
        start += size
    return np.concatenate(parts)
