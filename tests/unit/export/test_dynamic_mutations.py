"""`verify_dynamic` refuses one graph for all sizes whose positions are resampled wrongly."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tiny_vits import NATIVE, lively
from torch import nn

from vitdeploy.artifacts.onnx_model import ResolutionRange
from vitdeploy.errors import ExportError
from vitdeploy.export import trace as tracing
from vitdeploy.export.dynamic.module import make_dynamic
from vitdeploy.export.dynamic.positions import AbsolutePositions
from vitdeploy.export.dynamic.resampling import ALIGNED, PLAIN, Kernel
from vitdeploy.export.dynamic.sizes import range_of
from vitdeploy.export.dynamic.verify import verify_dynamic
from vitdeploy.export.trace import trace_dynamic
from vitdeploy.export.verify import verify
from vitdeploy.graph import files
from vitdeploy.models.source import SourceModel

GRID = (4, 6)


class Nearest(Kernel):
    def _weight(self, distance: torch.Tensor) -> torch.Tensor:
        return ((distance > -0.5) & (distance <= 0.5)).float()


class Transposed(AbsolutePositions):
    """As many tokens as asked for, in the order of the grid lying on its side."""

    def forward(self, rows: int, columns: int) -> torch.Tensor:
        return super().forward(columns, rows)


class Misread(AbsolutePositions):
    """The native grid of 4x6 taken for 6x4."""

    def __init__(self, native: torch.Tensor, grid: tuple[int, int], kernel: Kernel) -> None:
        super().__init__(native, (grid[1], grid[0]), kernel)


class Baked(AbsolutePositions):
    """Always the positions of one size: what an exporter makes of a constant."""

    def forward(self, rows: int, columns: int) -> torch.Tensor:
        fixed = super().forward(*GRID)
        index = torch.arange(rows * columns + 1).clamp(max=GRID[0] * GRID[1])
        return fixed[:, index]


RIGHT = Kernel("right", -0.5, antialias=True)
DEFECTS: dict[str, Callable[[torch.Tensor], nn.Module]] = {
    "nearest": lambda native: AbsolutePositions(native, GRID, Nearest("nearest", 0.0)),
    "aligned corners": lambda native: AbsolutePositions(native, GRID, ALIGNED),
    "no antialias": lambda native: AbsolutePositions(native, GRID, PLAIN),
    "transposed": lambda native: Transposed(native, GRID, RIGHT),
    "misread": lambda native: Misread(native, GRID, RIGHT),
    "baked": lambda native: Baked(native, GRID, RIGHT),
}


@pytest.fixture(scope="module")
def source() -> SourceModel:
    torch.set_num_threads(1)
    return lively(img_size=list(NATIVE), depth=1)


@pytest.fixture(scope="module")
def sizes(source: SourceModel) -> ResolutionRange:
    return range_of(source, (32, 32), (128, 128))


def graph_with(
    positions: Callable[[torch.Tensor], nn.Module] | None,
    source: SourceModel,
    sizes: ResolutionRange,
    monkeypatch: pytest.MonkeyPatch,
) -> bytes:
    """The graph of a module in which only the positions are made otherwise."""

    def planted(*_: object) -> nn.Module:
        module = make_dynamic(source, sizes)
        if positions is not None:
            native = source.module.get_parameter("pos_embed").detach()
            module.get_submodule("positions")[0] = positions(native)  # type: ignore[index]
        return module

    monkeypatch.setattr(tracing, "make_dynamic", planted)
    return files.serialize(trace_dynamic(source, sizes))


def test_the_right_positions_pass(
    source: SourceModel, sizes: ResolutionRange, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = graph_with(
        lambda native: AbsolutePositions(native, GRID, RIGHT), source, sizes, monkeypatch
    )
    assert verify_dynamic(graph, source, sizes).max_error < 3e-5


@pytest.mark.parametrize("defect", DEFECTS)
def test_wrong_positions_are_refused(
    defect: str, source: SourceModel, sizes: ResolutionRange, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = graph_with(DEFECTS[defect], source, sizes, monkeypatch)
    with pytest.raises(ExportError, match="differs from PyTorch"):
        verify_dynamic(graph, source, sizes)


def test_only_other_shapes_than_squares_show_a_transposed_grid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At square sizes asking for (columns, rows) is no mistake at all, so squares prove nothing."""
    square = lively(img_size=64, depth=1)
    sizes = range_of(square, (32, 32), (96, 96))

    graph = graph_with(lambda native: Transposed(native, (4, 4), RIGHT), square, sizes, monkeypatch)
    at_square = square.at((96, 96))
    inputs = torch.randn(8, 3, 96, 96, generator=torch.Generator().manual_seed(0)).numpy()
    assert verify(graph, at_square, inputs, real_images=False).max_error < 1e-4
    with pytest.raises(ExportError, match="at 32x96 the graph differs"):
        verify_dynamic(graph, square, sizes)
