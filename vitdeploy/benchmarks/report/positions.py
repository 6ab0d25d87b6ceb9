"""The position embeddings of the reported graph, beside those they were resampled from."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from vitdeploy.artifacts.lookup import made_from
from vitdeploy.artifacts.onnx_model import ModelDescription, read_description
from vitdeploy.errors import InputError, MissingDependencyError, VitDeployError
from vitdeploy.graph.inspection import native_grid, read_graph
from vitdeploy.graph.similarity import PositionFigures, picture, position_figures

PNG = "data:image/png;base64,"
ABOUT_POSITIONS = (
    "A cosine near 1 means that resampling kept what tells one place of the image from another. It "
    "says nothing of the accuracy at this size: only evaluating there does."
)
_DOTS_PER_INCH = 80
"""A picture of two 24x24 grids is then some 60 kB."""


@dataclass(frozen=True)
class ReportedPositions:
    """`picture` is a PNG data URI of the similarity maps, empty without matplotlib.

    Raises InputError for any other URI: a report fetches nothing.
    """

    figures: PositionFigures
    picture: str = ""

    def __post_init__(self) -> None:
        if self.picture and not self.picture.startswith(PNG):
            raise InputError(
                "the picture of positions is not embedded", hint=f"begin it with {PNG}"
            )

    def in_words(self) -> str:
        """'14x14 to 24x24; their cosine at the same places of the image is 0.98, ...'."""
        figures = self.figures
        after, before = figures.after, figures.before
        now = f"{after.rows}x{after.columns}"
        if before is None:
            return f"{now}, neighbours' cosine {after.neighbour_cosine:.2f}"
        return (
            f"{before.rows}x{before.columns} to {now}; their cosine at the same places of the "
            f"image is {figures.kept_cosine:.3f}, at least {figures.least_kept_cosine:.3f}"
        )


def reported_positions(
    path: Path, checkpoint: Path | None, note: Callable[[str], None]
) -> ReportedPositions | None:
    """Of a graph file, compared with the grid in `checkpoint` where that is known.

    None where the graph adds no absolute positions; `note` hears why positions
    that are there cannot be shown.
    """
    try:
        graph = read_graph(path)
        after = graph.positions()
        if after is None:
            return None
        before, origin = native_grid(graph, after, checkpoint)
        figures = position_figures(after, before, before_from=origin)
    except VitDeployError as error:
        note(f"positions are not shown: {error}")
        return None
    title = f"Position embeddings of {path.name}"
    try:
        drawn = picture(after, before, title=title, dots_per_inch=_DOTS_PER_INCH)
    except MissingDependencyError:
        return ReportedPositions(figures)
    return ReportedPositions(figures, PNG + base64.b64encode(drawn).decode("ascii"))


def graph_of(model: ModelDescription, folders: Sequence[Path]) -> Path | None:
    """The graph file of a model at its resolution, the float32 one where there are several."""
    digest = model.source.weights_digest
    for folder in folders:
        found = made_from(folder, "onnx", lambda graph: graph.source.weights_digest == digest)
        fitting = [path for path in found if _sizes(read_description(path)) == _sizes(model)]
        if fitting:
            return min(fitting, key=lambda path: read_description(path).precision != "fp32")
    return None


def _sizes(model: ModelDescription) -> tuple[object, ...]:
    """A graph of a range of sizes has one table of positions, whichever it is run at."""
    return (model.resolution_range or model.resolution,)
