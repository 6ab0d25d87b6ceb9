"""What a graph file holds: inputs, weights, work per image, operators; nothing is run.

Works on any ONNX file. What vitdeploy's own files say of themselves is in their
`ModelDescription`; this is what the graph itself shows.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import onnx
import onnx_ir as ir

from vitdeploy.artifacts.onnx_model import ModelDescription
from vitdeploy.errors import InputError
from vitdeploy.graph.shapes import Shape, Shapes, concrete_shapes
from vitdeploy.graph.skeleton import Skeleton
from vitdeploy.graph.work import Product, all_nodes, full_name, products, type_name

Size = tuple[int, int]

_NUMBERS_ONLY = ("bool", "int16", "int32", "int64", "string", "uint16", "uint32", "uint64")
"""Types of shapes, indices and masks: their constants are no parameters."""

_IMAGE_CHANNELS = (1, 3, 4)


@dataclass(frozen=True)
class Port:
    """An input or output. A dimension the caller chooses is its name, or '?' without one."""

    name: str
    type: str
    shape: tuple[int | str, ...]


@dataclass(frozen=True)
class StoredType:
    """The constants of one type."""

    tensors: int
    elements: int
    size_bytes: int


@dataclass(frozen=True)
class ExternalFile:
    """A second file that holds weights; `size_bytes` is None where it is missing."""

    location: str
    size_bytes: int | None


@dataclass(frozen=True)
class Operator:
    """How often an operator occurs, and what its products cost for one image.

    `types` counts its nodes by the type they multiply in, as
    {'int8': 48, 'float32': 24}; empty for operators that multiply nothing.
    """

    nodes: int
    macs: int
    types: dict[str, int]


@dataclass(frozen=True)
class Work:
    """Multiply-accumulates for one image at `input_shape`.

    `attention_macs` are of products whose factors both depend on the image;
    `by_type` splits the total by the type multiplied in. `uncounted` names
    operators whose shapes stay unknown at this size: with any, the total is
    a lower bound. `problem` says why nothing could be counted.
    """

    input_shape: Shape
    macs: int
    attention_macs: int
    by_type: dict[str, int]
    uncounted: dict[str, int]
    problem: str = ""


@dataclass(frozen=True)
class GraphSummary:
    """`parameters` are the elements of `constants` that a training run would know: floating
    point and quantized ones with at least one axis, without scales and zero points."""

    size_bytes: int
    external: tuple[ExternalFile, ...]
    ir_version: int
    opsets: dict[str, int]
    producer: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    parameters: int
    constants: dict[str, StoredType]
    operators: dict[str, Operator]
    work: Work


@dataclass(frozen=True)
class ImageInput:
    """Which input takes images, and which of its axes are height and width."""

    name: str
    shape: tuple[int | str, ...]
    axes: tuple[int, int]

    def size_in(self, shape: Shape) -> Size:
        return (shape[self.axes[0]], shape[self.axes[1]])


def summarize(
    path: Path,
    proto: onnx.ModelProto,
    skeleton: Skeleton,
    known: Shapes,
    image: ImageInput | None,
) -> GraphSummary:
    """Everything the graph shows, at the size that `known` was inferred at."""
    found = list(products(skeleton, known))
    names = [f"{proto.producer_name} {proto.producer_version}".strip()]
    return GraphSummary(
        size_bytes=path.stat().st_size,
        external=_external_files(skeleton),
        ir_version=proto.ir_version,
        opsets={entry.domain or "ai.onnx": entry.version for entry in proto.opset_import},
        producer=" ".join(names),
        inputs=tuple(_port(value) for value in skeleton.inputs),
        outputs=tuple(_port(value) for value in proto.graph.output),
        parameters=_parameters(skeleton),
        constants=_constants(skeleton),
        operators=_operators(skeleton, found),
        work=_work(found, known, image),
    )


def input_sizes(
    skeleton: Skeleton,
    image: ImageInput | None,
    description: ModelDescription | None,
    resolution: Size | None,
) -> dict[str, Shape]:
    """The inputs' shapes with one image of `resolution`, else of the graph's best one.

    An input that stays without a size (a foreign graph of unknown height) is
    left out.
    """
    sizes: dict[str, Shape] = {}
    names: dict[str, int] = {}
    if image is not None:
        shape = list(image.shape)
        size = resolution or (None if description is None else description.resolution)
        for axis, side in zip(image.axes, size or (), strict=False):
            if isinstance(shape[axis], str):
                names[str(image.shape[axis])] = side
                shape[axis] = side
        if isinstance(shape[0], str):
            names[str(shape[0])] = 1
            shape[0] = 1
        if all(isinstance(side, int) for side in shape):
            sizes[image.name] = tuple(int(side) for side in shape)
    names.pop("?", None)
    for port in map(_port, skeleton.inputs):
        filled = [
            1 if axis == 0 and isinstance(side, str) else names.get(str(side), side)
            for axis, side in enumerate(port.shape)
        ]
        if port.name not in sizes and all(isinstance(side, int) for side in filled):
            sizes[port.name] = tuple(int(side) for side in filled)
    return sizes


def image_input(skeleton: Skeleton, description: ModelDescription | None) -> ImageInput | None:
    """The input that takes images: the described one, else the first of four axes."""
    ports = [_port(value) for value in skeleton.inputs]
    named = None if description is None else description.input_name
    port = next((p for p in ports if p.name == named), None)
    port = port or next((p for p in ports if len(p.shape) == 4), None)
    if port is None or len(port.shape) != 4:
        return None
    last = port.shape[1] not in _IMAGE_CHANNELS and port.shape[3] in _IMAGE_CHANNELS
    if description is not None:
        last = description.input_format == "uint8-nhwc"
    return ImageInput(port.name, port.shape, (1, 2) if last else (2, 3))


def shapes_at(skeleton: Skeleton, sizes: dict[str, Shape]) -> Shapes:
    """All shapes at `sizes`; none, and the reason, where an input's size is not known."""
    missing = [value.name for value in skeleton.inputs if value.name not in sizes]
    if missing:
        return Shapes({}, {}, f"the size of input {', '.join(missing)} is not known: give --res")
    return concrete_shapes(skeleton, sizes)


