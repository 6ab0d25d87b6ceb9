"""How far a typed graph, emulated, is from the float32 graph it came from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitdeploy.artifacts.onnx_model import Emulated, Precision
from vitdeploy.export.spread import spread_between_images
from vitdeploy.graph.half import BF16, FP16

LEAST_AGREEMENT = 0.99


@dataclass(frozen=True)
class Tolerance:
    """The least cosine, and the lead of the best class above which a row is decided.

    `margin` is in deviations of the logits: where the best class leads by
    less, the format's own noise may choose either.
    """

    cosine: float
    margin: float


_EPSILONS = 16.0
_OF_PRECISION: dict[Precision, Tolerance] = {
    "fp16": Tolerance(0.999, _EPSILONS * FP16.epsilon),
    # Eight times as coarse: every sound model is eight times as far off, and no node is to blame.
    "bf16": Tolerance(0.99, _EPSILONS * BF16.epsilon),
    # A value half a step from the next integer falls either way: two roundings of one INT8
    # graph differ by about as much as quantization itself costs.
    "int8-fp16": Tolerance(0.98, _EPSILONS * BF16.epsilon),
    "fp8-fp16": Tolerance(0.98, _EPSILONS * BF16.epsilon),
}


def compared(
    exact: NDArray[np.float32],
    answered: NDArray[np.float32],
    tolerance: Tolerance,
    *,
    classes: bool,
) -> Emulated:
    """Both (rows, ...) outputs for the same inputs; a row that is not finite agrees with nothing.

    The cosine is of rows less the mean of the float32 rows: a constant that
    all images share would make any answer look right. Where outputs are
    `classes`, the agreement counts decided rows (of all where none is, or
    where they are features: then it is no gate, see `holds`).

    Raises ExportError where the float32 outputs are not finite or hardly vary.
    """
    exact, answered = exact.reshape(len(exact), -1), answered.reshape(len(answered), -1)
    spread = spread_between_images(exact, "the float32 graph")
    finite = np.all(np.isfinite(answered), axis=1)
    answered = np.where(finite[:, None], answered, 0.0)
    center = exact.mean(0)
    a, b = exact - center, answered - center
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    cosine = np.where(finite, (a * b).sum(1) / np.maximum(norms, np.finfo(np.float32).tiny), -1.0)
    error = np.where(finite, np.abs(answered - exact).max(1) / spread, np.finfo(np.float32).max)
    agree = np.logical_and(finite, answered.argmax(1) == exact.argmax(1))
    counted = decided(exact, tolerance) if classes else np.ones(len(exact), dtype=bool)
    if not counted.any():
        counted[:] = True
    return Emulated(float(cosine.min()), float(error.max()), float(agree[counted].mean()))


def decided(exact: NDArray[np.float32], tolerance: Tolerance) -> NDArray[np.bool_]:
    """(rows,): whether the best class leads by more than the format's noise."""
    if exact.shape[1] < 2:
        return np.zeros(len(exact), dtype=bool)
    best = np.partition(exact, -2, axis=1)[:, -2:]
    return best[:, 1] - best[:, 0] > tolerance.margin * spread_between_images(
        exact, "the float32 graph"
    )


def holds(found: Emulated, tolerance: Tolerance, *, classes: bool) -> bool:
    """Whether the forecast is good enough to ship."""
    agrees = not classes or found.agreement >= LEAST_AGREEMENT
    return found.cosine >= tolerance.cosine and agrees


def tolerance_of(precision: Precision) -> Tolerance:
    """What is demanded of a typed graph. Raises KeyError for float32 ones."""
    return _OF_PRECISION[precision]


def in_words(found: Emulated) -> str:
    return (
        f"cosine {found.cosine:.5f}, largest error {found.max_error:.3f} deviations, "
        f"agreement {100 * found.agreement:.1f} %"
    )
