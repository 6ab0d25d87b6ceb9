"""PyTorch operators written in ONNX as TensorRT takes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from onnxscript import opset18

op: Any = opset18  # its stubs know no attributes of constants


def table() -> dict[Any, Callable[..., Any]]:
    """Operators whose usual translation some runtime lacks, and ours."""
    return {
        torch.ops.aten.col2im.default: fold,
        torch.ops.aten.im2col.default: unfold,
        torch.ops.aten.einsum.default: einsum,
    }


def unfold(
    image: Any,
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Any:
    """Im2Col (torch's unfold; VOLO) as a convolution with one-hot kernels.

    (n, channels, height, width) to (n, channels * kh * kw, positions). ONNX has
    no such operator; the exporter's own translation computes indices from the
    shape in every run.
    """
    taps = kernel_size[0] * kernel_size[1]
    channels = int(image.shape[1])
    columns = op.Conv(
        image,
        _one_hot_kernels(channels, kernel_size),
        group=channels,
        dilations=list(dilation),
        kernel_shape=list(kernel_size),
        pads=[*padding, *padding],
        strides=list(stride),
    )
    shape = np.array([0, channels * taps, -1], dtype=np.int64)
    return op.Reshape(columns, op.Constant(value=ir.tensor(shape)))


def fold(
    columns: Any,
    output_size: Sequence[int],
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Any:
    """Col2Im (torch's fold; VOLO) as a transposed convolution with one-hot kernels.

    (n, channels * kh * kw, positions) to (n, channels, *output_size): each tap
    of a column is added where the kernel had taken it from. TensorRT has no
    Col2Im; the transposed convolution is the same sum.
    """
    taps = kernel_size[0] * kernel_size[1]
    channels = int(columns.shape[1]) // taps
    grid, missing = [], []
    for size, kernel, dilated, pad, step in zip(
        output_size, kernel_size, dilation, padding, stride, strict=True
    ):
        reach = dilated * (kernel - 1) + 1
        count = (size + 2 * pad - reach) // step + 1
        grid.append(count)
        missing.append(size - ((count - 1) * step - 2 * pad + reach))
    shape = np.array([0, channels * taps, *grid], dtype=np.int64)
    image = op.Reshape(columns, op.Constant(value=ir.tensor(shape)))
    return op.ConvTranspose(
        image,
        _one_hot_kernels(channels, kernel_size),
        group=channels,
        dilations=list(dilation),
        kernel_shape=list(kernel_size),
        output_padding=missing,
        pads=[*padding, *padding],
        strides=list(stride),
    )


def einsum(equation: str, tensors: Sequence[Any], path: Sequence[int] | None = None) -> Any:
    """A batched matrix product as MatMul (MaxViT of torchvision: attention), else Einsum.

    TensorRT takes no capitals in an equation, and no runtime looks for attention in one.
    """
    del path  # an order of evaluation, the same numbers
    orders = _as_product(equation)
    if orders is None or len(tensors) != 2:
        plain = equation.replace(" ", "")
        small = plain.lower()
        return op.Einsum(*tensors, equation=small if len({*small}) == len({*plain}) else plain)
    factors = [
        tensor if list(order) == sorted(order) else op.Transpose(tensor, perm=list(order))
        for tensor, order in zip(tensors, orders, strict=True)
    ]
    return op.MatMul(*factors)


def _as_product(equation: str) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The orders of both factors' axes for MatMul: of 'bid,bjd->bij' (0, 1, 2) and (0, 2, 1).

    None where the equation is no product over one axis that leaves one of each factor.
    """
    terms, arrow, answer = equation.replace(" ", "").partition("->")
    first, _, second = terms.partition(",")
    if not arrow or not all(term.isalpha() for term in (first, second, answer)):
        return None
    shared = [axis for axis in answer if axis in first and axis in second]
    rows = [axis for axis in first if axis not in second]
    columns = [axis for axis in second if axis not in first]
    summed = [axis for axis in first if axis in second and axis not in answer]
    if [len(rows), len(columns), len(summed)] != [1, 1, 1]:
        return None
    left, right = [*shared, *rows, *summed], [*shared, *summed, *columns]
    if (sorted(left), sorted(right)) != (sorted(first), sorted(second)):
        return None
    if answer != "".join([*shared, *rows, *columns]):
        return None
    return tuple(map(first.index, left)), tuple(map(second.index, right))


def _one_hot_kernels(channels: int, kernel_size: Sequence[int]) -> Any:
    """(channels * kh * kw, 1, kh, kw): every channel has one kernel for each tap."""
    taps = kernel_size[0] * kernel_size[1]
    one_hot = np.eye(taps, dtype=np.float32).reshape(taps, 1, *kernel_size)
    return op.Constant(value=ir.tensor(np.tile(one_hot, (channels, 1, 1, 1))))
