"""Where answers are lost: stage by stage from the source to the engine, then layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from vitdeploy.artifacts.onnx_model import Precision
from vitdeploy.benchmarks.diagnosis.layers import Observed, layer_errors
from vitdeploy.errors import GateFailedError
from vitdeploy.progress import SILENT, Progress

SAME = 1e-3
"""Between stages that compute the same in float32: ten times what an export is verified to."""
_ROUNDING: dict[str, float] = {"fp16": 0.045, "bf16": 0.14, "int8": 0.2, "fp8": 0.2}
"""Root mean square errors whose cosines are 0.999, 0.99 and 0.98: what typed graphs are held to."""
_OF_LAYERS = 3.0
"""A layer inside may be off by so many times more: later ones average rounding away."""


@dataclass(frozen=True)
class Stage:
    """One form of the model and its answers, (images, ...).

    `observe` names what its layers compute, as far as it can be looked into:
    it answers the layers' values in the order of the work.
    """

    name: str
    precision: Precision | None
    answers: NDArray[np.float32]
    observe: Callable[[], Observed] | None = None


@dataclass(frozen=True)
class StageFinding:
    """How far a stage is from the one before it.

    `error` is the root mean square of the difference over the deviation between
    images of the stage before, `agreement` the share of images with the same
    largest answer. Infinite errors (NaN answers) are told as the largest float.
    """

    before: str
    after: str
    error: float
    agreement: float
    bound: float

    @property
    def departs(self) -> bool:
        return self.error > self.bound


@dataclass(frozen=True)
class LayerFinding:
    """A layer whose values were compared; `error` as of stages, over the values' own deviation."""

    layer: str
    error: float


@dataclass(frozen=True)
class LostAnswers:
    """The first stage that departs, None where none does, and its layers in the order of the work.

    `first` is the first layer beyond `layer_bound`; None where no layer is, or
    where the stages cannot be looked into (`layers` is empty then).
    """

    images: int
    stages: tuple[StageFinding, ...]
    departing: StageFinding | None = None
    first: LayerFinding | None = None
    layer_bound: float = 0.0
    layers: tuple[LayerFinding, ...] = ()

    def in_words(self) -> str:
        """One sentence that names the culprit."""
        found = self.departing
        if found is None:
            return f"no stage departs from the one before it on {self.images} images"
        text = (
            f"{found.after} departs from {found.before}: its answers differ by {found.error:.3g} "
            f"deviations, {found.bound:.3g} are allowed"
        )
        if self.first is not None:
            return (
                f"{text}; the first layer that does is {self.first.layer}, by "
                f"{self.first.error:.3g} deviations of its values"
            )
        if self.layers:
            worst = max(self.layers, key=lambda layer: layer.error)
            return f"{text}; no single layer does, {worst.layer} most ({worst.error:.3g})"
        return f"{text}; its layers cannot be looked into"


def diagnose(stages: Sequence[Stage], *, progress: Progress = SILENT) -> LostAnswers:
    """Compare each stage with the one before it, and the layers of the first that departs.

    Raises GateFailedError where the first stage itself answers nothing that
    can be compared.
    """
    first = stages[0]
    if not np.isfinite(first.answers).all():
        raise GateFailedError(
            f"{first.name} answers values that are not finite", hint="check the weights"
        )
    findings = tuple(_compared(a, b) for a, b in pairwise(stages))
    images = len(first.answers)
    place = next((i for i, found in enumerate(findings) if found.departs), None)
    if place is None:
        return LostAnswers(images, findings)
    before, after = stages[place], stages[place + 1]
    bound = min(1.0, _OF_LAYERS * findings[place].bound)
    layers = _layers(before, after, progress)
    culprit = next((layer for layer in layers if layer.error > bound), None)
    return LostAnswers(images, findings, findings[place], culprit, bound, layers)


def bound_between(before: Precision | None, after: Precision | None) -> float:
    """What rounding may cost from one stage to the next; None is the source or an engine of it."""
    own, other = (_parts(precision) for precision in (before, after))
    return max((_ROUNDING[part] for part in other - own), default=SAME)


def _parts(precision: Precision | None) -> set[str]:
    return {part for part in (precision or "").split("-") if part in _ROUNDING}


def _compared(before: Stage, after: Stage) -> StageFinding:
    a, b = (stage.answers.reshape(len(stage.answers), -1) for stage in (before, after))
    bound = bound_between(before.precision, after.precision)
    if before.precision == after.precision and _parts(after.precision):
        # An engine beside its own graph: other kernels, in the same numbers.
        bound = max(_ROUNDING[part] for part in _parts(after.precision))
    spread = float((a - a.mean(axis=0)).std())
    agreement = float((a.argmax(axis=1) == b.argmax(axis=1))[np.isfinite(b).all(axis=1)].sum())
    return StageFinding(before.name, after.name, _relative(a, b, spread), agreement / len(a), bound)


def _relative(a: NDArray, b: NDArray, spread: float) -> float:
    difference = b.astype(np.float64) - a
    largest = float(np.finfo(np.float32).max)
    if not np.isfinite(difference).all():
        return largest
    return min(largest, float(np.sqrt(np.mean(np.square(difference)))) / max(spread, 1e-30))


def _layers(before: Stage, after: Stage, progress: Progress) -> tuple[LayerFinding, ...]:
    if before.observe is None or after.observe is None:
        return ()
    with progress.task("comparing layers", 2) as task:
        exact: Mapping[str, NDArray] = before.observe()
        task.advance()
        given = after.observe()
        task.advance()
    scaled = bool(_parts(after.precision) & {"int8", "fp8"})
    errors = layer_errors(exact, given, up_to_channel_scales=scaled)
    return tuple(LayerFinding(name, error) for name, error in errors)