def require_taken(
    image: ImageInput, description: ModelDescription | None, resolution: Size
) -> None:
    """Raise InputError where the graph does not take images of `resolution`."""
    asked = "x".join(map(str, resolution))
    fixed = [image.shape[axis] for axis in image.axes]
    for side, own in zip(resolution, fixed, strict=True):
        if isinstance(own, int) and own != side:
            raise InputError(
                f"the graph takes {'x'.join(map(str, fixed))} only, not {asked}",
                hint="leave --res out, or export the model at that size",
            )
    span = None if description is None else description.resolution_range
    if span is not None and not span.takes(resolution):
        raise InputError(f"the graph does not take {asked}", hint=f"it takes {span.in_words()}")


def _port(value: onnx.ValueInfoProto) -> Port:
    tensor = value.type.tensor_type
    dims = tuple(
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "?"
        for dim in tensor.shape.dim
    )
    return Port(value.name, type_name(tensor.elem_type), dims)


def _external_files(skeleton: Skeleton) -> tuple[ExternalFile, ...]:
    locations = {
        entry.value: None
        for tensor in skeleton.weights.values()
        if tensor.data_location == onnx.TensorProto.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "location"
    }
    return tuple(ExternalFile(name, _size_in(skeleton.folder, name)) for name in locations)


def _size_in(folder: Path, location: str) -> int | None:
    """The size of a file inside `folder`; what a graph names outside of it is not looked at."""
    inside = PurePosixPath(location)
    if inside.is_absolute() or ".." in inside.parts or "\0" in location:
        return None
    file = folder / location
    return file.stat().st_size if file.is_file() else None


def _parameters(skeleton: Skeleton) -> int:
    scales = {
        name
        for node in all_nodes(skeleton.proto.graph)
        if node.op_type in ("QuantizeLinear", "DequantizeLinear")
        for name in node.input[1:]
    }
    return sum(
        math.prod(tensor.dims)
        for name, tensor in skeleton.weights.items()
        if name not in scales and tensor.dims and type_name(tensor.data_type) not in _NUMBERS_ONLY
    )


def _constants(skeleton: Skeleton) -> dict[str, StoredType]:
    found: dict[str, list[int]] = {}
    for tensor in skeleton.weights.values():
        name = type_name(tensor.data_type)
        totals = found.setdefault(name, [0, 0, 0])
        elements = math.prod(tensor.dims)
        totals[0] += 1
        totals[1] += elements
        totals[2] += _stored_bytes(name, tensor, elements)
    return {name: StoredType(*found[name]) for name in sorted(found, key=lambda n: -found[n][2])}


def _stored_bytes(name: str, tensor: onnx.TensorProto, elements: int) -> int:
    if name == "string":
        return sum(map(len, tensor.string_data))
    if tensor.data_type not in {kind.value for kind in ir.DataType} or not tensor.data_type:
        return len(tensor.raw_data)
    return math.ceil(elements * ir.DataType(tensor.data_type).itemsize)


def _operators(skeleton: Skeleton, found: list[Product]) -> dict[str, Operator]:
    nodes = Counter(full_name(node) for node in all_nodes(skeleton.proto.graph))
    macs: Counter[str] = Counter()
    types: dict[str, Counter[str]] = {}
    for product in found:
        macs[product.op_type] += product.macs or 0
        if product.computes:
            types.setdefault(product.op_type, Counter())[product.computes] += 1
    ordered = sorted(nodes, key=lambda name: (-macs[name], -nodes[name], name))
    return {name: Operator(nodes[name], macs[name], dict(types.get(name, {}))) for name in ordered}


def _work(found: list[Product], known: Shapes, image: ImageInput | None) -> Work:
    shape = () if image is None else known.shapes.get(image.name, ())
    # A graph with a fixed batch does that many images at a time.
    batch = max(1, shape[0]) if shape else 1
    by_type: Counter[str] = Counter()
    uncounted: Counter[str] = Counter()
    for product in found:
        if product.macs is None:
            uncounted[product.op_type] += 1
        else:
            by_type[product.computes] += product.macs
    attention = sum(product.macs or 0 for product in found if product.is_attention)
    return Work(
        input_shape=shape,
        macs=by_type.total() // batch,
        attention_macs=attention // batch,
        by_type={name: macs // batch for name, macs in by_type.most_common()},
        uncounted=dict(uncounted),
        problem=known.problem,
    )
