"""The matrices against PyTorch's own resampling, in float64 and in float32."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from vitdeploy.export.dynamic.resampling import (
    ALIGNED,
    ANTIALIASED,
    KERNELS,
    PLAIN,
    Kernel,
    resample,
    with_border,
)

SIDES = st.integers(2, 40)
"""From 2: PyTorch's antialiased resampling to one column repeats its first row."""


def pytorch(grid: torch.Tensor, size: tuple[int, int], kernel: Kernel) -> torch.Tensor:
    resampled = torch.nn.functional.interpolate(
        grid.permute(2, 0, 1).unsqueeze(0),
        size=size,
        mode="bicubic",
        antialias=kernel.antialias,
        align_corners=kernel.aligned,
    )
    return resampled[0].permute(1, 2, 0)


def ours(grid: torch.Tensor, size: tuple[int, int], kernel: Kernel) -> torch.Tensor:
    return resample(with_border(grid, kernel), *size, kernel)


def noise(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, columns, 3, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
@settings(deadline=None, max_examples=150)
@given(old=st.tuples(SIDES, SIDES), new=st.tuples(SIDES, SIDES), seed=st.integers(0, 99))
def test_equals_pytorch(
    kernel: Kernel, old: tuple[int, int], new: tuple[int, int], seed: int
) -> None:
    """1e-5 from the float64 truth; PyTorch's float32 is itself up to 1.5e-5 away from it."""
    grid = noise(*old, seed)
    made = ours(grid, new, kernel)
    truth = pytorch(grid.double(), new, kernel)
    torch.testing.assert_close(made.double(), truth, atol=1e-5, rtol=0)
    torch.testing.assert_close(made, pytorch(grid, new, kernel), atol=4e-5, rtol=0)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("new", [(16, 16), (24, 24), (7, 7), (24, 32), (32, 10)])
def test_usual_grids_equal_pytorch_closely(kernel: Kernel, new: tuple[int, int]) -> None:
    grid = noise(14, 14)
    difference = (ours(grid, new, kernel) - pytorch(grid, new, kernel)).abs().max()
    assert float(difference) < 1e-5


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
@settings(deadline=None, max_examples=60)
@given(size=st.tuples(st.integers(1, 64), st.integers(1, 64)))
def test_the_native_grid_stays_bit_for_bit(kernel: Kernel, size: tuple[int, int]) -> None:
    grid = noise(*size)
    assert torch.equal(ours(grid, size, kernel), grid)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_a_constant_stays_constant(kernel: Kernel) -> None:
    grid = torch.full((5, 9, 2), 3.25)
    torch.testing.assert_close(ours(grid, (12, 4), kernel), torch.full((12, 4, 2), 3.25))


@pytest.mark.parametrize(
    ("one", "other", "size"),
    [
        (ANTIALIASED, PLAIN, (24, 24)),
        (ANTIALIASED, PLAIN, (7, 7)),
        (ANTIALIASED, ALIGNED, (24, 24)),
        (PLAIN, ALIGNED, (24, 24)),
    ],
)
def test_the_ways_differ(one: Kernel, other: Kernel, size: tuple[int, int]) -> None:
    """Else the tests above could not tell which way was taken."""
    grid = noise(14, 14)
    difference = ours(grid, size, one) - ours(grid, size, other)
    assert float(difference.std() / grid.std()) > 0.02


def test_one_column_follows_pillow_not_pytorch() -> None:
    """Where PyTorch is wrong: its answer repeats the first row."""
    grid = noise(6, 5)[..., :1]
    image = Image.fromarray(grid[..., 0].numpy())
    pillow = torch.tensor(np.asarray(image.resize((1, 4), Image.Resampling.BICUBIC)).copy())
    torch.testing.assert_close(ours(grid, (4, 1), ANTIALIASED)[..., 0], pillow, atol=1e-5, rtol=0)
