"""Which axis of each value holds the images, in a graph traced with a fixed batch."""

from __future__ import annotations

import math
from collections.abc import Callable

import onnx_ir as ir

from vitdeploy.errors import ExportError
from vitdeploy.graph.rounding import POINTWISE

Axes = dict[ir.Value, int]
"""The axis of a value along which images follow one another; a value without images is left out."""

_ELEMENTWISE = POINTWISE | frozenset(
    """And Cast CastLike Clip Dropout Equal Greater GreaterOrEqual Identity IsInf IsNaN
    LayerNormalization Less LessOrEqual LogSoftmax LpNormalization Not Or RMSNormalization
    Softmax Where""".split()  # noqa: SIM905
)
"""Aligned from the last axis; one with an `axis` works along it and keeps the others."""

_IMAGES_FIRST = frozenset(
    """Attention AveragePool Conv ConvTranspose DepthToSpace Gemm GlobalAveragePool GlobalMaxPool
    GroupNormalization InstanceNormalization LRN MaxPool SpaceToDepth""".split()  # noqa: SIM905
)


def batch_axis_behind(node: ir.Node, axes: Axes) -> int | None:
    """The axis of images in what `node` answers; None where no image reaches it.

    All shapes are known. Raises ExportError where images would be mixed, or
    where it is not known what the operator does to them.
    """
    carriers = [value for value in node.inputs if value is not None and value in axes]
    if not carriers:
        return None
    if node.op_type in _ELEMENTWISE:
        return _elementwise(node, carriers, axes)
    if node.op_type.startswith("Reduce") or node.op_type in ("ArgMax", "ArgMin"):
        return _reduced(node, axes)
    rule = _RULES.get(node.op_type)
    if rule is not None:
        return rule(node, axes)
    if node.op_type in _IMAGES_FIRST and carriers[0] is node.inputs[0] and not axes[carriers[0]]:
        return 0
    raise mixed(node, f"it is not known what {node.op_type} does to a batch")


def mixed(node: ir.Node, why: str) -> ExportError:
    """The error that names the node at which the batch cannot be opened."""
    return ExportError(
        f"the graph has a fixed batch, which cannot be opened at {node.name}: {why}",
        hint="export it again with a dynamic batch (dynamic_axes or dynamic_shapes)",
    )


def sides_of(value: ir.Value | None) -> list[int]:
    """The sides of a value in a graph of which nothing is open."""
    assert value is not None
    assert value.shape is not None
    return [int(side) for side in value.shape]  # type: ignore[arg-type]


def along(node: ir.Node, name: str, default: int, rank: int) -> int:
    """An axis that an attribute names, counted from the front."""
    attribute = node.attributes.get(name)
    axis = default if attribute is None else attribute.as_int()
    return axis % rank


def _rank(value: ir.Value | None) -> int:
    return len(sides_of(value))


def _elementwise(node: ir.Node, carriers: list[ir.Value], axes: Axes) -> int:
    from_last = {axes[value] - _rank(value) for value in carriers}
    if len(from_last) > 1:
        raise mixed(node, "its operands hold the images on different axes")
    rank = _rank(node.outputs[0])
    axis = from_last.pop() + rank
    if "axis" in node.attributes and along(node, "axis", -1, rank) == axis:
        raise mixed(node, "it works across images")
    return axis


def _reduced(node: ir.Node, axes: Axes) -> int:
    rank, axis = _rank(node.inputs[0]), axes[_first(node)]
    if node.op_type.startswith("Arg"):
        given: list[int] | None = [along(node, "axis", 0, rank)]
    elif "axes" in node.attributes:  # before opset 18
        given = list(node.attributes["axes"].as_ints())
    else:
        given = integers(node, 1)
    reduced = set(range(rank)) if given is None else {one % rank for one in given}
    if axis in reduced:
        raise mixed(node, "it works across images")
    keeps = node.attributes["keepdims"].as_int() if "keepdims" in node.attributes else 1
    return axis if keeps else axis - sum(one < axis for one in reduced)


def integers(node: ir.Node, index: int) -> list[int] | None:
    """The constant that an input is; None without that input, or where it is computed."""
    value = node.inputs[index] if len(node.inputs) > index else None
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    return None if tensor is None else [int(v) for v in tensor.numpy().reshape(-1)]


def _first(node: ir.Node) -> ir.Value:
    value = node.inputs[0]
    assert value is not None
    return value


