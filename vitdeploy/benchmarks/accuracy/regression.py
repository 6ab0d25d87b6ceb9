"""`RegressionComparison`: heads that answer numbers, judged against the source's numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from vitdeploy.benchmarks import statistics
from vitdeploy.benchmarks.accuracy.comparison import (
    LEAST_SPREAD,
    MAX_DISAGREEMENT,
    MAX_FLIPPED,
    Comparison,
    Loss,
    judged_mean,
    max_error,
    mean_loss,
    require_finite,
    require_pairs,
    require_spread,
)

MAX_UNEXPLAINED = MAX_DISAGREEMENT
"""1 - R2 that may be lost of any output: its error then is at most 14 % of how it varies. That is
stricter than the cosine of 0.98 that features are held to (0.99 is an R2 of 0.98)."""
_STEPS = 16
"""Steps in which numbers are counted to tell how much they vary, as bits."""


@dataclass(frozen=True, kw_only=True)
class RegressionComparison(Comparison):
    """Paired numbers of source and engine on the same images.

    `relative_error` is the root mean square of the difference over the source's
    deviation between images, of all outputs; `r2` is 1 - its square per output,
    in the mean, `worst_r2` that of the output `worst_output`, which is the one
    judged. A single image counts at most as if nothing of it was explained.
    `source_entropy_bits` is the entropy of the worst output's values in 16
    equal steps. `flipped` holds images with the largest errors beyond half a deviation.
    """

    outputs: int
    relative_error: float
    r2: float
    worst_r2: float
    worst_output: int
    judged: Loss
    kind: Literal["regression"] = "regression"

    score_name: ClassVar[str] = "R2"
    agreement: ClassVar[None] = None

    @property
    def engine_score(self) -> float | None:
        return self.r2

    def loss(self) -> Loss:
        return self.judged

    def in_words(self) -> str:
        return (
            f"answers within {100 * self.relative_error:.2f} % of the source's deviation "
            f"(R2 {self.r2:.5f}; of its worst output {100 - self.judged.upper:.2f} % at least "
            "with 95 % confidence)"
        )

    def facts(self) -> tuple[tuple[str, str], ...]:
        return (
            (
                "R2 against the source",
                f"{self.r2:.5f}, of output {self.worst_output}, the worst of {self.outputs}, "
                f"{self.worst_r2:.5f}",
            ),
            (
                "unexplained of the worst output",
                f"{self.judged.value:.3f} %, at most {self.judged.upper:.2f} with 95 % "
                f"confidence, limit {self.judged.limit:.2f}; its values carry "
                f"{self.source_entropy_bits:.2f} bits",
            ),
            (
                "error",
                f"{self.relative_error:.4f} deviations in the root mean square, "
                f"{self.max_error:.3f} at most",
            ),
        )


def compare_regression(
    source: NDArray[np.float32], engine: NDArray[np.float32]
) -> RegressionComparison:
    """Compare numbers, (images, outputs) each, row i of both of the same image.

    An engine whose error is a tenth of each output's deviation has an R2 of
    0.99. Outputs that hardly vary in the source are judged on the scale of the
    one that varies most, as nothing can be explained of them.

    Raises InputError for shapes that do not pair up; GateFailedError for rows
    that are not finite and where source or engine answer all images alike.
    """
    require_pairs(source, engine)
    require_finite(source, "the source")
    require_finite(engine, "the engine")
    require_spread(source, engine)
    exact = source.astype(np.float64)
    deviations = exact.std(axis=0)
    scale = np.where(deviations > LEAST_SPREAD * deviations.max(), deviations, deviations.max())
    squared = np.square((engine - exact) / scale)
    per_output = squared.mean(axis=0)
    worst = int(per_output.argmax())
    lost = np.clip(squared[:, worst], 0, 1)
    verdict, needed = judged_mean(lost, MAX_UNEXPLAINED)
    far = np.sqrt(squared.max(axis=1))
    order = [int(i) for i in np.argsort(-far) if far[i] > 0.5]
    steps = np.histogram_bin_edges(exact[:, worst], _STEPS)[1:-1]
    return RegressionComparison(
        images=len(source),
        outputs=source.shape[1],
        relative_error=float(np.sqrt(squared.mean())),
        r2=float(1 - per_output.mean()),
        worst_r2=float(1 - per_output[worst]),
        worst_output=worst,
        judged=mean_loss("unexplained", lost, MAX_UNEXPLAINED),
        source_entropy_bits=statistics.prediction_entropy(np.digitize(exact[:, worst], steps)),
        max_error=max_error(source, engine),
        verdict=verdict,
        images_needed=needed,
        flipped=tuple(order[:MAX_FLIPPED]),
    )
