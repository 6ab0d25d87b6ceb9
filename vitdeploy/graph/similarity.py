"""How alike the position embeddings of a grid are, before and after resampling.

The picture is that of Dosovitskiy et al. 2021 (An Image is Worth 16x16 Words,
figure 7): for one token each, the cosine similarity with all others.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vitdeploy.artifacts.files import atomic_path
from vitdeploy.errors import InputError, MissingDependencyError
from vitdeploy.graph.positions import PositionGrid

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PICTURE_SUFFIXES = (".png", ".svg", ".pdf")
_MOST_TOKENS_DRAWN = 12
"""Per side: a token's own map stays large enough to be seen."""


@dataclass(frozen=True)
class GridFigures:
    """`neighbour_cosine`: mean cosine similarity of tokens side by side or one above the other;
    near 1 where positions change smoothly over the image."""

    name: str
    rows: int
    columns: int
    width: int
    prefix_tokens: int
    neighbour_cosine: float


@dataclass(frozen=True)
class PositionFigures:
    """The grid of the graph and, where it was compared, the one it was resampled from.

    `kept_cosine` and `least_kept_cosine` are the mean and the least cosine
    similarity of both grids' vectors at the same places of the image, on the
    coarser grid of the two. A grid resampled in the wrong order of rows and
    columns has neither near 1.
    """

    after: GridFigures
    before: GridFigures | None = None
    before_from: str = ""
    kept_cosine: float | None = None
    least_kept_cosine: float | None = None


def position_figures(
    after: PositionGrid, before: PositionGrid | None = None, *, before_from: str = ""
) -> PositionFigures:
    """The figures of one grid or two."""
    if before is None:
        return PositionFigures(_figures(after))
    kept = kept_cosines(before, after)
    return PositionFigures(
        _figures(after), _figures(before), before_from, float(kept.mean()), float(kept.min())
    )


def similarity(
    grid: PositionGrid, rows: Sequence[int], columns: Sequence[int]
) -> NDArray[np.float32]:
    """Maps of the tokens in `rows` and `columns`: [i, j] is that of token (rows[i], columns[j]).

    Seven rows and five columns of a 14x10 grid give (7, 5, 14, 10) cosines.
    """
    units = _units(grid.vectors)
    chosen = units[np.ix_(rows, columns)]
    return np.einsum("ijw,rcw->ijrc", chosen, units, optimize=True)


def kept_cosines(before: PositionGrid, after: PositionGrid) -> NDArray[np.float32]:
    """Cosine similarity of both grids at the same places, on the coarser sides of the two.

    Raises InputError where the embeddings have different widths.
    """
    if before.vectors.shape[2] != after.vectors.shape[2]:
        raise InputError(
            f"{before.name} has width {before.vectors.shape[2]} and {after.name} "
            f"{after.vectors.shape[2]}: they are of different models",
            hint="compare with the checkpoint or graph that this graph was made from",
        )
    size = (min(before.size[0], after.size[0]), min(before.size[1], after.size[1]))
    first, second = (_units(_resampled(grid.vectors, size)) for grid in (before, after))
    return (first * second).sum(-1)


def draw(path: Path, after: PositionGrid, before: PositionGrid | None, *, title: str) -> None:
    """Draw the similarity maps, native grid left and the graph's right, as PNG, SVG or PDF.

    Both show tokens at the same places of the image, evenly spread where a
    grid has more than can be seen.

    Raises InputError for another kind of file, MissingDependencyError
    without matplotlib.
    """
    if path.suffix.lower() not in PICTURE_SUFFIXES:
        raise InputError(
            f"{path} is no picture", hint=f"end its name in {', '.join(PICTURE_SUFFIXES)}"
        )
    drawn = picture(after, before, title=title, suffix=path.suffix.lower())
    with atomic_path(path) as temporary:
        temporary.write_bytes(drawn)


def picture(
    after: PositionGrid,
    before: PositionGrid | None,
    *,
    title: str,
    suffix: str = ".png",
    dots_per_inch: int = 160,
) -> bytes:
    """What `draw` writes. Raises MissingDependencyError without matplotlib."""
    try:
        import matplotlib
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            "drawing positions needs matplotlib, which is not installed",
            hint="pip install 'vitdeploy[report]'",
        ) from error
    # Names hold dollar signs and underscores, and an SVG's ids are random without a salt.
    style: dict[Any, Any] = {
        "svg.hashsalt": "vitdeploy",
        "svg.fonttype": "none",
        "text.parse_math": False,
    }
    drawn = io.BytesIO()
    with matplotlib.rc_context(style):
        _figure(after, before, title).savefig(
            drawn, format=suffix[1:], dpi=dots_per_inch, metadata=_undated(suffix)
        )
    return drawn.getvalue()


