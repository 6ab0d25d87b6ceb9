"""A ViT with massive activations: thousands in a few residual channels, and in the class token.

Large pretrained ViTs grow them (Sun et al., arXiv 2402.17762); small ones do
not, so they are planted and the model is taught to live with them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

CONSTANTS = {11: 1500.0, 57: -1500.0, 90: 1050.0}
"""What is added to the residual stream of every token, by channel."""

CLASS_TOKEN = {11: -3000.0, 57: 3000.0, 90: 2100.0}
"""The same in the class token: another sign in two channels, so that it alone stands out."""

EPOCHS = 20
_SPIKE = 3.0
"""gamma of those two channels: behind a LayerNorm the class token is some forty deviations off."""

_BATCH = 32
_RATE = 1e-3


def with_massive_activations(
    model: nn.Module, images: torch.Tensor, *, epochs: int = EPOCHS
) -> nn.Module:
    """A copy of a timm ViT that answers `images` (n, 3, H, W) much as `model` does.

    Each LayerNorm is given the gamma and beta with which it answers what it
    did, had its tokens all had one deviation. What that loses is learnt back:
    LayerNorms, biases and all weights follow the logits of `model`.
    """
    teacher = model.eval()
    student = copy.deepcopy(teacher)
    constant = _at(CONSTANTS, student.embed_dim)
    spread = constant.std(correction=0)
    turned = [channel for channel in CONSTANTS if CONSTANTS[channel] * CLASS_TOKEN[channel] < 0]
    with torch.no_grad():
        deviations = _deviations(teacher, images[:64])
        student.patch_embed.proj.bias += constant
        student.cls_token += _at(CLASS_TOKEN, student.embed_dim)
        for name, norm in _norms(student):
            gamma = norm.weight * spread / deviations[name]
            gamma[turned] = _SPIKE
            norm.bias += gamma / spread * (constant.mean() - constant)
            norm.weight.copy_(gamma)
    if epochs:
        _distil(teacher, student, images, epochs)
    return student.eval()


def largest_residuals(model: nn.Module, images: torch.Tensor) -> torch.Tensor:
    """(blocks, tokens) the largest magnitude of a channel in what each block answers."""
    found: list[torch.Tensor] = []
    hooks = [
        block.register_forward_hook(
            lambda _module, _given, answer: found.append(answer.abs().amax((0, 2)))
        )
        for block in model.blocks
    ]
    with torch.inference_mode():
        model(images)
    for hook in hooks:
        hook.remove()
    return torch.stack(found)


def _at(values: dict[int, float], size: int) -> torch.Tensor:
    vector = torch.zeros(size)
    vector[list(values)] = torch.tensor(list(values.values()))
    return vector


def _norms(model: nn.Module) -> Iterator[tuple[str, nn.LayerNorm]]:
    for name, module in model.named_modules():
        if isinstance(module, nn.LayerNorm):
            yield name, module


def _deviations(model: nn.Module, images: torch.Tensor) -> dict[str, float]:
    """The mean deviation within a token at each LayerNorm."""
    found: dict[str, float] = {}
    hooks = []
    for name, norm in _norms(model):

        def look(_: Any, given: Any, name: str = name) -> None:
            found[name] = float(given[0].std(-1, correction=0).mean())

        hooks.append(norm.register_forward_pre_hook(look))
    model(images)
    for hook in hooks:
        hook.remove()
    return found


def _distil(teacher: nn.Module, student: nn.Module, images: torch.Tensor, epochs: int) -> None:
    """Follow the teacher's logits on mixtures of two images: few images are soon known by heart."""
    planted = {"cls_token", "pos_embed", "patch_embed.proj.bias"}
    learnt = [p for name, p in student.named_parameters() if name not in planted]
    steps = epochs * (len(images) // _BATCH)
    optimizer = torch.optim.Adam(learnt, _RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _RATE, total_steps=steps)
    for step in range(steps):
        batch = _mixed(images, torch.Generator().manual_seed(step))
        with torch.no_grad():
            wanted = teacher(batch)
        loss = nn.functional.mse_loss(student(batch), wanted)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(learnt, 1.0)
        optimizer.step()
        schedule.step()


def _mixed(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    first, second = torch.randperm(len(images), generator=generator)[: 2 * _BATCH].split(_BATCH)
    share = torch.rand((_BATCH, 1, 1, 1), generator=generator) ** 2 / 2
    batch = (1 - share) * images[first] + share * images[second]
    flipped = torch.rand(_BATCH, generator=generator) < 0.5
    return torch.where(flipped[:, None, None, None], batch.flip(-1), batch)
