"""Figures and pictures of position grids against scipy, PyTorch and slow loops."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cosine
from torch.nn import functional

from vitdeploy.errors import InputError
from vitdeploy.graph.positions import PositionGrid
from vitdeploy.graph.similarity import (
    draw,
    kept_cosines,
    mosaic,
    position_figures,
    similarity,
)
from vitdeploy.preprocessing import Size


def noisy(rows: int, columns: int, seed: int = 0) -> PositionGrid:
    generator = np.random.default_rng(seed)
    return PositionGrid("noise", generator.normal(size=(rows, columns, 16)).astype(np.float32))


def test_similarity_against_scipy() -> None:
    grid = noisy(5, 3)
    maps = similarity(grid, [1, 4], [0, 2])
    assert maps.shape == (2, 2, 5, 3)
    for row, line in enumerate((1, 4)):
        for column, place in enumerate((0, 2)):
            for r, c in np.ndindex(5, 3):
                expected = 1 - cosine(grid.vectors[line, place], grid.vectors[r, c])
                assert maps[row, column, r, c] == pytest.approx(expected, abs=1e-6)


def test_the_mosaic_puts_each_map_at_its_tokens_place() -> None:
    grid = noisy(6, 4)
    image = mosaic(grid, (3, 4))
    assert image.shape == (3 * 7 - 1, 4 * 5 - 1)
    for row, line in enumerate((1, 3, 5)):
        for column in range(4):
            block = image[7 * row : 7 * row + 6, 5 * column : 5 * column + 4]
            alone = similarity(grid, [line], [column])[0, 0]
            np.testing.assert_allclose(block, alone, atol=1e-6)
            assert block[line, column] == pytest.approx(1)
    assert np.isnan(image[6]).all()
    assert np.isnan(image[:, 4]).all()


def test_neighbours_against_a_loop() -> None:
    grid = noisy(3, 4)
    pairs = [((r, c), (r, c + 1)) for r in range(3) for c in range(3)]
    pairs += [((r, c), (r + 1, c)) for r in range(2) for c in range(4)]
    expected = [1 - cosine(grid.vectors[one], grid.vectors[two]) for one, two in pairs]
    found = position_figures(grid).after.neighbour_cosine
    assert found == pytest.approx(np.mean(expected), abs=1e-6)


@pytest.mark.parametrize(("before", "after"), [((8, 6), (5, 6)), ((4, 6), (6, 3))])
def test_kept_cosines_against_pytorchs_resampling(before: Size, after: Size) -> None:
    one, two = noisy(*before), noisy(*after, seed=1)
    size = (min(before[0], after[0]), min(before[1], after[1]))
    coarse = [
        functional.interpolate(
            torch.from_numpy(grid.vectors).permute(2, 0, 1)[None],
            size,
            mode="bilinear",
            antialias=True,
        )
        for grid in (one, two)
    ]
    expected = functional.cosine_similarity(*coarse, dim=1)[0].numpy()
    np.testing.assert_allclose(kept_cosines(one, two), expected, atol=1e-5)


def test_another_models_positions_are_refused() -> None:
    wide = PositionGrid("wide", np.ones((4, 4, 8), np.float32))
    with pytest.raises(InputError, match="different models"):
        kept_cosines(wide, noisy(4, 4))


def test_positions_of_zeros_have_figures() -> None:
    zeros = PositionGrid("zeros", np.zeros((2, 3, 4), np.float32))
    assert position_figures(zeros, zeros).kept_cosine == 0


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_the_same_grids_give_the_same_picture(suffix: str, tmp_path: Path) -> None:
    for name in ("one", "two"):
        draw(tmp_path / f"{name}{suffix}", noisy(6, 10), noisy(4, 6), title="a_model$x$")
    one, two = ((tmp_path / f"{name}{suffix}").read_bytes() for name in ("one", "two"))
    assert one == two
    draw(tmp_path / f"other{suffix}", noisy(6, 10, seed=1), noisy(4, 6), title="a_model$x$")
    assert one != (tmp_path / f"other{suffix}").read_bytes()
    assert {path.suffix for path in tmp_path.iterdir()} == {suffix}
