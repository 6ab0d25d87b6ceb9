"""`OnnxModel`: a graph file that explains itself."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import onnx
from google.protobuf.message import DecodeError

from vitdeploy.artifacts.files import (
    file_digest,
    from_json,
    read_text,
    reading,
    require_file,
    to_json,
    write_text,
)
from vitdeploy.artifacts.source import SourceDescription
from vitdeploy.artifacts.strict import printable
from vitdeploy.errors import InputError

SCHEMA_VERSION = 1
METADATA_KEY = "vitdeploy"
_LONGEST_NAME_BYTES = 120

Precision = Literal["fp32", "fp16", "bf16", "int8-fp32", "int8-fp16", "fp8-fp32", "fp8-fp16"]
"""What is quantized, and what the rest computes in."""

InputFormat = Literal["float32-nchw", "uint8-nhwc"]
"""Normalized values, or the bytes of the fitted image (cast and normalized in the graph)."""

Output = Literal["logits", "probabilities", "features", "tokens"]
"""What the graph answers: (n, classes) twice, (n, width), or (n, tokens, width)."""


@dataclass(frozen=True)
class Verification:
    """How far the graph on ONNX Runtime was from its source on the same images.

    The source is PyTorch, or the file that a graph was adopted from.
    `max_error` is the largest logit difference over the deviation of the
    source's logits; `agreement` the share of images with the same top-1. Where
    ONNX Runtime's own rounding was beyond what is allowed, `runtime_error` is
    its error, and `max_error` that of ONNX's reference implementation there.
    """

    images: int
    batch_sizes: tuple[int, ...]
    max_error: float
    agreement: float
    real_images: bool
    runtime_error: float | None = None


@dataclass(frozen=True)
class Emulated:
    """How far a typed graph under emulation was from the same graph in float32.

    `cosine` is the smallest cosine of an output row, less the float32 rows'
    mean; `max_error` the largest
    difference over the deviation of the float32 outputs; `agreement` the share
    of rows with the same top-1.
    """

    cosine: float
    max_error: float
    agreement: float


@dataclass(frozen=True)
class Forecast:
    """What the typed graph will do on hardware that computes in its type: a span.

    `fused` rounds where a runtime's fused kernels end, `worst` after every
    operation. A forecast, never a measurement.
    """

    images: int
    real_images: bool
    fused: Emulated
    worst: Emulated


@dataclass(frozen=True)
class ResolutionRange:
    """Sizes a dynamic graph takes: every multiple of `step` from `low` to `high`, per side."""

    low: tuple[int, int]
    high: tuple[int, int]
    step: tuple[int, int]

    def __post_init__(self) -> None:
        for low, high, step in zip(self.low, self.high, self.step, strict=True):
            if not 1 <= low <= high or step < 1:
                raise InputError(
                    f"sizes {self.low} to {self.high} in steps of {self.step}",
                    hint="export it again",
                )

    def takes(self, size: tuple[int, int]) -> bool:
        return all(
            low <= side <= high and side % step == 0
            for side, low, high, step in zip(size, self.low, self.high, self.step, strict=True)
        )

    def in_words(self) -> str:
        """'224x224 to 512x512 in steps of 16'; of another step per side 'of 16x32'."""
        low, high = (f"{height}x{width}" for height, width in (self.low, self.high))
        height, width = self.step
        return f"{low} to {high} in steps of {height if height == width else f'{height}x{width}'}"


@dataclass(frozen=True)
class FallbackStep:
    """One point of the curve along which layers were taken back to float.

    `kept` counts the quantized nodes that were; the drop and its one-sided 95 %
    upper bound are in percentage points (None without labels), throughput was
    that of ONNX Runtime on the machine that searched. `held_out`: these images
    chose nothing.
    """

    kept: int
    images: int
    agreement: float
    drop_points: float | None
    drop_upper_points: float | None
    verdict: str
    images_per_second: float
    held_out: bool = False

    def in_words(self) -> str:
        drop = ""
        if self.drop_points is not None and self.drop_upper_points is not None:
            drop = f"drop {self.drop_points:+.2f} points (95 % bound {self.drop_upper_points:+.2f})"
        return (
            f"{self.kept} nodes back in float: {drop or 'drop not known'}, "
            f"agreement {self.agreement:.2%}, {self.images_per_second:.1f} images/s, "
            f"{self.verdict} on the {'held-out' if self.held_out else 'choosing'} half of "
            f"{self.images} images"
        )


@dataclass(frozen=True)
class Quantization:
    """How an INT8 graph came about: the calibration set, and a reason per node.

    `ranges` names the method behind each activation's range, `folded` the
    exponent with which outliers were moved out of a LayerNorm or a value
    projection, `bias_corrected` the layers whose mean error went into the bias,
    `fallback` the search for layers that had to stay in float.
    """

    method: str
    images: int
    image_digests: tuple[str, ...]
    quantized: tuple[str, ...]
    kept: dict[str, str]
    ranges: dict[str, str] = field(default_factory=dict)
    folded: dict[str, float] = field(default_factory=dict)
    bias_corrected: tuple[str, ...] = ()
    fallback: tuple[FallbackStep, ...] = ()


@dataclass(frozen=True)
class ModelDescription:
    """All that is known about a graph; stands in its metadata under 'vitdeploy'.

    `positions` says how the source's positions came to this resolution;
    `kept_float32` names the nodes of a half-precision graph that compute in
    float32, with the reason. A graph with `resolution_range` takes other sizes
    than `resolution`, its best one.
    """

    source: SourceDescription
    resolution: tuple[int, int]
    precision: Precision
    opset: int
    input_name: str
    output_name: str
    passes: tuple[str, ...] = ()
    parent_digest: str = ""
    verification: Verification | None = None
    quantization: Quantization | None = None
    positions: str = ""
    resolution_range: ResolutionRange | None = None
    input_format: InputFormat = "float32-nchw"
    output: Output = "logits"
    kept_float32: dict[str, str] = field(default_factory=dict)
    forecast: Forecast | None = None
    producer: str = ""
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        if min(*self.resolution, self.opset) < 1:
            raise InputError(
                f"resolution is {self.resolution} and opset {self.opset}", hint="export it again"
            )

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of one image."""
        return (self.source.in_chans, *self.resolution)

    def at(self, size: tuple[int, int] | None) -> ModelDescription:
        """The same graph run at another of its sizes; None leaves it at `resolution`.

        Raises InputError for a size that it does not take.
        """
        if size is None or size == self.resolution:
            return self
        asked = f"{size[0]}x{size[1]}"
        if self.resolution_range is None:
            raise InputError(
                f"the graph takes {self.resolution[0]}x{self.resolution[1]} only, not {asked}",
                hint="leave --res out, or export it at that size or for a range (--dynamic-res)",
            )
        if not self.resolution_range.takes(size):
            raise InputError(
                f"the graph takes {self.resolution_range.in_words()}, not {asked}",
                hint="name one of these sizes",
            )
        return replace(self, resolution=size)


