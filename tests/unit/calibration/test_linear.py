"""Linear layers are recognised however they are written; what is like one and is none is not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny_families import FAMILIES, tiny
from written_graphs import PIXELS, TOKENS, answers, linears, written

from vitdeploy.calibration.linear import bias_vector, weight_of

FLAT = (
    "rows = Constant <value_ints = [-1, 8]> ()\n flat = Reshape (start, rows)\n"
    "back = Constant <value_ints = [-1, 1, 5, 6]> ()\n"
)
WRITTEN = {
    "MatMul": ("[linear] logits = MatMul (start, weight)", {"weight": (8, 6)}),
    "MatMul and Add": (
        "[linear] product = MatMul (start, weight)\n logits = Add (product, bias)",
        {"weight": (8, 6), "bias": (6,)},
    ),
    "Add the other way round": (
        "[linear] product = MatMul (start, weight)\n logits = Add (bias, product)",
        {"weight": (8, 6), "bias": (1, 1, 6)},
    ),
    "Gemm": (
        FLAT + "[linear] product = Gemm (flat, weight, bias)\n logits = Reshape (product, back)",
        {"weight": (8, 6), "bias": (6,)},
    ),
    "Gemm transposed": (
        FLAT + "[linear] product = Gemm <transB = 1> (flat, weight, bias)\n"
        "logits = Reshape (product, back)",
        {"weight": (6, 8), "bias": (1, 6)},
    ),
    "Gemm without a bias": (
        FLAT + "[linear] product = Gemm <transB = 1> (flat, weight)\n"
        "logits = Reshape (product, back)",
        {"weight": (6, 8)},
    ),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_weight_and_bias_are_what_pytorch_would_hold(name: str) -> None:
    body, arrays = WRITTEN[name]
    graph = written(body, **arrays)
    (linear,) = linears(graph).values()
    weight, bias = weight_of(graph, linear), bias_vector(graph, linear)
    assert weight.shape == (8, 6)
    assert bias.shape == (6,)
    expected = torch.nn.functional.linear(
        torch.tanh(torch.from_numpy(PIXELS)),
        torch.from_numpy(weight.T.copy()),
        torch.from_numpy(bias.copy()),
    )
    np.testing.assert_allclose(answers(graph)[0], expected.numpy(), atol=1e-5)
    assert linear.output == ("logits" if "Add" in name else linear.output)
    assert bool(linear.bias) == ("bias" in arrays)


NOT_A_BIAS = {
    "one number": ("logits = Add (product, other)", {"other": (1,)}),
    "one number for each token": ("logits = Add (product, other)", {"other": (TOKENS, 1)}),
    "a table of positions": ("logits = Add (product, other)", {"other": (TOKENS, 6)}),
    "a second tensor": ("logits = Add (product, start)", {}),
    "added to one of two readers": (
        "shifted = Add (product, other)\n logits = Mul (shifted, product)",
        {"other": (6,)},
    ),
    "added to itself": ("logits = Add (product, product)", {}),
}


@pytest.mark.parametrize("name", NOT_A_BIAS)
def test_what_is_no_bias(name: str) -> None:
    """Corrected or divided as one, it would change what others see."""
    body, arrays = NOT_A_BIAS[name]
    width = 8 if "start" in body else 6
    graph = written(
        "[linear] product = MatMul (start, weight)\n" + body, weight=(8, width), **arrays
    )
    (linear,) = linears(graph).values()
    assert (linear.bias, linear.output) == ("", "product")
    np.testing.assert_array_equal(bias_vector(graph, linear), np.zeros(width))


def test_a_product_that_is_an_output_ends_there() -> None:
    graph = written(
        "[linear] product = MatMul (start, weight)\n logits = Add (product, bias)",
        "float[n, 1, t, c] logits, float[n, 1, t, c] product",
        weight=(8, 6), bias=(6,),
    )  # fmt: skip
    assert linears(graph)["linear"].bias == ""


NO_LINEAR = {
    "scaled": FLAT + "p = Gemm <alpha = 0.5> (flat, weight)\n logits = Reshape (p, back)",
    "the activation transposed": (
        "rows = Constant <value_ints = [8, -1]> ()\n flat = Reshape (start, rows)\n"
        "back = Constant <value_ints = [-1, 1, 5, 6]> ()\n"
        "p = Gemm <transA = 1> (flat, weight)\n logits = Reshape (p, back)"
    ),
    "of two activations": (
        "turned = Transpose <perm = [0, 1, 3, 2]> (start)\n logits = MatMul (start, turned)"
    ),
    "the constant on the left": "logits = MatMul (table, start)",
    "a stack of matrices": "logits = MatMul (start, stack)",
    "of the graph's own input": "p = MatMul (pixels, weight)\n logits = Neg (p)",
}
CONSTANTS = {"weight": (8, 6), "table": (3, TOKENS), "stack": (1, 8, 6)}


@pytest.mark.parametrize("name", NO_LINEAR)
def test_what_is_no_linear_layer(name: str) -> None:
    body = NO_LINEAR[name]
    used = {name: shape for name, shape in CONSTANTS.items() if name in body}
    assert linears(written(body, **used)) == {}


CONSTANT_LAYERS = {"swin-v2": 2}
"""Layers that make a table of positions: export folds them."""


@pytest.mark.parametrize("name", FAMILIES)
def test_every_matrix_of_a_family_is_found(name: str) -> None:
    found = linears(tiny(name).graph).values()
    assert len(found) == tiny(name).matrices - CONSTANT_LAYERS.get(name, 0)
    assert len({linear.weight for linear in found}) == len(found)
