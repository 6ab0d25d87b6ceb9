"""A timm ViT small enough to be made anew for every test."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitdeploy.models.load import ModelRequest, seeded_random_source
from vitdeploy.models.source import SourceModel

NAME = "vit_tiny_patch16_224"
TINY = {"img_size": 64, "patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 2}


def tiny(**kwargs: Any) -> SourceModel:
    request = ModelRequest(
        name=NAME, random_weights=True, num_classes=3, model_kwargs={**TINY, **kwargs}
    )
    return seeded_random_source(request, seed=0)


def batch_at(size: tuple[int, int], channels: int = 3) -> NDArray[np.float32]:
    shape = (2, channels, *size)
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)
