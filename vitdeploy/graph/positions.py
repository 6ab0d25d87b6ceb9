"""Absolute position embeddings: where they are in a graph or a checkpoint, laid out as a grid.

The embedding is recognised by what it does, not by its name: it is the first
constant that is added to the tokens and differs from token to token. Relative
and rotary positions are no such constant and are not found.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from vitdeploy.errors import InputError, MissingDependencyError
from vitdeploy.graph.shapes import Shape, Shapes, evaluate, shape_value
from vitdeploy.graph.skeleton import Skeleton
from vitdeploy.graph.work import image_independent

Size = tuple[int, int]

_MOST_PREFIX_TOKENS = 64
_GRID_OPERATORS = frozenset(("AveragePool", "Conv", "MaxPool", "Resize"))
_NAMES = re.compile(r"(?<!rel_)(?<!relative_)(pos_embed|position_embedding|positional_embedding)")


@dataclass(frozen=True)
class PositionGrid:
    """One vector per image token: `vectors` is (rows, columns, width) float32.

    The 14x14 grid of a ViT-B/16 at 224 is (14, 14, 768); its class token is
    one of `prefix_tokens`, which have no place on the grid and are left out.
    """

    name: str
    vectors: NDArray[np.float32]
    prefix_tokens: int = 0

    @property
    def size(self) -> Size:
        return (self.vectors.shape[0], self.vectors.shape[1])


@dataclass(frozen=True)
class _Found:
    """The value added to the tokens, and the grid its tokens lie on where the graph shows it."""

    value: str
    shape: Shape
    grid: Size | None


def positions_in(skeleton: Skeleton, known: Shapes, image_size: Size) -> PositionGrid | None:
    """The grid that the graph adds to its tokens at this size; None where it adds none.

    Works for a constant and for one that the graph resamples from the image's
    size. Raises InputError where its values or its layout cannot be read.
    """
    found = _find(skeleton, known)
    if found is None:
        return None
    name = _name(skeleton, found.value)
    values = _values(skeleton, known, found.value)
    if not np.isfinite(values).all():
        raise InputError(
            f"{name} holds values that are not finite", hint="check the weights it was made from"
        )
    return _laid_out(name, values, found.grid, image_size)


def positions_in_checkpoint(path: Path, after: PositionGrid, native: Size | None) -> PositionGrid:
    """The grid in a safetensors file, of the width and prefix tokens of `after`.

    `native` is the (height, width) in pixels of the checkpoint's images where
    that is known; without it the grid must be square.

    Raises InputError where the file holds no such tensor, or several.
    """
    try:
        from safetensors import SafetensorError, safe_open
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            "reading a checkpoint needs safetensors, which is not installed",
            hint="pip install safetensors",
        ) from error
    try:
        with safe_open(str(path), framework="np") as checkpoint:
            names = [name for name in checkpoint.keys() if _NAMES.search(name)]  # noqa: SIM118
            arrays = {name: np.asarray(checkpoint.get_tensor(name), np.float32) for name in names}
    except (SafetensorError, OSError, TypeError) as error:
        raise InputError(
            f"checkpoint {path} cannot be read: {str(error).splitlines()[0]}",
            hint="give a .safetensors file, or the .onnx file of the native resolution",
        ) from error
    width = after.vectors.shape[2]
    fitting = {
        name: array for name, array in arrays.items() if array.ndim >= 2 and width in array.shape
    }
    if len(fitting) != 1:
        there = ", ".join(sorted(fitting)) or "none"
        raise InputError(
            f"{path} should hold one position embedding of width {width}, found: {there}",
            hint="give the checkpoint of this very model, or an .onnx file of it",
        )
    ((name, array),) = fitting.items()
    return _with_aspect(name, array, after, native or (1, 1))


def _find(skeleton: Skeleton, known: Shapes) -> _Found | None:
    """Follow the tokens from the image and stop at the first constant of their size added.

    Products of two activations end the walk: what is added to attention
    scores is a bias between tokens, not a position.
    """
    fixed = image_independent(skeleton)
    tokens: dict[str, Size | None] = {value.name: None for value in skeleton.inputs}
    for node in skeleton.proto.graph.node:
        moving = [name for name in node.input if name in tokens]
        if not moving or node.op_type in ("Shape", "Softmax"):
            continue
        if node.op_type in ("MatMul", "Einsum") and not fixed.intersection(node.input):
            continue
        grid = next((tokens[name] for name in moving if tokens[name] is not None), None)
        if node.op_type == "Add":
            for other in node.input:
                shape = known.shapes.get(other, ())
                if other in fixed and _per_token(shape, known.shapes.get(moving[0], ())):
                    return _Found(other, shape, grid)
        output = known.shapes.get(node.output[0], ())
        if node.op_type in _GRID_OPERATORS and len(output) == 4:
            grid = (output[2], output[3])
        for name in node.output:
            tokens[name] = grid
    return None


def _per_token(added: Shape, tokens: Shape) -> bool:
    """(1, 197, 768) or (1, 64, 27, 27) on tokens of the same shape; not (768,) or (1, 1, 768)."""
    inner = tuple(side for side in added if side > 1)
    return len(inner) >= 2 and inner == tuple(side for side in tokens[1:] if side > 1)


def _name(skeleton: Skeleton, value: str) -> str:
    """The name of the constant itself; of computed positions, that of the largest one behind."""
    if value in skeleton.weights:
        return value
    names = {name for node in _ancestors(skeleton, value) for name in node.input}
    sizes = {name: math.prod(skeleton.weights[name].dims) for name in names & {*skeleton.weights}}
    largest = max(sizes, key=lambda name: (sizes[name], name), default="")
    return largest if _NAMES.search(largest) else "positions computed in the graph"


def _ancestors(skeleton: Skeleton, value: str) -> list[onnx.NodeProto]:
    """The nodes that make `value`, in order, Shape nodes without what stands before them."""
    wanted, found = {value}, []
    for node in reversed(skeleton.proto.graph.node):
        if wanted.intersection(node.output):
            found.append(node)
            if node.op_type != "Shape":
                wanted.update(node.input)
    return found[::-1]


def _values(skeleton: Skeleton, known: Shapes, value: str) -> NDArray[np.float32]:
    if value in skeleton.weights:
        return skeleton.array(value).astype(np.float32)
    given: dict[str, NDArray] = {}
    nodes = []
    for node in _ancestors(skeleton, value):
        if node.op_type == "Shape" and node.input[0] in known.shapes:
            given[node.output[0]] = shape_value(node, known.shapes[node.input[0]])
            continue
        nodes.append(node)
        given.update({n: skeleton.array(n) for n in node.input if n in skeleton.weights})
    result = evaluate(nodes, skeleton.proto, given, value)
    if result is None:
        raise InputError(
            f"the positions {value} are made in a way that cannot be evaluated here",
            hint="the rest of the file can be inspected without --positions",
        )
    return result.astype(np.float32)


def _laid_out(
    name: str, values: NDArray[np.float32], grid: Size | None, image: Size
) -> PositionGrid:
    """Tokens in reading order, after any prefix, onto the grid."""
    array: NDArray[np.float32] = _squeezed(values)
    if array.ndim == 3:
        if grid is not None and array.shape[1:] == grid and array.shape[:2] != grid:
            array = array.transpose(1, 2, 0)
        return PositionGrid(name, np.ascontiguousarray(array))
    count, width = array.shape
    for rows, columns in _grids(count, grid, image):
        prefix = count - rows * columns
        if 0 <= prefix <= _MOST_PREFIX_TOKENS:
            return PositionGrid(name, array[prefix:].reshape(rows, columns, width), prefix)
    raise _no_layout(name, count)


def _grids(count: int, grid: Size | None, image: Size) -> Iterator[Size]:
    """The convolution's grid, then those of square patches, smallest patches first.

    227 tokens of a 240x240 image: patches of 15 fit with 16x16 = 256 > 227 no
    more, those of 16 make 15x15 = 225 and leave two prefix tokens.
    """
    if grid is not None:
        yield grid
    for patch in range(1, min(image) + 1):
        rows, columns = image[0] // patch, image[1] // patch
        if image[0] % patch == 0 and image[1] % patch == 0 and rows * columns <= count:
            yield rows, columns


def _with_aspect(name: str, array: NDArray, after: PositionGrid, native: Size) -> PositionGrid:
    """Stored tokens onto a grid of the native image's aspect, prefix as in `after` or without."""
    width = after.vectors.shape[2]
    values: NDArray[np.float32] = _squeezed(array.astype(np.float32))
    if values.ndim == 3:
        by_row = values if values.shape[2] == width else values.transpose(1, 2, 0)
        return PositionGrid(name, np.ascontiguousarray(by_row))
    if values.ndim == 2 and values.shape[1] == width:
        for prefix in (after.prefix_tokens, 0):
            count = len(values) - prefix
            rows = math.isqrt(max(0, count) * native[0] // native[1])
            if rows and count % rows == 0 and rows * native[1] == count // rows * native[0]:
                grid = values[prefix:].reshape(rows, count // rows, width)
                return PositionGrid(name, grid, prefix)
    raise _no_layout(name, len(values))


def _squeezed(array: NDArray[np.float32]) -> NDArray[np.float32]:
    return array.reshape([side for side in array.shape if side > 1])


def _no_layout(name: str, count: int) -> InputError:
    return InputError(
        f"{name} holds {count} positions, which fit no grid of image tokens",
        hint="compare with an .onnx file of the native resolution: its grid can be followed",
    )
