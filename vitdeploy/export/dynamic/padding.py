"""'Same' padding of convolutional stems, without the ceiling of a symbolic division."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from timm.layers import padding


@contextmanager
def same_padding_of_whole_strides() -> Iterator[None]:
    """Inside, timm's 'same' padding is a constant wherever the stride divides the size.

    It always does where images are whole patches. timm rounds size / stride up
    in floating point, which costs minutes of symbolic algebra in a ResNet stem
    and leaves shape arithmetic in the graph.
    """
    original = padding.get_same_padding

    def get_same_padding(x: Any, kernel_size: int, stride: int, dilation: int) -> Any:
        if x % stride == 0:
            return max((kernel_size - 1) * dilation + 1 - stride, 0)
        return original(x, kernel_size, stride, dilation)

    padding.get_same_padding = get_same_padding
    try:
        yield
    finally:
        padding.get_same_padding = original
