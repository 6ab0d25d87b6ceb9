"""Random weights that keep what passes through them as large as it was."""

from __future__ import annotations

import torch

from vitdeploy.models.load import ModelRequest, seeded_random_source
from vitdeploy.models.source import SourceModel


def random_vit(**request: object) -> SourceModel:
    """A ViT-Ti/16 with random weights of unit gain: logits differ from image to image."""
    source = seeded_random_source(
        ModelRequest(name="vit_tiny_patch16_224", random_weights=True, **request),  # type: ignore[arg-type]
        0,
    )
    with torch.no_grad():
        for parameter in source.module.parameters():
            if parameter.ndim >= 2 and parameter.std() > 0:
                parameter.div_(parameter.std() * parameter[0].numel() ** 0.5)
    return source
