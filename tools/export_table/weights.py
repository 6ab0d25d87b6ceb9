"""Weights under which a mistake is seen: positions of unit deviation, answers that vary.

No hub was in reach, and weights as libraries draw them answer almost the same
for every image: then any graph would pass, or rounding alone would fail one.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

CLASSES = 10
"""Of the images the heads are fitted to."""

_POSITIONS = ("pos_", "_pos", "position", "relative", "attention_bias", "rel_", "bias_table")
_QUERIES = ("qkv", ".q.", ".k.", ".kv.", "q_proj", "k_proj", "query", "key", "in_proj")
_BRANCH_ENDS = ("conv3_1x1.weight", "conv3_1x1.bn.weight")
"""Where inverted bottlenecks (MaxViT, MobileViT) join the residual stream."""

_LEAST_VARIANCE = 0.5
"""Of a batch norm's channels, of their mean: one that hardly varies would be blown up to noise."""

_SHRINKAGE = 1e-2
"""Of the features' largest variance: weaker directions than that hold more noise than classes."""


def enliven(module: nn.Module, seed: int = 0) -> None:
    """The library's own initialization, except for what it makes too small to be seen.

    Positions and tables of biases get unit deviation or more; LayerScale, norms that
    start at zero, and zeroed or tiny matrices get the size trained ones have;
    the ends of convolutional branches three tenths of their gain, for the reason in
    `_is_of_a_norm`.
    Queries and keys get unit gain: with smaller ones every token attends to all
    alike, and class tokens hardly tell one image from another.
    """
    generator = torch.Generator().manual_seed(seed)
    over_tokens = _channel_attention(module)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if not parameter.is_floating_point() or not parameter.numel():
                continue
            drawn = torch.randn(parameter.shape, generator=generator)
            gain = parameter[0].numel() ** -0.5 if parameter.ndim > 1 else 1.0
            if (
                any(word in name for word in _POSITIONS)
                and parameter.ndim > 1
                and "mlp" not in name
            ):
                # Biases of whole offsets (LeViT, TinyViT) compete with scores of unit deviation.
                parameter.copy_(drawn * (2.0 if "attention_bias" in name else 1.0))
            elif parameter.ndim > 1:
                least = 0.9 if any(word in name for word in _QUERIES) else 0.3
                if float(parameter.std()) < least * gain and not name.startswith(over_tokens):
                    parameter.copy_(drawn * gain)
            elif _is_of_a_norm(module, name):
                if not parameter.any():
                    parameter.copy_(0.15 + 0.03 * drawn)
            elif _is_layer_scale(name) and float(parameter.abs().mean()) < 0.5:
                parameter.copy_(0.5 + 0.1 * drawn)
            if name.endswith(_BRANCH_ENDS):
                parameter.mul_(0.3)


def _channel_attention(module: nn.Module) -> tuple[str, ...]:
    """Attention between channels (DaViT): its scores add up over all tokens.

    With matrices of unit gain they would be hundreds, and softmax a step.
    """
    return tuple(
        f"{name}."
        for name, part in module.named_modules()
        if type(part).__name__.startswith("ChannelAttention")
    )


def _is_layer_scale(name: str) -> bool:
    leaf = name.rpartition(".")[2]
    return leaf.startswith(("gamma", "ls", "lambda")) or "layer_scale" in name


def _is_of_a_norm(module: nn.Module, name: str) -> bool:
    """The weights of norms, not their biases. One of zero ends a residual branch.

    Branches of full gain, one after another, make rounding grow like chaos.
    """
    owner = module.get_submodule(name.rpartition(".")[0])
    return name.endswith(".weight") and "norm" in type(owner).__name__.lower()


def settle_batch_norms(module: nn.Module, inputs: torch.Tensor) -> None:
    """Statistics of batch norms become those of (n, channels, height, width) `inputs`.

    As they are drawn they normalize nothing: attention scores behind them are
    thousands, softmax is a step, and rounding alone decides (Visformer).
    """
    norms = [part for part in module.modules() if isinstance(part, nn.BatchNorm2d | nn.BatchNorm1d)]
    if not norms:
        return
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
    with torch.no_grad():
        module(inputs)
    module.eval()
    for norm in norms:
        if norm.running_var is not None:
            norm.running_var.clamp_(min=_LEAST_VARIANCE * float(norm.running_var.mean()))


def fit_heads(module: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> None:
    """Every classifier becomes the ridge regression from what it is given to the classes.

    `inputs` are (n, channels, height, width) images of the native size,
    `labels` (n,) of 0 to `CLASSES` - 1. A trained head reads the directions in
    which images differ, and decides; a random one reads all of them, and its
    best two classes are often as close as rounding.

    Raises ValueError where no linear layer has `CLASSES` outputs.
    """
    given = _given_to_heads(module, inputs)
    if not given:
        raise ValueError(f"no linear layer has {CLASSES} outputs")
    wanted = functional.one_hot(labels, CLASSES).float() - 1 / CLASSES
    for head, features in given.items():
        center = features.mean(0)
        features = features - center
        gram = features @ features.T
        ridge = _SHRINKAGE * float(torch.linalg.eigvalsh(gram)[-1])
        weight = torch.linalg.solve(gram + ridge * torch.eye(len(gram)), wanted).T @ features
        with torch.no_grad():
            head.weight.copy_(weight)
            if head.bias is not None:
                head.bias.copy_(-weight @ center)


def _given_to_heads(module: nn.Module, inputs: torch.Tensor) -> dict[nn.Linear, torch.Tensor]:
    """(n, width) inputs of each classifier; tokens (n, tokens, width) by their mean."""
    heads = [
        part
        for part in module.modules()
        if isinstance(part, nn.Linear) and part.out_features == CLASSES
    ]
    found: dict[nn.Linear, list[torch.Tensor]] = {}

    def record(head: nn.Module, given: tuple[torch.Tensor, ...]) -> None:
        features = given[0].flatten(1, -2).mean(1) if given[0].ndim > 2 else given[0]
        found.setdefault(head, []).append(features)  # type: ignore[arg-type]

    hooks = [head.register_forward_pre_hook(record) for head in heads]
    with torch.no_grad():
        for part in inputs.split(4):
            module(part)
    for hook in hooks:
        hook.remove()
    return {head: torch.cat(parts) for head, parts in found.items()}
