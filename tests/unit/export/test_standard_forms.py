"""The passes of the normal form one by one: what they change, and where they must not."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from foreign_graphs import operators
from numpy.typing import NDArray
from onnx_ir.passes.common import RemoveUnusedNodesPass, ShapeInferencePass

from vitdeploy.errors import ExportError
from vitdeploy.export.adopting.open_batch import open_batch
from vitdeploy.export.passes.expanded_constants import without_expanded_constants
from vitdeploy.export.passes.flat_linears import unflatten_linears
from vitdeploy.export.passes.nan_guards import without_nan_guards
from vitdeploy.export.passes.neutral_operands import without_neutral_operands
from vitdeploy.export.passes.raise_opset import raise_opset
from vitdeploy.export.passes.static_shapes import settle_shapes

_generator = np.random.default_rng(0)


def normal(*shape: int) -> NDArray[np.float32]:
    return _generator.normal(size=shape).astype(np.float32)


CONSTANTS: dict[str, NDArray] = {
    "w": normal(8, 6),
    "wt": normal(6, 8),
    "b": normal(6),
    "table_bias": normal(10, 6),
    "rows": np.array([10, 8]),
    "tokens": np.array([2, 5, 6]),
    "heads": np.array([2, 5, 2, 3]),
    "swapped": np.array([5, 2, 6]),
    "zeros": np.zeros((1, 5, 8), np.float32),
    "ones": np.ones((1, 1, 8), np.float32),
    "twos": np.full((1, 1, 8), 2, np.float32),
    "wide_zeros": np.zeros((2, 5, 8), np.float32),
    "mask": np.zeros((1, 1, 5, 5), np.float32),
    "token": normal(1, 1, 8),
    "two_tokens": np.repeat(normal(1, 1, 8), 2, axis=0),
    "other_tokens": normal(2, 1, 8),
    "zero": np.float32(0),
    "batch": np.array([2, 1, 8]),
    "first": np.array(0),
    "axis": np.array([0]),
    "single": np.array([1]),
}


def model_of(body: str, inputs: str, outputs: str, *, opset: int = 20) -> ir.Model:
    lines = body.replace(") ", ")\n")
    graph = onnx.parser.parse_graph(f"g ({inputs}) => ({outputs}) {{ {lines} }}")
    used = {name for node in graph.node for name in node.input}
    graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(value), name)
        for name, value in CONSTANTS.items()
        if name in used
    )
    for index, node in enumerate(graph.node):
        node.name = f"node_{index}_{node.op_type}"
    imports = [onnx.helper.make_opsetid("", opset)]
    model = ir.from_proto(onnx.helper.make_model(graph, opset_imports=imports, ir_version=9))
    ShapeInferencePass()(model)
    return model


def answers(model: ir.Model, **given: NDArray) -> list[NDArray]:
    session = onnxruntime.InferenceSession(
        ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, given)  # type: ignore[return-value]


def require_same(before: list[NDArray], after: list[NDArray]) -> None:
    for old, new in zip(before, after, strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-5, atol=1e-5)


TOKENS = "float[2, 5, 8] x"
FLAT = "flat = Reshape(x, rows)"
FLAT_LINEARS = {
    "Gemm": f"{FLAT} p = Gemm(flat, w, b) y = Reshape(p, tokens)",
    "Gemm, weight transposed": f"{FLAT} p = Gemm<transB=1>(flat, wt, b) y = Reshape(p, tokens)",
    "Gemm, scaled": f"{FLAT} p = Gemm<alpha=0.5, beta=2.0>(flat, w, b) y = Reshape(p, tokens)",
    "Gemm without bias": f"{FLAT} p = Gemm(flat, w) y = Reshape(p, tokens)",
    "MatMul and bias": f"{FLAT} m = MatMul(flat, w) p = Add(b, m) y = Reshape(p, tokens)",
    "MatMul": f"{FLAT} p = MatMul(flat, w) y = Reshape(p, tokens)",
    "rows in another order of sides": f"{FLAT} p = Gemm(flat, w, b) y = Reshape(p, swapped)",
}
NOT_FLAT = {
    "heads follow": (f"{FLAT} p = Gemm(flat, w, b) y = Reshape(p, heads)", "float[2, 5, 2, 3] y"),
    "the bias is a table": (
        f"{FLAT} p = Gemm(flat, w, table_bias) y = Reshape(p, tokens)",
        "float[2, 5, 6] y",
    ),
    "the table has another reader": (
        f"{FLAT} p = Gemm(flat, w, b) z = Neg(p) y = Reshape(p, tokens)",
        "float[2, 5, 6] y, float[10, 6] z",
    ),
}


@pytest.mark.parametrize("name", FLAT_LINEARS)
def test_a_linear_on_flattened_tokens_works_on_tokens(name: str) -> None:
    shape = "float[5, 2, 6] y" if "order" in name else "float[2, 5, 6] y"
    model = model_of(FLAT_LINEARS[name], TOKENS, shape)
    x = normal(2, 5, 8)
    before = answers(model, x=x)
    RemoveUnusedNodesPass()(unflatten_linears(model))
    left = operators(model)
    assert left["Gemm"] == 0
    assert left["MatMul"] == 1
    assert left["Reshape"] == (1 if "order" in name else 0)
    require_same(before, answers(model, x=x))


@pytest.mark.parametrize("name", NOT_FLAT)
def test_a_table_that_is_needed_as_one_stays(name: str) -> None:
    body, outputs = NOT_FLAT[name]
    model = model_of(body, TOKENS, outputs)
    RemoveUnusedNodesPass()(unflatten_linears(model))
    assert operators(model)["Gemm"] == 1


@pytest.mark.parametrize(
    "body", ["y = Add(x, zeros)", "y = Add(zeros, x)", "y = Sub(x, zeros)", "y = Mul(ones, x)",
             "y = Div(x, ones)"],
)  # fmt: skip
def test_what_changes_nothing_goes(body: str) -> None:
    model = model_of(f"{body} z = Neg(y)", TOKENS, "float[2, 5, 8] z")
    RemoveUnusedNodesPass()(without_neutral_operands(model))
    assert list(operators(model)) == ["Neg"]


@pytest.mark.parametrize(
    ("body", "inputs"),
    [
        ("y = Mul(x, twos)", TOKENS),
        ("y = Sub(zeros, x)", TOKENS),
        ("y = Div(ones, x)", TOKENS),
        ("y = Mul(x, zeros)", TOKENS),
        ("y = Add(x, wide_zeros)", "float[1, 5, 8] x"),
    ],
)
def test_what_changes_values_or_shape_stays(body: str, inputs: str) -> None:
    model = model_of(f"{body} z = Neg(y)", inputs, "float[2, 5, 8] z")
    before = len(list(model.graph))
    RemoveUnusedNodesPass()(without_neutral_operands(model))
    assert len(list(model.graph)) == before


ATTENTION = """s = MatMul(q, k) {mask} p = Softmax<axis=-1>(s{masked}) bad = IsNaN(p)
    safe = Where(bad, zero, p) y = MatMul(safe, v)"""
QKV = "float[2, 3, 5, 4] q, float[2, 3, 4, 5] k, float[2, 3, 5, 4] v, float[2, 1, 5, 5] m"


@pytest.mark.parametrize(("mask", "kept"), [("", False), ("sm = Add(s, m)", True)])
def test_a_guard_goes_where_nothing_masks_scores(mask: str, kept: bool) -> None:
    body = ATTENTION.format(mask=mask, masked="m" if mask else "")
    model = model_of(body, QKV, "float[2, 3, 5, 4] y")
    RemoveUnusedNodesPass()(without_nan_guards(model))
    assert operators(model)["IsNaN"] == int(kept)


def test_a_guard_of_other_values_stays() -> None:
    body = "p = Sqrt(x) bad = IsNaN(p) y = Where(bad, zero, p)"
    model = model_of(body, TOKENS, "float[2, 5, 8] y")
    assert operators(without_nan_guards(model))["Where"] == 1


def test_a_constant_is_not_repeated_where_broadcasting_does_it() -> None:
    body = "many = Expand(token, batch) y = Add(x, many)"
    model = model_of(body, TOKENS, "float[2, 5, 8] y")
    x = normal(2, 5, 8)
    before = answers(model, x=x)
    RemoveUnusedNodesPass()(without_expanded_constants(model))
    assert list(operators(model)) == ["Add"]
    require_same(before, answers(model, x=x))


@pytest.mark.parametrize(
    ("body", "outputs"),
    [
        ("many = Expand(token, batch) y = Concat<axis=1>(many, x)", "float[2, 6, 8] y"),
        ("many = Expand(token, batch) y = Add(s, many)", "float[2, 1, 8] y"),
        ("many = Expand(token, batch) y = Neg(many)", "float[2, 1, 8] y"),
    ],
)
def test_a_constant_that_gives_the_shape_is_repeated(body: str, outputs: str) -> None:
    model = model_of(body, f"{TOKENS}, float[1, 1, 8] s", outputs)
    RemoveUnusedNodesPass()(without_expanded_constants(model))
    assert operators(model)["Expand"] == 1


def test_shapes_are_settled_whatever_the_batch() -> None:
    """Token counts behind an Expand that no plain inference follows."""
    body = """sides = Shape(x) n = Gather(sides, first) one = Unsqueeze(n, axis)
        asked = Concat<axis=0>(one, single, single) many = Expand(token, asked)
        y = Concat<axis=1>(many, x)"""
    model = model_of(body, "float[batch, 5, 8] x", "float[a, b, c] y")
    settle_shapes(model)
    shape = model.graph.outputs[0].shape
    assert shape is not None
    assert list(shape)[1:] == [6, 8]
    assert not isinstance(shape[0], int)
    x = normal(3, 5, 8)
    expected = np.concatenate([np.repeat(CONSTANTS["token"], 3, 0), x], 1)
    require_same([expected], answers(model, x=x))


def test_the_opset_is_raised_or_the_error_names_it() -> None:
    model = model_of(
        "m = ReduceMean<axes=[-1], keepdims=1>(x) y = Sub(x, m)",
        TOKENS,
        "float[2, 5, 8] y",
        opset=13,
    )
    x = normal(2, 5, 8)
    before = answers(model, x=x)
    raise_opset(model, 20)
    assert model.graph.opset_imports[""] == 20
    assert model.ir_version >= 9
    onnx.checker.check_model(ir.to_proto(model))
    require_same(before, answers(model, x=x))
    assert raise_opset(model, 17).graph.opset_imports[""] == 20, "it is never lowered"
    unknown = model_of("y = Upsample(x, scales)", "float[1, 1, 2, 2] x, float[4] scales",
                       "float[a, b, c, d] y", opset=9)  # fmt: skip
    next(iter(unknown.graph)).op_type = "NoSuchOperator"
    with pytest.raises(ExportError, match="opset 9 cannot be raised to 20"):
        raise_opset(unknown, 20)


MIXED = {
    "a mean over images": ("y = ReduceMean<keepdims=1>(x, axis)", "float[1, 5, 8] y", "across"),
    "a softmax over images": ("y = Softmax<axis=0>(x)", "float[2, 5, 8] y", "across images"),
    "one image picked": ("y = Gather(x, first)", "float[5, 8] y", "picks images"),
    "images split": (
        "y, z = Split<axis=0, num_outputs=2>(x)",
        "float[1, 5, 8] y, float[1, 5, 8] z",
        "across images",
    ),
    "images joined": ("y = Concat<axis=0>(x, x)", "float[4, 5, 8] y", "across images"),
    "an operator not known": ("y = CumSum(x, first)", "float[2, 5, 8] y", "not known what CumSum"),
    "tokens that differ among images": (
        "y = Concat<axis=1>(other_tokens, x)",
        "float[2, 6, 8] y",
        "differs among them",
    ),
    "images summed over": (
        "t = Transpose<perm=[1, 2, 0]>(x) y = MatMul(t, x2)",
        "float[5, 8, 3] y",
        "sums over images",
    ),
    "images last": ("y = Transpose<perm=[1, 2, 0]>(x)", "float[5, 8, 2] y", "images first"),
}


@pytest.mark.parametrize("name", MIXED)
def test_a_batch_that_is_no_batch_is_not_opened(name: str) -> None:
    body, outputs, why = MIXED[name]
    inputs = f"{TOKENS}, float[2, 3] x2" if "x2" in body else TOKENS
    model = model_of(body, inputs, outputs)
    with pytest.raises(ExportError, match=f"cannot be opened at node_.*{why}"):
        open_batch(model)


def test_a_token_repeated_for_the_traced_batch_is_repeated_for_any() -> None:
    model = model_of("y = Concat<axis=1>(two_tokens, x)", TOKENS, "float[2, 6, 8] y")
    settle_shapes(open_batch(model))
    x = normal(7, 5, 8)
    token = CONSTANTS["two_tokens"][:1]
    expected = np.concatenate([np.repeat(token, 7, axis=0), x], 1)
    require_same([expected], answers(model, x=x))
