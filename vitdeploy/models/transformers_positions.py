"""Positions of transformers' vision models at another size, by the library's own code."""

from __future__ import annotations

import inspect
from types import MethodType
from typing import Any, cast

import torch
from torch import nn

from vitdeploy.errors import ExportError
from vitdeploy.preprocessing import Size

_FLAG = "interpolate_pos_encoding"


def remember_windows(module: nn.Module) -> dict[str, tuple[int, int]]:
    """(window, shift) of every Swin layer, before any image has been seen.

    Swin's layers shrink both for good on the first small image, so a model that
    has run at its own size would answer differently at a larger one.
    """
    return {
        name: (int(cast(Any, part).window_size), int(cast(Any, part).shift_size))
        for name, part in module.named_modules()
        if hasattr(part, "set_shift_and_window_size")
    }


def restore_windows(module: nn.Module, windows: dict[str, tuple[int, int]]) -> None:
    """Undo what images have done to the windows of a copy."""
    for name, (window, shift) in windows.items():
        part = cast(Any, module.get_submodule(name))
        part.window_size, part.shift_size = window, shift


def carry_positions(module: nn.Module, native: Size, size: Size, patch: Size) -> str:
    """Put the positions of `size` into the weights of `module`; say by which method.

    Absolute tables are what the library's `interpolate_pos_encoding` makes of
    them (each model has its own: bicubic, with antialias for registers);
    relative tables of BEiT what its bias module makes of them. Nothing is
    resampled in a forward pass afterwards.

    Raises ExportError for native tables that are not square, which the
    library's methods cannot take.
    """
    methods = []
    for part in module.modules():
        if callable(getattr(part, _FLAG, None)) and _table(part) is not None:
            _require_square(type(part).__name__, native)
            if size != native:
                _set_table(part, _resampled(part, native, size, patch))
                methods.append(f"{type(part).__name__}.{_FLAG}")
            _keep_stored(part)
    for name, part in list(module.named_modules()):
        if hasattr(part, "generate_relative_position_index"):
            if size != native:
                _require_square(type(part).__name__, native)
                methods.append(type(part).__name__)
            fixed = FixedRelativeBias(part, (size[0] // patch[0], size[1] // patch[1]))
            module.set_submodule(name, fixed)
    return ", ".join(dict.fromkeys(methods))


def _require_square(name: str, native: Size) -> None:
    if native[0] != native[1]:
        raise ExportError(
            f"transformers' {name} resamples positions of square images only, and this model "
            f"was made for {native[0]}x{native[1]}",
            hint="the library's own code has no other way; use the model's timm counterpart",
        )


def _table(part: nn.Module) -> torch.Tensor | None:
    """(1, prefix + cells, width): the absolute positions an embedding module adds."""
    table = getattr(part, "position_embeddings", None)
    if isinstance(table, torch.Tensor):
        return table.detach()
    embedding = getattr(part, "position_embedding", None)
    return embedding.weight.detach()[None] if isinstance(embedding, nn.Embedding) else None


def _resampled(part: nn.Module, native: Size, size: Size, patch: Size) -> torch.Tensor:
    table = _table(part)
    assert table is not None  # the caller has looked
    old = (native[0] // patch[0]) * (native[1] // patch[1])
    new = (size[0] // patch[0]) * (size[1] // patch[1])
    prefix = table.shape[1] - old
    # The method reads only the shape of the tokens it is to serve.
    tokens = table.new_zeros(1, prefix + new, table.shape[2])
    with torch.no_grad():
        resampled = cast(Any, part).interpolate_pos_encoding(tokens, size[0], size[1])
    if resampled.shape != tokens.shape:
        raise ExportError(
            f"transformers' {type(part).__name__} answers {tuple(resampled.shape)} positions "
            f"for {tuple(tokens.shape)} tokens",
            hint="export this model at its own size",
        )
    return resampled.detach().clone().contiguous()


def _set_table(part: nn.Module, table: torch.Tensor) -> None:
    if isinstance(getattr(part, "position_embeddings", None), torch.Tensor):
        cast(Any, part).position_embeddings = nn.Parameter(table, requires_grad=False)
        return
    embedding = nn.Embedding(table.shape[1], table.shape[2], _weight=table[0])
    cast(Any, part).position_embedding = embedding.requires_grad_(False)


def _keep_stored(part: nn.Module) -> None:
    """The embeddings add the table as it stands, and accept images of any size."""
    cast(Any, part).interpolate_pos_encoding = MethodType(_stored, part)
    if _FLAG in inspect.signature(type(part).forward).parameters:
        cast(Any, part).forward = MethodType(_forward_without_size_check, part)


def _stored(part: nn.Module, embeddings: torch.Tensor, height: int, width: int) -> torch.Tensor:
    table = getattr(part, "position_embeddings", None)
    if isinstance(table, torch.Tensor):
        return table
    return cast(Any, part).position_embedding.weight[None]


def _forward_without_size_check(part: nn.Module, *inputs: Any, **options: Any) -> Any:
    # With the flag the library skips its comparison with the native size.
    options[_FLAG] = True
    return type(part).forward(part, *inputs, **options)


class FixedRelativeBias(nn.Module):
    """BEiT's relative position bias of one window, its table resampled beforehand.

    The library's module answers the bias of any window; the table of that
    window is read back from it through the index, which names every row.
    """

    def __init__(self, native: Any, window: Size) -> None:
        super().__init__()
        index = native.generate_relative_position_index(window).reshape(-1)
        tokens = window[0] * window[1] + 1
        with torch.no_grad():
            bias = native(window).reshape(-1, tokens * tokens).T
        table = bias.new_zeros(int(index.max()) + 1, bias.shape[1])
        table[index] = bias
        self.relative_position_bias_table = nn.Parameter(table, requires_grad=False)
        self.register_buffer("relative_position_index", index, persistent=False)
        self._tokens = tokens

    def forward(self, *_: Any, **__: Any) -> torch.Tensor:
        """(1, heads, tokens, tokens)."""
        bias = self.relative_position_bias_table[cast(torch.Tensor, self.relative_position_index)]
        return bias.view(self._tokens, self._tokens, -1).permute(2, 0, 1)[None]
