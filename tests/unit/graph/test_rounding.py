"""Which operators a runtime computes as one, on graphs small enough to be read."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from vitdeploy.graph.half import infer_missing_types
from vitdeploy.graph.rounding import rounding_groups


def groups(body: str, *, fused: bool = True) -> list[list[str]]:
    """The names of the values each group computes; the last is the one that is rounded."""
    text = f"""
    <ir_version: 9, opset_import: ["" : 20]>
    planted (float[n, 4, 8] x, float[n, 4, 8] r) => (float[n, 4, 8] y)
    <float[8, 8] w = {{{", ".join(["0.1"] * 64)}}}, float[8] b = {{{", ".join(["0.1"] * 8)}}},
     float[1] c = {{0.5}}> {{ {body} }}
    """
    model = infer_missing_types(ir.from_proto(onnx.parser.parse_model(text)))
    found = rounding_groups(model.graph, ir.DataType.FLOAT, fused=fused)
    for group in found:
        assert group.value in group.nodes[-1].outputs
    return [[str(node.outputs[0].name) for node in group.nodes] for group in found]


LINEAR_GELU = """
    p = MatMul (x, w) h = Add (p, b)
    d = Div (h, c) e = Erf (d) f = Add (e, c) g = Mul (h, c) k = Mul (g, f)
    y = Identity (k)
"""


def test_gelu_written_with_erf_belongs_to_its_product() -> None:
    assert groups(LINEAR_GELU) == [["p", "h", "d", "e", "f", "g", "k"]]


def test_worst_rounds_after_every_operator() -> None:
    assert groups(LINEAR_GELU, fused=False) == [[name] for name in "phdefgk"]


@pytest.mark.parametrize(
    "activation",
    ["k = Gelu (h)", "s = Sigmoid (h) k = Mul (h, s)", "k = Mul (h, c)", "k = Relu (h)"],
)
def test_other_activations_and_scales_too(activation: str) -> None:
    (group,) = groups(f"p = MatMul (x, w) h = Add (p, b) {activation} y = Identity (k)")
    assert group[:2] == ["p", "h"]
    assert group[-1] == "k"


def test_a_residual_rounds_by_itself() -> None:
    body = "p = MatMul (x, w) h = Add (p, b) s = Mul (h, c) k = Add (r, s) y = Identity (k)"
    assert groups(body) == [["p", "h", "s"], ["k"]]


def test_a_value_that_others_read_is_rounded() -> None:
    body = "p = MatMul (x, w) h = Add (p, b) k = Relu (h) t = Softmax (h) y = Add (k, t)"
    assert groups(body) == [["p", "h"], ["t"], ["k", "y"]]


def test_two_activations_of_one_value_end_the_group() -> None:
    body = "p = MatMul (x, w) s = Sin (p) k = Cos (p) t = Softmax (s) y = Add (k, t)"
    assert groups(body)[0] == ["p"]


ATTENTION = """
    q = Relu (x) k = Relu (r) t = Transpose <perm = [0, 2, 1]> (k) s = Mul (q, c)
    p = MatMul (s, t) {} z = Softmax (m) o = MatMul (z, k) y = Identity (o)
"""


def test_scores_stay_float32_and_probabilities_are_rounded() -> None:
    scaled = groups(ATTENTION.format("m = Mul (p, c)"))
    assert scaled == [["k"], ["q", "s"], ["p", "m", "z"], ["o"]]
    assert ["p", "m", "z"] in groups(ATTENTION.format("m = Add (p, c)"))
    assert ["o"] in groups(ATTENTION.format("m = Add (p, c)"))


def test_softmax_without_attention_stands_alone() -> None:
    body = "p = MatMul (x, w) h = Add (p, b) z = Softmax (h) y = Identity (z)"
    assert groups(body) == [["p", "h"], ["z"]]
    assert ["p", "m"] in groups(
        ATTENTION.format("m = Add (p, c) u = Identity (m)").replace("(m) o", "(u) o")
    )


def test_carriers_round_nothing_and_normalization_once() -> None:
    body = """
    s = Transpose <perm = [0, 1, 2]> (x) t = Identity (s)
    n = LayerNormalization (t, b, b) y = Identity (n)
    """
    assert groups(body) == [["n"]]


def test_chains_take_other_inputs_in() -> None:
    body = "a = Mul (x, c) k = Mul (r, c) s = Add (a, k) y = Identity (s)"
    assert groups(body) == [["a", "k", "s"]]


def test_an_output_of_the_graph_is_rounded() -> None:
    assert groups("p = MatMul (x, w) y = Add (p, b) k = Relu (y)") == [["p", "y"], ["k"]]
    assert groups("y = Neg (x) k = Relu (y)") == [["y"], ["k"]]
