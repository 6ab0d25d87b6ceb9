"""Inputs to judge a graph on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vitdeploy.artifacts.source import SourceDescription
from vitdeploy.images import ImageSet, batches
from vitdeploy.preprocessing import Preprocessing, Size


def sample_inputs(
    source: SourceDescription,
    size: Size,
    images: ImageSet | None,
    *,
    count: int = 8,
    seed: int = 0,
) -> tuple[NDArray[np.float32], bool]:
    """(count, channels, height, width) inputs to compare on, and whether they are real images.

    With images, `count` spread over the set; without, seeded smooth noise.
    """
    if images is not None:
        chosen = np.linspace(0, len(images) - 1, count).round().astype(int)
        picked = images.take(chosen.tolist())
        return next(batches(picked, source.preprocessing, size, count)), True
    generator = np.random.default_rng(seed)
    coarse = generator.normal(size=(count, source.in_chans, 8, 8)).astype(np.float32)
    rows = np.arange(size[0]) * 8 // size[0]
    columns = np.arange(size[1]) * 8 // size[1]
    smooth = coarse[:, :, rows][:, :, :, columns]
    noise = generator.normal(size=smooth.shape).astype(np.float32)
    return (smooth + 0.3 * noise).astype(np.float32), False


def as_bytes(inputs: NDArray[np.float32], preprocessing: Preprocessing) -> NDArray[np.uint8]:
    """(n, height, width, channels) bytes of the fitted images, for graphs that normalize."""
    mean = np.asarray(preprocessing.mean, np.float32)
    std = np.asarray(preprocessing.std, np.float32)
    shares = inputs.transpose(0, 2, 3, 1) * std + mean
    return np.clip(np.rint(shares * 255), 0, 255).astype(np.uint8)
