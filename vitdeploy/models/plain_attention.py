"""`nn.MultiheadAttention` in the form runtimes fuse: scaled query, product, softmax, product."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional


class PlainAttention(nn.MultiheadAttention):
    """The same weights and results as `nn.MultiheadAttention` in evaluation mode, traced plainly.

    PyTorch's own forward branches on shapes, folds the batch into the heads and
    takes a fused path, which leave conditions and shape arithmetic in a graph.
    Calls with masks or extra key and value rows go to PyTorch's own forward.
    """

    def forward(  # type: ignore[override]
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        weights_wanted = options.get("need_weights", True)
        masked = any(
            options.get(name) is not None for name in ("key_padding_mask", "attn_mask")
        ) or options.get("is_causal", False)
        if masked or query.ndim != 3:
            return super().forward(query, key, value, **options)
        if not self.batch_first:
            query, key, value = (part.transpose(0, 1) for part in (query, key, value))
        q, k, v = (self._heads(part) for part in self._projected(query, key, value))
        scores = (q * self.head_dim**-0.5) @ k.transpose(-2, -1)
        weights = scores.softmax(-1)
        joined = (weights @ v).transpose(1, 2).flatten(2)
        answer = self.out_proj(joined)
        if not self.batch_first:
            answer = answer.transpose(0, 1)
        if not weights_wanted:
            return answer, None
        averaged = options.get("average_attn_weights", True)
        return answer, weights.mean(1) if averaged else weights

    def _projected(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        bias = self.in_proj_bias
        biases = (None,) * 3 if bias is None else bias.chunk(3)
        if self._qkv_same_embed_dim:
            if query is key and key is value:
                return functional.linear(query, self.in_proj_weight, bias).chunk(3, dim=-1)
            parts = self.in_proj_weight.chunk(3)
        else:
            parts = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        return tuple(
            functional.linear(inputs, weight, part)
            for inputs, weight, part in zip((query, key, value), parts, biases, strict=True)
        )

    def _heads(self, tokens: torch.Tensor) -> torch.Tensor:
        """(n, tokens, width) to (n, heads, tokens, width of a head)."""
        return tokens.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)


def use_plain_attention(module: nn.Module) -> nn.Module:
    """Make `module`, a copy of the caller's, trace every attention of PyTorch's plainly.

    Parameters keep their names: only the class of the attention modules changes.
    """
    for part in module.modules():
        if type(part) is nn.MultiheadAttention and part.bias_k is None and not part.add_zero_attn:
            part.__class__ = PlainAttention
        elif isinstance(part, nn.TransformerEncoderLayer):
            # The layer's fused kernel reads the weights past the attention module; this
            # private flag is one of the conditions it asks for.
            cast(Any, part).activation_relu_or_gelu = 0
    return module