@dataclass(frozen=True)
class OnnxModel:
    """An ONNX file with its digest and description."""

    path: Path
    digest: str
    description: ModelDescription

    def at(self, size: tuple[int, int] | None) -> OnnxModel:
        """As `ModelDescription.at`."""
        return replace(self, description=self.description.at(size))

    @property
    def size_bytes(self) -> int:
        """The graph file, and the weights beside it where it has such."""
        beside = external_data_path(self.path)
        return self.path.stat().st_size + (beside.stat().st_size if beside.is_file() else 0)


@dataclass(frozen=True)
class _Sidecar:
    file: str
    digest: str
    description: ModelDescription
    schema_version: int = SCHEMA_VERSION
    kind: str = "onnx"


def stem_of(description: ModelDescription, recipe_digest: str) -> str:
    """'<model>_<H>x<W>_<precision>-<short digest>', the name all artifacts of a recipe share.

    A range of sizes is written '224-512x224-512'. Long names are cut: file
    systems take 255 bytes, and the digest tells models apart.
    """
    height, width = map(str, description.resolution)
    sizes = description.resolution_range
    if sizes is not None:
        height, width = (f"{low}-{high}" for low, high in zip(sizes.low, sizes.high, strict=True))
    name = "".join(c if c.isalnum() or c in "-_" else "-" for c in description.source.name)
    name = name.encode()[:_LONGEST_NAME_BYTES].decode(errors="ignore")
    return f"{name}_{height}x{width}_{description.precision}-{recipe_digest[:8]}"


