"""LayerNorm however it is written: found where it is one, and nowhere else."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from numpy.typing import NDArray

from vitdeploy.export.passes.layer_norms import fuse_layer_norms
from vitdeploy.graph.layer_norms import decomposed_layer_norms

WIDTH = 8
INPUT = f"float[2, 5, {WIDTH}] x"
EPSILON = 0.25
"""Large enough that one left out, or a wrong one, is seen."""

_generator = np.random.default_rng(0)
WEIGHTS = {
    "gamma": 1 + 0.5 * _generator.normal(size=WIDTH).astype(np.float32),
    "beta": _generator.normal(size=WIDTH).astype(np.float32),
    "row_gamma": 1 + _generator.normal(size=(5, 1)).astype(np.float32),
    "table_gamma": 1 + _generator.normal(size=(5, WIDTH)).astype(np.float32),
    "scalar_gamma": np.float32(1.5),
    "epsilon": np.float32(EPSILON),
    "two": np.float32(2),
    "half": np.float32(0.5),
    "minus_half": np.float32(-0.5),
    "one": np.float32(1),
    "correction": np.float32(WIDTH / (WIDTH - 1)),
    "last": np.array([-1]),
    "second": np.array([2]),
    "rows": np.array([1]),
    "both": np.array([1, 2]),
}

VARIANCE = """
    mean = ReduceMean<keepdims=1>(x, last)
    d = Sub(x, mean)
    squared = Pow(d, two)
    variance = ReduceMean<keepdims=1>(squared, last)
    shifted = Add(variance, epsilon)
"""
ROOT = f"{VARIANCE} root = Sqrt(shifted)"
PLAIN = f"{ROOT} normalized = Div(d, root)"
AFFINE = "scaled = Mul(normalized, gamma) y = Add(scaled, beta)"

VARIANTS = {
    "PyTorch's before opset 17": f"{PLAIN} {AFFINE}",
    "the axis counted from the front": f"{PLAIN} {AFFINE}".replace("last", "second"),
    "squares by Mul": f"{PLAIN} {AFFINE}".replace("Pow(d, two)", "Mul(d, d)"),
    "root as a power": f"{PLAIN} {AFFINE}".replace("Sqrt(shifted)", "Pow(shifted, half)"),
    "Reciprocal": f"{ROOT} i = Reciprocal(root) normalized = Mul(i, d) {AFFINE}",
    "one over the root": f"{ROOT} i = Div(one, root) normalized = Mul(d, i) {AFFINE}",
    "power -0.5": f"{VARIANCE} i = Pow(shifted, minus_half) normalized = Mul(d, i) {AFFINE}",
    "operands the other way round": f"{PLAIN} {AFFINE}".replace(
        "Add(variance, epsilon)", "Add(epsilon, variance)"
    )
    .replace("Mul(normalized, gamma)", "Mul(gamma, normalized)")
    .replace("Add(scaled, beta)", "Add(beta, scaled)"),
    "TensorFlow's": f"""{ROOT} i = Reciprocal(root) s = Mul(i, gamma) a = Mul(x, s)
        m = Mul(mean, s) rest = Sub(beta, m) y = Add(a, rest)""",
    "without gamma and beta": PLAIN.replace("normalized", "y"),
    "without beta": f"{PLAIN} y = Mul(normalized, gamma)",
}

OTHERS = {
    "another axis": f"{PLAIN} {AFFINE}".replace("last", "rows"),
    "two axes": f"{PLAIN} {AFFINE}".replace("last", "both"),
    "no epsilon": f"{PLAIN} {AFFINE}".replace("shifted = Add(variance, epsilon)", "").replace(
        "shifted", "variance"
    ),
    "a variance that drops its axis": f"{PLAIN} {AFFINE}".replace(
        "variance = ReduceMean<keepdims=1>(squared, last)",
        "flat = ReduceMean<keepdims=0>(squared, last) variance = Unsqueeze(flat, last)",
    ),
    "an unbiased variance": f"{PLAIN} {AFFINE}".replace(
        "Add(variance, epsilon)", "Add(unbiased, epsilon)"
    ).replace("shifted =", "unbiased = Mul(variance, correction) shifted ="),
    "a root mean square": f"{PLAIN} {AFFINE}".replace("Sub(x, mean)", "Identity(x)"),
    "the mean of something else": f"{PLAIN} {AFFINE}".replace(
        "mean = ReduceMean<keepdims=1>(x, last)",
        "z = Sqrt(x) mean = ReduceMean<keepdims=1>(z, last)",
    ),
    "the mean over another axis": f"{PLAIN} {AFFINE}".replace(
        "ReduceMean<keepdims=1>(x, last)", "ReduceMean<keepdims=1>(x, rows)"
    ),
    "the differences themselves": f"{PLAIN} {AFFINE}".replace("Pow(d, two)", "Pow(d, one)"),
    "the root of a difference that is not normalized": f"{PLAIN} {AFFINE}".replace(
        "Div(d, root)", "Div(x, root)"
    ),
}

KEPT_OUTSIDE = {
    "gamma a row": ("row_gamma", "Mul"),
    "gamma a table": ("table_gamma", "Mul"),
    "gamma a single number": ("scalar_gamma", "Mul"),
}


def model_of(
    body: str, outputs: str = f"float[2, 5, {WIDTH}] y", *, inputs: str = INPUT
) -> ir.Model:
    lines = body.replace(") ", ")\n")
    graph = onnx.parser.parse_graph(f"g ({inputs}) => ({outputs}) {{ {lines} }}")
    used = {name for node in graph.node for name in node.input}
    graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(value), name)
        for name, value in WEIGHTS.items()
        if name in used
    )
    proto = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=8
    )
    onnx.checker.check_model(proto)
    return ir.from_proto(onnx.shape_inference.infer_shapes(proto))


def answers(model: ir.Model) -> list[NDArray[np.float32]]:
    """At full precision of float32, as the graph is written."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    x = np.random.default_rng(1).uniform(1, 9, (2, 5, WIDTH)).astype(np.float32)
    return session.run(None, {"x": x})  # type: ignore[return-value]


