"""torchvision's architectures in a size for tests, registered as the library registers its own."""

from __future__ import annotations

import functools
from typing import Any, Optional

import torchvision
from torch import nn
from torchvision.models import swin_transformer, vision_transformer
from torchvision.models._api import register_model

_SWIN: dict[str, Any] = {
    "patch_size": [4, 4],
    "embed_dim": 16,
    "depths": [1, 2],
    "num_heads": [2, 4],
    "window_size": [4, 4],
}


def _vit(**given: Any) -> nn.Module:
    given = {"image_size": 64, **given}
    return vision_transformer.VisionTransformer(
        patch_size=8, num_layers=2, num_heads=4, hidden_dim=32, mlp_dim=64, **given
    )


def _swin_v2(**given: Any) -> nn.Module:
    return swin_transformer.SwinTransformer(
        **_SWIN,
        block=swin_transformer.SwinTransformerBlockV2,
        downsample_layer=swin_transformer.PatchMergingV2,
        **given,
    )


def _maxvit(**given: Any) -> nn.Module:
    given = {"input_size": (64, 64), **given}
    return torchvision.models.MaxVit(
        stem_channels=16,
        partition_size=4,
        block_channels=[16, 32],
        block_layers=[1, 1],
        head_dim=8,
        stochastic_depth_prob=0.0,
        **given,
    )


_BUILDERS = {
    "vit_nano": (_vit, torchvision.models.ViT_B_16_Weights),
    "swin_nano": (
        functools.partial(swin_transformer.SwinTransformer, **_SWIN),
        torchvision.models.Swin_T_Weights,
    ),
    "swin_v2_nano": (_swin_v2, torchvision.models.Swin_V2_T_Weights),
    "maxvit_nano": (_maxvit, torchvision.models.MaxVit_T_Weights),
}


def register() -> None:
    """Make 'torchvision:vit_nano' and the others known, once per process."""
    for name, (make, weights) in _BUILDERS.items():
        if name in torchvision.models.list_models():
            continue

        def builder(*, weights: Any = None, progress: bool = True, make: Any = make, **given: Any):  # type: ignore[no-untyped-def]
            return make(**given)

        # The library finds a model's weights by this annotation, and its kind by its module.
        builder.__annotations__["weights"] = Optional[weights]  # noqa: UP045
        builder.__module__ = "torchvision.models.nano"
        register_model(name)(builder)