def recipe_digest(description: ModelDescription) -> str:
    """Digest of all that decides what the file holds: weights, classes, size, precision, parent."""
    source = description.source
    parts = (
        source.name,
        source.weights_digest,
        source.preprocessing.digest,
        source.labels,
        source.task,
        description.resolution,
        description.precision,
        description.opset,
        description.passes,
        description.parent_digest,
        description.resolution_range,
        description.input_format,
        description.output,
        description.output_name,
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def write_sidecar(model: OnnxModel) -> None:
    """Write '<same>.json' beside the graph, so that folders can be searched quickly."""
    sidecar = _Sidecar(printable(model.path.name), model.digest, model.description)
    write_text(model.path.with_suffix(".json"), to_json(sidecar))


def read_onnx_model(path: Path) -> OnnxModel:
    """Read a graph that vitdeploy wrote.

    Raises InputError for a missing file, one that is no ONNX graph, one
    without inputs and outputs, and one without vitdeploy's description.
    """
    proto = load_proto(path)
    return OnnxModel(
        path, graph_digest(path, external_locations(proto)), _description_in(proto, path)
    )


def read_description(path: Path) -> ModelDescription:
    """What a graph says of itself; its weights are not looked into. Raises as `read_onnx_model`."""
    return _description_in(load_proto(path), path)


def read_sidecar(graph: Path) -> ModelDescription:
    """What stands beside a graph. Raises InputError where that is missing or damaged."""
    beside = graph.with_suffix(".json")
    return from_json(read_text(beside, what="sidecar"), _Sidecar, origin=str(beside)).description


def _description_in(proto: Any, path: Path) -> ModelDescription:
    metadata = {entry.key: entry.value for entry in proto.metadata_props}
    if METADATA_KEY not in metadata:
        raise InputError(
            f"{path} does not describe itself",
            hint="take it in with `vitdeploy adopt`, or export it with `vitdeploy export`: "
            "preprocessing and labels travel along",
        )
    return from_json(metadata[METADATA_KEY], ModelDescription, origin=str(path))


def external_data_path(graph: Path) -> Path:
    """Where the weights of a graph too large for one file stand."""
    return graph.with_name(f"{graph.name}.data")


def external_locations(proto: Any) -> tuple[str, ...]:
    """The files beside a graph in which it keeps weights, by the names it has for them."""
    return tuple(
        sorted(
            {
                entry.value
                for tensor in proto.graph.initializer
                for entry in tensor.external_data
                if entry.key == "location"
            }
        )
    )


def graph_digest(path: Path, locations: Sequence[str]) -> str:
    """sha256 of the graph file, and of the weights in `locations` beside it where it has such.

    Raises InputError where the weights are named but missing.
    """
    if not locations:
        return file_digest(path)
    digests = [file_digest(path)]
    for location in locations:
        beside = path.parent / location
        if Path(location).name != location or not beside.is_file():
            raise InputError(
                f"{path} keeps its weights in {location}, which is not beside it",
                hint=f"copy {Path(location).name} into the same folder",
            )
        digests.append(file_digest(beside))
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def load_proto(path: Path) -> Any:
    """The graph without its external data. Raises InputError where it is none."""
    require_file(path, what="ONNX model")
    try:
        with reading(path, "ONNX model"):
            proto = onnx.load(str(path), load_external_data=False)
    except (DecodeError, ValueError, UnicodeDecodeError) as error:
        raise _not_a_graph(path) from error
    if not proto.graph.input or not proto.graph.output:
        raise _not_a_graph(path)
    return proto


def with_description(model: OnnxModel, **changes: Any) -> ModelDescription:
    """The description of a graph made from `model`, naming it as its parent."""
    return replace(model.description, parent_digest=model.digest, **changes)


def _not_a_graph(path: Path) -> InputError:
    return InputError(
        f"{path} is not an ONNX graph, or is cut short",
        hint="give the .onnx file that `vitdeploy export` wrote",
    )