def _matmul(node: ir.Node, axes: Axes) -> int:
    found = set()
    for index, value in enumerate(node.inputs):
        if value is None or value not in axes:
            continue
        from_last = axes[value] - _rank(value)
        # The left operand's rows may be images; its columns are summed over.
        if from_last > (-2 if index == 0 else -3):
            raise mixed(node, "it sums over images")
        found.add(from_last)
    if len(found) > 1:
        raise mixed(node, "its operands hold the images on different axes")
    return found.pop() + _rank(node.outputs[0])


def _transpose(node: ir.Node, axes: Axes) -> int:
    rank = _rank(node.inputs[0])
    given = node.attributes.get("perm")
    order = list(range(rank))[::-1] if given is None else list(given.as_ints())
    return order.index(axes[_first(node)])


def _reshape(node: ir.Node, axes: Axes) -> int:
    """The axis behind as many numbers as the images stand behind: (2, 9, 64) to (18, 64), 0."""
    before, after = sides_of(node.inputs[0]), sides_of(node.outputs[0])
    axis = axes[_first(node)]
    wanted = math.prod(before[:axis])
    for candidate in range(len(after)):
        if math.prod(after[:candidate]) == wanted:
            return candidate
    raise mixed(node, f"{tuple(before)} becomes {tuple(after)}, which tears images apart")


def _untouched(node: ir.Node, axes: Axes) -> int:
    """Split, Concat: along another axis."""
    axis = axes[next(value for value in node.inputs if value is not None and value in axes)]
    if along(node, "axis", 0, _rank(node.outputs[0])) == axis:
        raise mixed(node, "it works across images")
    if any(value in axes and axes[value] != axis for value in node.inputs if value is not None):
        raise mixed(node, "its operands hold the images on different axes")
    return axis


def _gather(node: ir.Node, axes: Axes) -> int:
    data, axis = _first(node), axes.get(_first(node))
    taken = along(node, "axis", 0, _rank(data))
    if axis is None or axis == taken or node.inputs[1] in axes:
        raise mixed(node, "it picks images")
    return axis if axis < taken else axis - 1 + _rank(node.inputs[1])


def _slice(node: ir.Node, axes: Axes) -> int:
    axis = axes[_first(node)]
    starts, ends, cut, steps = (integers(node, index) for index in (1, 2, 3, 4))
    if starts is None or ends is None:
        raise mixed(node, "its bounds are computed")
    rank = _rank(node.inputs[0])
    cut = list(range(len(starts))) if cut is None else cut
    for index, one in enumerate(cut):
        step = 1 if steps is None else steps[index]
        whole = starts[index] == 0 and ends[index] >= 2**31 - 1 and step == 1
        if one % rank == axis and not whole:
            raise mixed(node, "it picks images")
    return axis


def _squeeze(node: ir.Node, axes: Axes) -> int:
    axis, rank = axes[_first(node)], _rank(node.inputs[0])
    given = integers(node, 1)
    if given is None or axis in {one % rank for one in given}:
        raise mixed(node, "it drops the axis of images")
    return axis - sum(one % rank < axis for one in given)


def _unsqueeze(node: ir.Node, axes: Axes) -> int:
    rank = _rank(node.outputs[0])
    added = {one % rank for one in integers(node, 1) or ()}
    kept = [one for one in range(rank) if one not in added]
    return kept[axes[_first(node)]]


def _flatten(node: ir.Node, axes: Axes) -> int:
    rank = _rank(node.inputs[0])
    if axes[_first(node)] or along(node, "axis", 1, rank) == 0:
        raise mixed(node, "it tears images apart")
    return 0


def _pad(node: ir.Node, axes: Axes) -> int:
    axis, rank = axes[_first(node)], _rank(node.inputs[0])
    pads = integers(node, 1)
    if pads is None or len(pads) != 2 * rank or pads[axis] or pads[axis + rank]:
        raise mixed(node, "it adds images")
    return axis


def _expand(node: ir.Node, axes: Axes) -> int:
    return axes[_first(node)] - _rank(node.inputs[0]) + _rank(node.outputs[0])


def _normalized_by_channel(node: ir.Node, axes: Axes) -> int:
    if axes[_first(node)] != 0:
        raise mixed(node, "it works across images")
    return 0


_RULES: dict[str, Callable[[ir.Node, Axes], int]] = {
    "BatchNormalization": _normalized_by_channel,
    "Concat": _untouched,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "MatMul": _matmul,
    "Pad": _pad,
    "Reshape": _reshape,
    "Slice": _slice,
    "Split": _untouched,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
