"""Which layers' quantization moves the answers most."""

from __future__ import annotations

from dataclasses import dataclass

from vitdeploy.calibration.answers import answers, error_between, inputs_of
from vitdeploy.calibration.plan import QuantizationPlan
from vitdeploy.calibration.statistics import search_images
from vitdeploy.calibration.tuning import Tuning


@dataclass(frozen=True)
class Sensitivity:
    """`error`: root mean square of what quantizing `unit` alone does, in deviations of the
    answers."""

    unit: QuantizationPlan
    error: float

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.unit.quantized)

    def in_words(self) -> str:
        return f"{' and '.join(self.names)} ({self.error:.3f} deviations)"


def sensitivities(tuning: Tuning) -> list[Sensitivity]:
    """Every unit of the plan, the most damaging first, measured on the search images.

    Each is quantized alone, all else in float, so that no error hides another.
    """
    few = search_images(tuning.gathering.calibration).images
    inputs = inputs_of(few, tuning.gathering.model.description)
    exact = answers(tuning.graph, inputs)
    units = tuning.plan.units()
    found = []
    with tuning.gathering.progress.task("searching: sensitive layers", len(units)) as task:
        for unit in units:
            error = error_between(exact, answers(tuning.quantized(unit), inputs))
            found.append(Sensitivity(unit, error))
            task.advance()
    return sorted(found, key=lambda entry: -entry.error)
