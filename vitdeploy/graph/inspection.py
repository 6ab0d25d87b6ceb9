"""Reading a graph file to look at it: `vitdeploy inspect` as a function."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from vitdeploy.artifacts.files import from_json
from vitdeploy.artifacts.onnx_model import (
    METADATA_KEY,
    ModelDescription,
    external_locations,
    graph_digest,
    load_proto,
)
from vitdeploy.artifacts.source import description_in
from vitdeploy.errors import InputError
from vitdeploy.graph.positions import (
    PositionGrid,
    positions_in,
    positions_in_checkpoint,
)
from vitdeploy.graph.shapes import Shapes
from vitdeploy.graph.similarity import PositionFigures
from vitdeploy.graph.skeleton import Skeleton, skeleton_of
from vitdeploy.graph.summary import (
    GraphSummary,
    ImageInput,
    Size,
    image_input,
    input_sizes,
    require_taken,
    shapes_at,
    summarize,
)
from vitdeploy.graph.work import products

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Inspection:
    """All that is known of a graph file.

    `description` is that of files that vitdeploy wrote. `digest` is empty
    where external data is not beside the file. `positions_problem` says why
    positions that are there are not shown.
    """

    file: str
    graph: GraphSummary
    description: ModelDescription | None = None
    digest: str = ""
    positions: PositionFigures | None = None
    positions_problem: str = ""
    schema_version: int = SCHEMA_VERSION
    kind: str = "inspection"


@dataclass(frozen=True)
class GraphFile:
    """A graph read at one size of its images."""

    path: Path
    description: ModelDescription | None
    digest: str
    skeleton: Skeleton
    image: ImageInput | None
    known: Shapes
    summary: GraphSummary

    @property
    def image_size(self) -> Size | None:
        """(height, width) the shapes were inferred at; None where that is not known."""
        shape = None if self.image is None else self.known.shapes.get(self.image.name)
        return None if self.image is None or not shape else self.image.size_in(shape)

    def share_of(self, names: Collection[str]) -> float | None:
        """The named nodes' part of all multiply-accumulates, 0 to 1; None where any is unknown."""
        macs = {product.name: product.macs for product in products(self.skeleton, self.known)}
        known = {name: count for name, count in macs.items() if count is not None}
        if len(known) < len(macs) or not sum(known.values()):
            return None
        return sum(count for name, count in known.items() if name in names) / sum(known.values())

    def positions(self) -> PositionGrid | None:
        """The absolute positions the graph adds at this size; None where it adds none."""
        size = self.image_size
        return None if size is None else positions_in(self.skeleton, self.known, size)

    def native_positions(self) -> PositionGrid | None:
        """The positions a dynamic graph adds at its source's own size.

        There resampling changes nothing, so these are the trained ones. None
        in graphs of one size, and where this is that size already.
        """
        if self.description is None or self.description.resolution_range is None:
            return None
        native = self.description.source.native_resolution
        if native == self.image_size:
            return None
        sizes = input_sizes(self.skeleton, self.image, self.description, native)
        return positions_in(self.skeleton, shapes_at(self.skeleton, sizes), native)


def read_graph(path: Path, *, resolution: Size | None = None) -> GraphFile:
    """Read an ONNX file without its external data and without running it.

    A graph of dynamic size is looked at with images of `resolution`, else of
    the best one it names. Raises InputError for what is no ONNX graph, a
    description this version does not read, and a size the graph does not take.
    """
    proto = load_proto(path)
    text = next((e.value for e in proto.metadata_props if e.key == METADATA_KEY), None)
    description = None if text is None else from_json(text, ModelDescription, origin=str(path))
    skeleton = skeleton_of(proto, path.parent)
    image = image_input(skeleton, description)
    if resolution is not None and image is not None:
        require_taken(image, description, resolution)
    sizes = input_sizes(skeleton, image, description, resolution)
    known = shapes_at(skeleton, sizes)
    summary = summarize(path, proto, skeleton, known, image)
    # Without its weights beside it a graph has no digest, and can be looked at all the same.
    whole = all(
        file.size_bytes is not None and Path(file.location).name == file.location
        for file in summary.external
    )
    digest = graph_digest(path, external_locations(proto)) if whole else ""
    return GraphFile(path, description, digest, skeleton, image, known, summary)


def compared_positions(graph: GraphFile, after: PositionGrid, other: Path) -> PositionGrid:
    """The positions in `other`, a checkpoint or a graph, that `after` was resampled from.

    Raises InputError where `other` holds none that fit.
    """
    if other.suffix == ".safetensors":
        description = description_in(other) or graph.description
        source = description.source if isinstance(description, ModelDescription) else description
        native = None if source is None else source.native_resolution
        return positions_in_checkpoint(other, after, native)
    if other.suffix != ".onnx":
        raise InputError(
            f"{other} is neither a graph nor a safetensors file",
            hint="compare with the .safetensors checkpoint or with another .onnx file",
        )
    found = read_graph(other).positions()
    if found is None:
        raise InputError(
            f"{other} adds no absolute positions", hint="compare with a graph of the same model"
        )
    return found


def native_grid(
    graph: GraphFile, after: PositionGrid, checkpoint: Path | None
) -> tuple[PositionGrid | None, str]:
    """The grid that `after` was resampled from, and where it was found; None where nowhere is.

    A dynamic graph holds it; of others it is in the checkpoint.
    """
    native = graph.native_positions()
    if native is not None:
        return native, "the same graph at its source's size"
    if checkpoint is None:
        return None, ""
    return compared_positions(graph, after, checkpoint), checkpoint.name


def inspection_of(
    graph: GraphFile, figures: PositionFigures | None = None, *, positions_problem: str = ""
) -> Inspection:
    """The record of a graph file."""
    return Inspection(
        file=graph.path.name,
        graph=graph.summary,
        description=graph.description,
        digest=graph.digest,
        positions=figures,
        positions_problem=positions_problem,
    )
