"""The numbers a quantized tensor can hold: INT8 and FP8."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import ml_dtypes
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

GridName = Literal["int8", "fp8"]

SMALLEST_SCALE = 2.0**-24
"""Scales stay above zero: TensorRT refuses zero, and a constant activation has no range."""


@dataclass(frozen=True)
class Grid:
    """Values are scale x number; `largest` is the largest number. Symmetric, zero point 0."""

    name: GridName
    data_type: ir.DataType
    largest: float

    def scale_of(self, clip: float) -> float:
        """The scale under which `clip` is the largest value held."""
        return max(float(np.float32(clip / self.largest)), SMALLEST_SCALE)

    def numbers(self, values: NDArray) -> NDArray:
        """The nearest numbers, ties to even, saturated; -128 is not used."""
        clipped = np.clip(values, -self.largest, self.largest)
        if self.name == "int8":
            return np.rint(clipped).astype(np.int8)
        return clipped.astype(ml_dtypes.float8_e4m3fn)

    def rounded(self, values: NDArray[np.float32], scale: NDArray | float) -> NDArray[np.float32]:
        """What is left of `values` after quantizing and dequantizing."""
        scale = np.asarray(scale, dtype=np.float32)
        if self.name == "int8":
            scaled = np.divide(values, scale, dtype=np.float32)
            np.rint(scaled, out=scaled)
            np.clip(scaled, -self.largest, self.largest, out=scaled)
            return np.multiply(scaled, scale, out=scaled)
        return self.numbers(values / scale).astype(np.float32) * scale


INT8 = Grid("int8", ir.DataType.INT8, 127.0)
FP8 = Grid("fp8", ir.DataType.FLOAT8E4M3FN, 448.0)


def weight_scales(weight: NDArray[np.float32], axis: int, grid: Grid = INT8) -> NDArray[np.float32]:
    """One scale per output channel: the channel's largest magnitude over the grid's."""
    other = tuple(i for i in range(weight.ndim) if i != axis)
    scales = np.abs(weight).max(axis=other) / np.float32(grid.largest)
    return np.maximum(scales, np.float32(SMALLEST_SCALE)).astype(np.float32)


def quantize_weight(
    weight: NDArray[np.float32], scales: NDArray[np.float32], axis: int, grid: Grid = INT8
) -> NDArray:
    """The grid's numbers, as QuantizeLinear makes them."""
    shape = [1] * weight.ndim
    shape[axis] = -1
    return grid.numbers(weight / scales.reshape(shape))
