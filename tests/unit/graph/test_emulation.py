"""The emulation against numpy's own float16, operator by operator."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

from vitdeploy.backends.onnxruntime_ import GraphSession
from vitdeploy.errors import InputError
from vitdeploy.graph import files
from vitdeploy.graph.emulation import SWITCHES, emulated, switchable

HALVES = {10: np.float16, 16: ml_dtypes.bfloat16}
LINEAR = """
    h = Cast <to = {half}> (pixels)
    w = Cast <to = {half}> (weight)
    p = MatMul (h, w)
    y = Cast <to = 1> (p)
"""


def typed(body: str, constants: dict[str, NDArray[Any]] | None = None, half: int = 10) -> ir.Model:
    """A typed graph from (n, 1, rows, columns) 'pixels' to 'y'; `constants` as they are given."""
    text = f"""
    <ir_version: 9, opset_import: ["" : 21]>
    planted (float[n, 1, r, c] pixels) => (float y) {{ {body.replace("{half}", str(half))} }}
    """
    proto = onnx.parser.parse_model(text)
    for name, array in (constants or {}).items():
        tensor = ir.to_proto(ir.Tensor(array, name=name))
        proto.graph.initializer.append(tensor)
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    return ir.from_proto(onnx.shape_inference.infer_shapes(proto))


def answer(model: ir.Model, pixels: NDArray[np.float32], *, optimize: bool = False) -> NDArray:
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    return GraphSession(files.serialize(model), optimize=optimize, threads=1).run(pixels)


def rounded(array: NDArray[Any], half: int = 10) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        return array.astype(HALVES[half]).astype(np.float32)


def drawn(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("variant", ["fused", "worst"])
def test_each_operator_rounds_what_it_answers(variant: Any, half: int) -> None:
    body = """
    h = Cast <to = {half}> (pixels)
    a = Add (h, shift)
    m = ReduceMax <keepdims = 1> (a)
    d = Div (a, m)
    y = Cast <to = 1> (d)
    """
    pixels, shift = drawn(3, 1, 4, 8), drawn(8, seed=1)
    model = typed(body, {"shift": shift.astype(HALVES[half])}, half)
    summed = rounded(rounded(pixels, half) + rounded(shift, half), half)
    expected = rounded(summed / summed.max(keepdims=True), half)
    for optimize in (False, True):
        got = answer(emulated(model, variant), pixels, optimize=optimize)
        np.testing.assert_array_equal(got, expected)
    assert not np.array_equal(expected, (pixels + shift) / (pixels + shift).max())


def test_a_chain_of_elementwise_operators_rounds_once_when_fused() -> None:
    """2048 + 0.75 - 2048 is 0 where each step rounds (FP16's step is 2 there), else 0.75."""
    body = """
    h = Cast <to = 10> (pixels)
    a = Add (h, big)
    s = Sub (a, big)
    y = Cast <to = 1> (s)
    """
    model = typed(body, {"big": np.float16([2048.0])})
    pixels = np.full((1, 1, 1, 2), 0.75, np.float32)
    for optimize in (False, True):
        assert (answer(emulated(model, "fused"), pixels, optimize=optimize) == 0.75).all()
        assert (answer(emulated(model, "worst"), pixels, optimize=optimize) == 0.0).all()
    # ONNX Runtime on the typed graph itself: the casts are dropped, nothing is rounded.
    assert (answer(model, pixels) == 0.75).all()


def test_a_product_takes_bias_and_gelu_along() -> None:
    body = """
    h = Cast <to = 10> (pixels)
    p = MatMul (h, weight)
    b = Add (p, bias)
    r = Relu (b)
    y = Cast <to = 1> (r)
    """
    pixels, weight, bias = drawn(2, 1, 3, 16), drawn(16, 5, seed=1), drawn(5, seed=2)
    model = typed(body, {"weight": np.float16(weight), "bias": np.float16(bias)})
    exact = rounded(pixels) @ rounded(weight)
    once = rounded(np.maximum(exact + rounded(bias), 0))
    twice = rounded(np.maximum(rounded(rounded(exact) + rounded(bias)), 0))
    assert not np.array_equal(once, twice)
    np.testing.assert_allclose(answer(emulated(model, "fused"), pixels), once, atol=2e-3)
    np.testing.assert_allclose(answer(emulated(model, "worst"), pixels), twice, atol=2e-3)
    assert np.mean(answer(emulated(model, "fused"), pixels) == once) > 0.95
    assert np.mean(answer(emulated(model, "worst"), pixels) == twice) > 0.95


def chunked(left: NDArray, right: NDArray) -> NDArray[np.float32]:
    """The slow reference: a rounded sum, the chunk that is not full first."""
    depth = left.shape[-1]
    bounds = [0, *range((depth - 1) % 16 + 1, depth + 1, 16)]
    total = np.zeros((*np.broadcast_shapes(left.shape[:-2], right.shape[:-2]), 1, 1), np.float32)
    for start, end in pairwise(bounds):
        total = rounded(total + left[..., start:end] @ right[..., start:end, :])
    return total


DEPTHS = (1, 15, 16, 17, 32, 100)


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("form", ["weight", "activation", "gemm"])
def test_fp16_products_add_up_in_chunks_of_sixteen(form: str, depth: int) -> None:
    """Small integers: every partial sum is exact in float32, so equality is exact.

    The depth of a product of activations is not known to the graph here.
    """
    generator = np.random.default_rng(depth)
    pixels = generator.integers(-40, 60, (2, 1, 3, depth)).astype(np.float32)
    weight = generator.integers(-40, 60, (depth, 5)).astype(np.float32)
    constants = {"weight": np.float16(weight)}
    expected = chunked(pixels, weight)
    body = LINEAR.replace("w = Cast <to = {half}> (weight)", "w = Identity (weight)")
    if form == "activation":
        body = """
        h = Cast <to = 10> (pixels)
        t = Transpose <perm = [0, 1, 3, 2]> (h)
        p = MatMul (h, t)
        y = Cast <to = 1> (p)
        """
        expected = chunked(pixels, pixels.transpose(0, 1, 3, 2))
    elif form == "gemm":
        body = """
        h = Cast <to = 10> (pixels)
        f = Reshape (h, flat)
        p = Gemm <alpha = 2.0, beta = 0.5, transB = 1> (f, weight, bias)
        y = Cast <to = 1> (p)
        """
        bias = generator.integers(-9, 9, 5).astype(np.float32)
        constants = {
            "weight": np.float16(weight.T),
            "bias": np.float16(bias),
            "flat": np.array([6, depth], np.int64),
        }
        expected = rounded(2 * chunked(pixels.reshape(6, depth), weight) + bias / 2)
    model = typed(body, constants)
    exact = answer(emulated(model, "worst"), pixels)
    np.testing.assert_array_equal(exact.reshape(expected.shape), expected)
    if depth > 32:
        fused = answer(emulated(model, "fused"), pixels).reshape(expected.shape)
        assert not np.array_equal(fused, expected), "the reference does not tell them apart"


def test_a_partial_sum_overflows_where_the_whole_does_not() -> None:
    pixels = np.full((1, 1, 1, 64), 100.0, np.float32)
    weight = np.repeat([100.0, -100.0], 32)[:, None].astype(np.float32)
    body = "h = Cast <to = 10> (pixels) p = MatMul (h, weight) y = Cast <to = 1> (p)"
    model = typed(body, {"weight": np.float16(weight)})
    assert answer(emulated(model, "fused"), pixels).item() == 0.0
    assert not np.isfinite(answer(emulated(model, "worst"), pixels).item())
    wide = typed(body.replace("to = 10", "to = 16"), {"weight": weight.astype(HALVES[16])})
    assert answer(emulated(wide, "worst"), pixels).item() == 0.0, "bfloat16 adds up in float32"


def test_int8_products_are_exact_and_dequantized_values_are_rounded() -> None:
    body = """
    h = Cast <to = 10> (pixels)
    q = QuantizeLinear (h, s, zero)
    d = DequantizeLinear (q, s, zero)
    w = DequantizeLinear (weight, ws, zero)
    p = MatMul (d, w)
    y = Cast <to = 1> (p)
    """
    generator = np.random.default_rng(0)
    weight = generator.integers(-127, 128, (64, 4)).astype(np.int8)
    scale, weight_scale = np.float16(0.0473), np.float16(0.0131)
    constants = {"weight": weight, "s": scale, "ws": weight_scale, "zero": np.int8(0)}
    model = typed(body, {name: np.asarray(array) for name, array in constants.items()})
    pixels = drawn(2, 1, 8, 64)
    integers = np.clip(np.rint(rounded(pixels) / np.float32(scale)), -128, 127)
    left = rounded(integers.astype(np.float32) * np.float32(scale))
    right = rounded(weight.astype(np.float32) * np.float32(weight_scale))
    assert not np.array_equal(left, integers * np.float32(scale))
    expected = rounded(left @ right)
    for variant in ("fused", "worst"):
        model_now = emulated(model, variant)
        kinds = [node.op_type for node in model_now.graph]
        assert kinds.count("DequantizeLinear") == 2
        assert "Scan" not in kinds
        got = answer(model_now, pixels)
        assert np.mean(got == expected) > 0.95
        np.testing.assert_allclose(got, expected, rtol=2e-3)


DECOMPOSED = """
    h = Cast <to = 10> (pixels)
    mean = ReduceMean (h, last)
    centered = Sub (h, mean)
    squared = Pow (centered, two)
    variance = ReduceMean (squared, last)
    safe = Add (variance, epsilon)
    deviation = Sqrt (safe)
    normal = Div (centered, deviation)
    y = Cast <to = 1> (normal)
"""


def test_a_decomposed_normalization_overflows_unseen_without_emulation() -> None:
    """1,400 squared is beyond FP16: its answer is zero, and nothing at the end is infinite."""
    constants = {
        "last": np.array([-1], np.int64),
        "two": np.float16(2.0),
        "epsilon": np.float16(1e-3),
    }
    model = typed(DECOMPOSED, constants)
    pixels = drawn(2, 1, 3, 8) + 1400 * np.float32([1, 0, 0, 0, 0, 0, 0, -1])
    deviation = pixels.std(-1, keepdims=True)
    expected = (pixels - pixels.mean(-1, keepdims=True)) / deviation
    plain = answer(model, pixels)
    np.testing.assert_allclose(plain, expected, atol=2e-2)
    for variant in ("fused", "worst"):
        for optimize in (False, True):
            got = answer(emulated(model, variant), pixels, optimize=optimize)
            assert (got == 0.0).all()


def test_switches_turn_the_rounding_of_each_group_on_and_off() -> None:
    body = """
    h = Cast <to = 10> (pixels)
    p = MatMul (h, weight)
    b = Add (p, bias)
    n = Softmax (b)
    y = Cast <to = 1> (n)
    """
    pixels, weight, bias = drawn(2, 1, 3, 16), drawn(16, 5, seed=1), drawn(5, seed=2)
    model = typed(body, {"weight": np.float16(weight), "bias": np.float16(bias)})
    exact = {"weight": ir.Tensor(weight, name="weight"), "bias": ir.Tensor(bias, name="bias")}
    switched, groups = switchable(model, exact)
    assert [group.nodes[-1].op_type for group in groups] == ["Cast", "Add", "Softmax"]
    session = GraphSession(files.serialize(switched), optimize=False, threads=1)

    def run(*on: bool) -> NDArray[np.float32]:
        return session.run_all(pixels, {SWITCHES: np.array(on)})[0]

    def softmax(logits: NDArray) -> NDArray:
        powers = np.exp(logits - logits.max(-1, keepdims=True))
        return powers / powers.sum(-1, keepdims=True)

    np.testing.assert_allclose(run(False, False, False), softmax(pixels @ weight + bias), rtol=1e-5)
    np.testing.assert_array_equal(run(True, True, True), answer(emulated(model, "fused"), pixels))
    np.testing.assert_allclose(
        run(True, False, False), softmax(rounded(pixels) @ weight + bias), rtol=1e-5
    )
    np.testing.assert_allclose(
        run(False, True, False),
        softmax(rounded(pixels @ rounded(weight) + rounded(bias))),
        rtol=2e-3,
    )


def test_the_typed_graph_is_left_as_it_was() -> None:
    model = typed(
        DECOMPOSED.replace("Pow (centered, two)", "Mul (centered, centered)"),
        {
            "last": np.array([-1], np.int64),
            "epsilon": np.float16(1e-3),
        },
    )
    before = copy.deepcopy(ir.to_proto(model)).SerializeToString(deterministic=True)
    for variant in ("fused", "worst"):
        emulated(model, variant)
    switchable(model, {})
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


def test_float32_graphs_have_nothing_to_emulate() -> None:
    model = typed("a = Neg (pixels) y = Neg (a)")
    with pytest.raises(InputError, match="neither float16") as caught:
        emulated(model, "fused")
    assert caught.value.hint