def fused_in(model: ir.Model) -> list[ir.Node]:
    return [node for node in model.graph if node.op_type == "LayerNormalization"]


def require_same(before: list[NDArray], after: list[NDArray]) -> None:
    for old, new in zip(before, after, strict=True):
        assert np.abs(old - new).max() <= 1e-5 * old.std()


@pytest.mark.parametrize("name", VARIANTS)
def test_a_written_out_layer_norm_becomes_one_operator_that_computes_the_same(name: str) -> None:
    model = model_of(VARIANTS[name])
    before = answers(model)
    (fused,) = fused_in(fuse_layer_norms(model))
    assert model.graph.outputs[0].producer() is fused
    assert model.graph.outputs[0].name == "y"
    assert fused.attributes["epsilon"].as_float() == pytest.approx(EPSILON)
    require_same(before, answers(model))


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_layer_norm_over_the_last_axis_stays(name: str) -> None:
    model = model_of(OTHERS[name])
    assert decomposed_layer_norms(model.graph) == []
    assert fused_in(fuse_layer_norms(model)) == []


def test_a_variance_without_its_axis_is_another_ones_where_all_sides_are_alike() -> None:
    """(8, 8) variances against (8, 8, 8) differences: those of rows meet columns."""
    cube = f"float[{WIDTH}, {WIDTH}, {WIDTH}]"
    body = f"{PLAIN} {AFFINE}".replace(
        "ReduceMean<keepdims=1>(squared", "ReduceMean<keepdims=0>(squared"
    )
    model = model_of(body, f"{cube} y", inputs=f"{cube} x")
    assert [node.op_type for node in model.graph][3] == "ReduceMean"
    assert fused_in(fuse_layer_norms(model)) == []


