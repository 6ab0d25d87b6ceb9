"""Tiny ViTs of many kinds, exported: what stands between their layers differs."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
import transformers as hf
from numpy.typing import NDArray
from torch import nn

from vitdeploy.export.export import _PASSES
from vitdeploy.export.trace import trace
from vitdeploy.models.load import ModelRequest, load_source, seeded_random_source
from vitdeploy.models.source import SourceModel

Make = Callable[[Path], SourceModel]

_HALF = (0.5, 0.5, 0.5)
_VIT: dict[str, Any] = {"img_size": 32, "depth": 1, "embed_dim": 48, "num_heads": 3}
_HUGGING_FACE: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
    "num_labels": 5,
}
_SWIN: dict[str, Any] = {"embed_dim": 16, "depths": [2, 1], "num_heads": [2, 4]}


def unit_gain(module: nn.Module) -> nn.Module:
    """Weights under which what every layer answers counts: none is near zero or constant."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            drawn = torch.randn(parameter.shape, generator=generator)
            if "pos_emb" in name or "position_emb" in name or "token" in name:
                parameter.copy_(drawn)
            elif parameter.ndim >= 2:
                parameter.copy_(drawn / parameter[0].numel() ** 0.5)
            elif name.endswith("bias"):
                parameter.copy_(0.3 * drawn)
            else:
                parameter.copy_(1 + 0.2 * drawn)
    return module.eval()


def _timm(name: str, **kwargs: Any) -> Make:
    def make(_: Path) -> SourceModel:
        request = ModelRequest(name=name, random_weights=True, num_classes=5, model_kwargs=kwargs)
        source = seeded_random_source(request, 0)
        unit_gain(source.module)
        return source

    return make


def _python(name: str, **kwargs: Any) -> Make:
    def make(_: Path) -> SourceModel:
        request = ModelRequest(
            name=name, random_weights=True, model_kwargs=kwargs, mean=_HALF, std=_HALF
        )
        source = seeded_random_source(request, 0)
        unit_gain(source.module)
        return source

    return make


def _transformers(make_module: Callable[[], Any]) -> Make:
    def make(folder: Path) -> SourceModel:
        unit_gain(make_module()).save_pretrained(folder)  # type: ignore[operator]
        return load_source(ModelRequest(name=str(folder), mean=_HALF, std=_HALF))

    return make


FAMILIES: dict[str, Make] = {
    "vit": _timm("vit_tiny_patch16_224", **_VIT),
    "vit-qk-norm": _timm("vit_tiny_patch16_224", **_VIT, qk_norm=True),
    "vit-parallel": _timm("vit_pwee_patch16_reg1_gap_256", **_VIT),
    "eva02": _timm("eva02_tiny_patch14_224", **{**_VIT, "img_size": 28}),
    "siglip": _timm("vit_base_patch16_siglip_224", **_VIT),
    "swin-padded": _timm("swin_tiny_patch4_window7_224", **_SWIN, img_size=40, window_size=4),
    "swin-v2": _timm(
        "swinv2_tiny_window8_256", embed_dim=16, depths=[1], num_heads=[2], img_size=32,
        window_size=4,
    ),
    "torchvision-vit": _python(
        "torchvision.models.vision_transformer:VisionTransformer",
        image_size=32, patch_size=8, num_layers=1, num_heads=4, hidden_dim=32, mlp_dim=64,
        num_classes=5,
    ),
    "transformers-vit": _transformers(
        lambda: hf.ViTForImageClassification(hf.ViTConfig(**_HUGGING_FACE))
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Tiny:
    """A family's graph, as export makes it, and images for it.

    `matrices` counts the weights of two axes that PyTorch's module holds.
    """

    graph: ir.Model
    pixels: NDArray[np.float32]
    matrices: int

    @property
    def one(self) -> NDArray[np.float32]:
        return self.pixels[:1]


@functools.cache
def tiny(name: str) -> Tiny:
    """Traced once; tests that change the graph clone it."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        source = FAMILIES[name](Path(folder))
    graph = trace(source)
    for one in _PASSES:
        graph = one(graph)
    shape = 4, 3, *source.resolution
    pixels = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    named = source.module.named_parameters()
    matrices = sum(name.endswith("weight") and held.ndim == 2 for name, held in named)
    return Tiny(graph, pixels, matrices)
