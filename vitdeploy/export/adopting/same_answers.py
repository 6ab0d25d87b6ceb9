"""Proof that an adopted graph computes what the file computes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vitdeploy.artifacts.onnx_model import Verification
from vitdeploy.backends.onnxruntime_ import GraphSession
from vitdeploy.errors import EngineError, ExportError, InputError
from vitdeploy.export.adopting.foreign import Foreign
from vitdeploy.export.spread import spread_between_images
from vitdeploy.graph.files import RunnableGraph

BATCH_SIZES = (1, 2, 5)
TOLERANCE = 1e-4
"""Largest difference allowed, in deviations of the original's answers; the same as export's.
Measured: at most 1.2e-5, the order of sums alone (a batch of two against one image)."""


def original_answers(found: Foreign, inputs: NDArray[np.float32]) -> NDArray[np.float32]:
    """What the file answers to (n, channels, height, width) inputs, one image at a time.

    A file of a fixed batch is given that many copies of each.
    """
    try:
        session = GraphSession(found.path, name=str(found.path))
    except EngineError as error:
        raise InputError(str(error), hint="export it again") from error
    if found.channels_last:
        inputs = np.ascontiguousarray(inputs.transpose(0, 2, 3, 1))
    answers = []
    for image in inputs:
        batch = np.repeat(image[None], found.batch or 1, axis=0)
        try:
            answers.append(session.run_all(batch)[found.output][0])
        except EngineError as error:
            raise InputError(
                f"{found.path} does not run on an image of {image.shape}: {error}",
                hint="give the size it was exported for with --res",
            ) from error
    return np.stack(answers).astype(np.float32)


def require_same(
    graph: RunnableGraph,
    inputs: NDArray[np.float32],
    expected: NDArray[np.float32],
    *,
    real_images: bool,
) -> Verification:
    """Run the adopted graph at batch 1, 2 and 5 against the original's answers.

    Raises ExportError where they differ by more than `TOLERANCE` deviations,
    where the graph does not take one of the batch sizes, and where the
    original's answers hardly vary between images.
    """
    spread = spread_between_images(expected, "the file")
    try:
        session = GraphSession(graph)
    except EngineError as error:
        raise ExportError(f"the adopted graph does not load: {error}", hint=_REPORT) from error
    start, worst, same = 0, 0.0, []
    for size in BATCH_SIZES:
        wanted = expected[start : start + size]
        try:
            answered = session.run(inputs[start : start + size])
        except EngineError as error:
            raise _not_taken(size, str(error)) from error
        if answered.shape != wanted.shape:
            raise _not_taken(size, f"it answers {answered.shape}")
        error = float(np.abs(answered - wanted).max() / spread)
        if not error <= TOLERANCE:  # NaN is no agreement
            raise ExportError(
                f"at batch {size} the adopted graph differs from the file by {error:.1e} "
                f"deviations (at most {TOLERANCE:.0e} is allowed)",
                hint=_REPORT if size == 1 else _BATCH,
            )
        worst = max(worst, error)
        same += list((answered.argmax(-1) == wanted.argmax(-1)).reshape(-1))
        start += size
    return Verification(len(inputs), BATCH_SIZES, worst, float(np.mean(same)), real_images)


_REPORT = "report this with the file's exporter and its version; nothing was written"
_BATCH = "export it again with a dynamic batch (dynamic_axes or dynamic_shapes)"


def _not_taken(size: int, why: str) -> ExportError:
    return ExportError(f"the graph does not take a batch of {size}: {why}", hint=_BATCH)
