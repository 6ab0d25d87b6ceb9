"""What an error of outputs is measured in."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vitdeploy.errors import ExportError

_FLAT = 1e-3
"""Outputs that deviate less than this share of their magnitude prove nothing."""


def spread_between_images(outputs: NDArray[np.float32], of: str) -> float:
    """Deviation of (images, ...) outputs from their mean over the images.

    A constant that all images share is no part of it, so an answer that is
    right on the average only is far off. `of` names what answered, for errors.

    Raises ExportError where outputs are not finite or hardly vary: then any
    graph would pass.
    """
    if not np.isfinite(outputs).all():
        raise ExportError(
            f"{of} itself answers values that are not finite",
            hint="check the weights and the images",
        )
    spread = float((outputs - outputs.mean(0)).std())
    if spread == 0.0 or spread <= _FLAT * float(np.abs(outputs).mean()):
        raise ExportError(
            f"{of} answers nearly the same for every image, so nothing can be verified",
            hint="give trained weights and different images; random weights with LayerScale "
            "answer almost zero",
        )
    return spread
