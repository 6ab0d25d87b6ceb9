"""The grids against the operators that will compute with them: ONNX's own QuantizeLinear."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from vitdeploy.backends.onnxruntime_ import GraphSession
from vitdeploy.calibration.grids import (
    FP8,
    INT8,
    SMALLEST_SCALE,
    Grid,
    quantize_weight,
    weight_scales,
)

GRIDS = pytest.mark.parametrize("grid", [INT8, FP8], ids=lambda grid: grid.name)
TYPES = {"int8": np.int8, "fp8": ml_dtypes.float8_e4m3fn}


def quantizing(
    scale: NDArray[np.float32], grid: Grid, axis: int | None = None, *, rank: int = 2
) -> onnx.ModelProto:
    """x -> (what QuantizeLinear makes of it, dequantized again), and the numbers themselves."""
    zero = np.zeros(scale.shape, TYPES[grid.name])
    given: dict[str, Any] = {} if axis is None else {"axis": axis}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["numbers"], **given),
        helper.make_node("DequantizeLinear", ["numbers", "scale", "zero"], ["rounded"], **given),
    ]
    floats = onnx.TensorProto.FLOAT
    shape = [None] * rank
    graph = helper.make_graph(
        nodes,
        "grid",
        [helper.make_tensor_value_info("x", floats, shape)],
        [
            helper.make_tensor_value_info("rounded", floats, shape),
            helper.make_tensor_value_info("numbers", grid.data_type.value, shape),
        ],
        [numpy_helper.from_array(scale, "scale"), numpy_helper.from_array(zero, "zero")],
    )
    opsets = [helper.make_opsetid("", 20)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def reference(values: NDArray[np.float32], scale: float, grid: Grid) -> tuple[NDArray, NDArray]:
    model = quantizing(np.array(scale, np.float32), grid)
    rounded, numbers = ReferenceEvaluator(model).run(None, {"x": values})  # type: ignore[misc]
    return rounded, numbers


arrays = hnp.arrays(
    np.float32, st.tuples(st.integers(1, 4), st.integers(1, 8)),
    elements=st.floats(-1e4, 1e4, width=32),
)  # fmt: skip
scales = st.floats(2.0**-10, 8.0, width=32)


@GRIDS
@settings(deadline=None, max_examples=60)
@given(values=arrays, scale=scales)
def test_rounding_is_onnxs(grid: Grid, values: NDArray[np.float32], scale: float) -> None:
    rounded, numbers = reference(values, scale, grid)
    if grid is INT8:
        # -128 is ONNX's alone: the grid is symmetric, and ranges count on it.
        lowest = numbers == -128
        rounded = np.where(lowest, np.float32(-127) * np.float32(scale), rounded)
        numbers = np.maximum(numbers, -127)
    np.testing.assert_array_equal(grid.rounded(values, scale), rounded)
    found = grid.numbers(values / np.float32(scale))
    assert found.dtype == TYPES[grid.name]
    np.testing.assert_array_equal(found.astype(np.float32), numbers.astype(np.float32))


@GRIDS
def test_halves_go_to_the_even_number(grid: Grid) -> None:
    """A grid that rounds halves up, or cuts off, is one step away on these."""
    step = 1.0 if grid is INT8 else 2.0
    base = 0.0 if grid is INT8 else 16.0  # from 16 to 32 FP8 counts in twos
    values = np.array([[base + step * (n + 0.5) for n in range(6)]], np.float32)
    rounded, _ = reference(values, 1.0, grid)
    np.testing.assert_array_equal(grid.rounded(values, 1.0), rounded)
    up = np.floor(values / step + 0.5) * step
    assert (rounded != up).sum() == 3


def test_onnx_runtime_agrees() -> None:
    values = np.random.default_rng(0).normal(size=(1, 1, 64, 64)).astype(np.float32) * 2
    for grid in (INT8, FP8):
        scale = 4.0 / grid.largest
        model = quantizing(np.array(scale, np.float32), grid, rank=4)
        del model.graph.output[1]
        answered = GraphSession(model.SerializeToString(), optimize=False).run(values)
        held = np.maximum(answered, np.float32(-grid.largest) * np.float32(scale))
        np.testing.assert_array_equal(held, grid.rounded(values, scale))


def test_fp8_holds_every_number_of_the_type() -> None:
    """All 253 finite values of e4m3: none is moved, and what lies beyond is saturated."""
    bits = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    finite = bits[np.isfinite(bits)]
    assert len(finite) == 254
    np.testing.assert_array_equal(FP8.rounded(finite, 1.0), finite)
    beyond = np.array([449.0, 1e6, -1e6], np.float32)
    np.testing.assert_array_equal(FP8.rounded(beyond, 1.0), [448, 448, -448])


def test_fp8_rounds_to_the_nearest_of_its_values() -> None:
    bits = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    finite = np.unique(bits[np.isfinite(bits)])
    values = np.random.default_rng(0).uniform(-448, 448, 2000).astype(np.float32)
    values = np.concatenate([values, values / 4096])
    nearest = np.abs(finite[None] - values[:, None].astype(np.float64)).min(axis=1)
    gaps = np.abs(FP8.rounded(values, 1.0) - values.astype(np.float64))
    np.testing.assert_allclose(gaps, nearest, atol=1e-9)


weights = hnp.arrays(
    np.float32, st.tuples(st.integers(1, 6), st.integers(1, 6)),
    elements=st.floats(-1e4, 1e4, width=32),
)  # fmt: skip


@GRIDS
@settings(deadline=None, max_examples=60)
@given(weight=weights, axis=st.sampled_from((0, 1)))
def test_weights_are_quantized_as_onnx_does_per_channel(
    grid: Grid, weight: NDArray[np.float32], axis: int
) -> None:
    widths = weight_scales(weight, axis, grid)
    numbers = quantize_weight(weight, widths, axis, grid)
    model = quantizing(widths, grid, axis)
    _, expected = ReferenceEvaluator(model).run(None, {"x": weight})  # type: ignore[misc]
    np.testing.assert_array_equal(numbers.astype(np.float32), expected.astype(np.float32))
    assert (np.abs(numbers.astype(np.float32)) <= grid.largest).all()


@GRIDS
def test_the_largest_weight_takes_the_largest_number(grid: Grid) -> None:
    weight = np.array([[1.0, 0.0, 3e-9], [-2.0, 0.0, 1e-9]], np.float32)
    widths = weight_scales(weight, 1, grid)
    numbers = quantize_weight(weight, widths, 1, grid).astype(np.float32)
    np.testing.assert_array_equal(numbers[1, 0], -grid.largest)
    np.testing.assert_array_equal(numbers[:, 1], 0)
    assert (widths >= SMALLEST_SCALE).all()
    assert widths[1] == SMALLEST_SCALE


@GRIDS
def test_a_clip_is_the_largest_value_held(grid: Grid) -> None:
    scale = grid.scale_of(5.0)
    assert grid.rounded(np.array([7.0], np.float32), scale)[0] == pytest.approx(5.0, rel=1e-6)
    assert grid.scale_of(0.0) == SMALLEST_SCALE