@pytest.mark.parametrize("name", KEPT_OUTSIDE)
def test_a_factor_that_is_no_gamma_stays_behind_the_operator(name: str) -> None:
    factor, operator = KEPT_OUTSIDE[name]
    model = model_of(f"{PLAIN} scaled = {operator}(normalized, {factor}) y = Add(scaled, beta)")
    before = answers(model)
    (fused,) = fused_in(fuse_layer_norms(model))
    gamma = fused.inputs[1]
    assert gamma is not None
    assert gamma.const_value is not None
    assert (gamma.const_value.numpy() == 1).all()
    assert [use.node.op_type for use in fused.outputs[0].uses()] == [operator]
    require_same(before, answers(model))


def test_a_value_between_that_is_read_elsewhere_stays_as_it_is() -> None:
    """The normalized value has a second reader, so gamma cannot move into the operator."""
    shape = f"float[2, 5, {WIDTH}]"
    model = model_of(f"{PLAIN} {AFFINE} other = Neg(normalized)", f"{shape} y, {shape} other")
    before = answers(model)
    (fused,) = fused_in(fuse_layer_norms(model))
    assert {use.node.op_type for use in fused.outputs[0].uses()} == {"Mul", "Neg"}
    require_same(before, answers(model))


def test_an_output_between_keeps_its_name_and_values() -> None:
    shape = f"float[2, 5, {WIDTH}]"
    model = model_of(f"{PLAIN} {AFFINE}", f"{shape} y, {shape} normalized, float[2, 5, 1] mean")
    before = answers(model)
    assert len(fused_in(fuse_layer_norms(model))) == 1
    assert [value.name for value in model.graph.outputs] == ["y", "normalized", "mean"]
    require_same(before, answers(model))


def test_gamma_that_others_read_is_copied_so_that_folding_changes_them_not() -> None:
    shape = f"float[2, 5, {WIDTH}]"
    model = model_of(f"{PLAIN} {AFFINE} other = Mul(x, gamma)", f"{shape} y, {shape} other")
    before = answers(model)
    (fused,) = fused_in(fuse_layer_norms(model))
    gamma = fused.inputs[1]
    assert gamma is not None
    assert gamma is not model.graph.initializers["gamma"]
    assert len(gamma.uses()) == 1
    require_same(before, answers(model))
    assert gamma.const_value is not None
    gamma.const_value = ir.Tensor(3 * gamma.const_value.numpy(), name=gamma.name)
    after = answers(model)
    assert not np.allclose(after[0], before[0])
    assert np.array_equal(after[1], before[1])


def test_one_behind_another_reads_the_operator_that_took_its_place() -> None:
    again = f"{PLAIN} {AFFINE}"
    for name in ("mean", "squared", "variance", "shifted", "root", "normalized", "scaled", "y"):
        again = again.replace(f"{name} =", f"{name}2 =").replace(f"{name},", f"{name}2,")
        again = again.replace(f"{name})", f"{name}2)")
    again = again.replace("d =", "d2 =").replace("(d,", "(d2,").replace("x,", "y,")
    again = again.replace("y2 =", "z =")
    model = model_of(f"{PLAIN} {AFFINE} {again}", f"float[2, 5, {WIDTH}] z")
    before = answers(model)
    first, second = fused_in(fuse_layer_norms(model))
    assert second.inputs[0] is first.outputs[0]
    require_same(before, answers(model))


@pytest.mark.parametrize("changed", ["epsilon", "gamma", "beta"])
def test_the_comparison_sees_a_wrong_operator(changed: str) -> None:
    model = model_of(VARIANTS["PyTorch's before opset 17"])
    before = answers(model)
    (fused,) = fused_in(fuse_layer_norms(model))
    if changed == "epsilon":
        fused.attributes["epsilon"] = ir.AttrFloat32("epsilon", EPSILON * 1.01)
    else:
        value = fused.inputs[1 if changed == "gamma" else 2]
        assert value is not None
        assert value.const_value is not None
        value.const_value = ir.Tensor(value.const_value.numpy() * 1.01, name=value.name)
    with pytest.raises(AssertionError):
        require_same(before, answers(model))