def _figure(after: PositionGrid, before: PositionGrid | None, title: str) -> Figure:
    from matplotlib.figure import Figure

    grids = [grid for grid in (before, after) if grid is not None]
    shown = tuple(min(_MOST_TOKENS_DRAWN, *(grid.size[side] for grid in grids)) for side in (0, 1))
    figure = Figure(figsize=(5.4 * len(grids) + 0.9, 5.8), layout="constrained")
    panels: Any = figure.subplots(1, len(grids), squeeze=False)[0]
    drawn = [
        _panel(axes, grid, (shown[0], shown[1])) for axes, grid in zip(panels, grids, strict=True)
    ]
    if len(grids) == 2:
        panels[0].set_title(f"before: {_words(grids[0])}", fontsize=10)
        panels[1].set_title(f"after: {_words(grids[1])}", fontsize=10)
    else:
        panels[0].set_title(_words(grids[0]), fontsize=10)
    figure.suptitle(title, fontsize=11)
    figure.colorbar(drawn[-1], ax=list(panels), shrink=0.8, label="cosine similarity")
    return figure


def mosaic(grid: PositionGrid, shown: tuple[int, int]) -> NDArray[np.float32]:
    """The maps of `shown` tokens, evenly spread, as one image with gaps of NaN between them.

    A 14x14 grid with 7x7 tokens shown becomes 7 * 15 - 1 pixels a side; the map
    of the token in row r and column c stands in row r and column c of the maps.
    """
    rows, columns = grid.size
    lines, places = _spread(rows, shown[0]), _spread(columns, shown[1])
    maps = similarity(grid, lines, places)
    image = np.full((shown[0], rows + 1, shown[1], columns + 1), np.nan, np.float32)
    image[:, :rows, :, :columns] = maps.transpose(0, 2, 1, 3)
    return image.reshape(shown[0] * (rows + 1), shown[1] * (columns + 1))[:-1, :-1]


def _panel(axes: Axes, grid: PositionGrid, shown: tuple[int, int]) -> Any:
    drawn = axes.imshow(mosaic(grid, shown), vmin=-1, vmax=1, cmap="viridis", aspect="auto")
    rows, columns = grid.size
    lines, places = _spread(rows, shown[0]), _spread(columns, shown[1])
    down = [(rows + 1) * i + (rows - 1) / 2 for i in range(shown[0])]
    across = [(columns + 1) * i + (columns - 1) / 2 for i in range(shown[1])]
    axes.set_yticks(down, [str(line) for line in lines])
    axes.set_xticks(across, [str(place) for place in places])
    axes.tick_params(length=0, labelsize=7)
    axes.set_ylabel("row of the token")
    axes.set_xlabel("column of the token")
    axes.spines[:].set_visible(False)
    axes.set_box_aspect(rows / columns)
    return drawn


def _words(grid: PositionGrid) -> str:
    return f"{grid.name}, {grid.size[0]}x{grid.size[1]}"


def _spread(count: int, shown: int) -> list[int]:
    """`shown` of `count` places, evenly over the image: 14 and 7 give 1, 3, 5, ..., 13."""
    return [int((index + 0.5) * count / shown) for index in range(shown)]


def _undated(suffix: str) -> dict[str, None]:
    """Metadata without which the same grids give the same bytes."""
    dates = {".png": "Software", ".svg": "Date", ".pdf": "CreationDate"}
    return {dates[suffix]: None}


def _figures(grid: PositionGrid) -> GridFigures:
    units = _units(grid.vectors)
    across = (units[:, 1:] * units[:, :-1]).sum(-1)
    down = (units[1:] * units[:-1]).sum(-1)
    pairs = np.concatenate([across.ravel(), down.ravel()])
    rows, columns = grid.size
    return GridFigures(
        grid.name,
        rows,
        columns,
        grid.vectors.shape[2],
        grid.prefix_tokens,
        float(pairs.mean()) if pairs.size else 1.0,
    )


def _units(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Vectors of length one; a vector of zeros stays zero and is like no other."""
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=-1, keepdims=True)
    return (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)


def _resampled(vectors: NDArray[np.float32], size: tuple[int, int]) -> NDArray[np.float32]:
    rows = _averaging(vectors.shape[0], size[0])
    columns = _averaging(vectors.shape[1], size[1])
    return np.einsum("ar,bc,rcw->abw", rows, columns, vectors, optimize=True)


def _averaging(count: int, wanted: int) -> NDArray[np.float32]:
    """(wanted, count) weights, linear between places and wide enough to average when shrinking."""
    if count == wanted:
        return np.eye(count, dtype=np.float32)
    scale = count / wanted
    centres = (np.arange(wanted) + 0.5) * scale - 0.5
    distance = np.abs(np.arange(count)[None, :] - centres[:, None]) / max(scale, 1.0)
    weights = np.clip(1 - distance, 0, None)
    return (weights / weights.sum(1, keepdims=True)).astype(np.float32)
