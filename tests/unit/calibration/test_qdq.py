"""The Q/DQ form: its structure, its numbers, and that planted defects are seen."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from onnx import numpy_helper

from vitdeploy.artifacts.onnx_model import OnnxModel, read_onnx_model
from vitdeploy.backends.onnxruntime_ import GraphSession
from vitdeploy.calibration.image_set import CalibrationSet
from vitdeploy.calibration.linear import LinearNode
from vitdeploy.calibration.plan import Policy, QuantizationPlan, plan
from vitdeploy.calibration.qdq import _rounded, insert_qdq
from vitdeploy.calibration.quantize import QuantizationOptions, quantize
from vitdeploy.errors import CalibrationError
from vitdeploy.export.precision import to_half
from vitdeploy.graph import files
from vitdeploy.images import batches


@pytest.fixture(scope="module")
def int8(
    model: OnnxModel, calibration: CalibrationSet, tmp_path_factory: pytest.TempPathFactory
) -> OnnxModel:
    return quantize(model, calibration, tmp_path_factory.mktemp("int8"))


@pytest.fixture(scope="module")
def pixels(model: OnnxModel, calibration: CalibrationSet) -> NDArray[np.float32]:
    description = model.description
    preprocessing = description.source.preprocessing
    return next(batches(calibration.images, preprocessing, description.resolution, 20))


def violations(proto: onnx.ModelProto) -> list[str]:
    """Whatever in a quantized graph is not what TensorRT and ONNX Runtime both take well."""
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    makers = {name: node for node in proto.graph.node for name in node.output}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in proto.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    found = []
    quantized = Counter(n.input[0] for n in proto.graph.node if n.op_type == "QuantizeLinear")
    found += [f"{name} is quantized {n} times" for name, n in quantized.items() if n > 1]
    for node in proto.graph.node:
        if node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
            continue
        scale, zero = constants[node.input[1]], constants[node.input[2]]
        if zero.dtype != np.int8 or zero.any():
            found.append(f"{node.name} is not symmetric int8")
        if not (scale > 0).all():
            found.append(f"{node.name} has a scale of zero")
        if node.op_type == "QuantizeLinear":
            if [reader.op_type for reader in readers[node.output[0]]] != ["DequantizeLinear"]:
                found.append(f"{node.name} is not followed by its DequantizeLinear alone")
            continue
        for reader in readers[node.output[0]]:
            if reader.op_type not in ("MatMul", "Gemm"):
                found.append(f"{reader.op_type} {reader.name} reads a quantized value")
        if node.input[0] in constants:
            found += _weight_violations(node, constants[node.input[0]], scale, readers)
        elif makers[node.input[0]].input[1] != node.input[1] or scale.shape != ():
            found.append(f"{node.name} has another scale than its QuantizeLinear")
    return found


def _weight_violations(
    node: onnx.NodeProto,
    integers: NDArray[Any],
    scale: NDArray[Any],
    readers: dict[str, list[onnx.NodeProto]],
) -> list[str]:
    if integers.dtype != np.int8:
        return [f"{node.input[0]} is not stored as int8"]
    axes = [attribute.i for attribute in node.attribute if attribute.name == "axis"]
    (reader,) = readers[node.output[0]]
    transposed = any(a.name == "transB" and a.i for a in reader.attribute)
    channels = integers.shape[0 if transposed else 1]
    if scale.shape != (channels,) or axes != [0 if transposed else 1]:
        return [f"{node.name} has no scale for each output channel"]
    return []


def test_structure(int8: OnnxModel) -> None:
    proto = onnx.load(str(int8.path))
    onnx.checker.check_model(proto, full_check=True)
    assert violations(proto) == []
    found = Counter(node.op_type for node in proto.graph.node)
    assert found["QuantizeLinear"] == 9
    assert found["DequantizeLinear"] == 18
    assert found["Add"] == 13
    dequantized = {
        name
        for node in proto.graph.node
        if node.op_type == "DequantizeLinear"
        for name in node.output
    }
    for node in proto.graph.node:
        if node.op_type in ("MatMul", "Gemm"):
            quantized_inputs = sum(name in dequantized for name in node.input[:2])
            assert quantized_inputs == (
                0 if node.name.startswith(("blocks.0.attn/", "blocks.1.attn/")) else 2
            )
            assert not set(node.input[2:]) & dequantized, "a bias is quantized"
    for tensor in proto.graph.initializer:
        if tensor.name.endswith("_int8"):
            assert tensor.data_type == onnx.TensorProto.INT8


def quantize_an_add(proto: onnx.ModelProto) -> None:
    add = next(node for node in proto.graph.node if node.name == "blocks.0/Add")
    pair = [tensor.name for tensor in proto.graph.initializer]
    scale = next(name for name in pair if name.endswith("layer_norm_scale"))
    zero = next(name for name in pair if name.endswith("layer_norm_zero_point"))
    index = list(proto.graph.node).index(add)
    nodes = [
        onnx.helper.make_node("QuantizeLinear", [add.input[1], scale, zero], ["add_q"], name="q"),
        onnx.helper.make_node("DequantizeLinear", ["add_q", scale, zero], ["add_dq"], name="dq"),
    ]
    add.input[1] = "add_dq"
    for offset, node in enumerate(nodes):
        proto.graph.node.insert(index + offset, node)


def _replace(proto: onnx.ModelProto, name: str, array: NDArray[Any]) -> None:
    tensor = next(tensor for tensor in proto.graph.initializer if tensor.name == name)
    tensor.CopyFrom(numpy_helper.from_array(array, name))


def _weight_dequantize(proto: onnx.ModelProto) -> onnx.NodeProto:
    return next(n for n in proto.graph.node if n.name == "blocks.0.mlp.fc1/MatMul/weight_dequant")


def weights_per_tensor(proto: onnx.ModelProto) -> None:
    node = _weight_dequantize(proto)
    _replace(proto, node.input[1], np.array(0.01, np.float32))
    _replace(proto, node.input[2], np.array(0, np.int8))
    del node.attribute[:]


def channels_of_the_wrong_axis(proto: onnx.ModelProto) -> None:
    node = _weight_dequantize(proto)
    _replace(proto, node.input[1], np.full(96, 0.01, np.float32))
    _replace(proto, node.input[2], np.zeros(96, np.int8))
    node.attribute[0].i = 0


def unsigned_activation(proto: onnx.ModelProto) -> None:
    _replace(proto, "layer_norm_zero_point", np.array(128, np.uint8))


def scale_of_zero(proto: onnx.ModelProto) -> None:
    _replace(proto, "layer_norm_scale", np.array(0, np.float32))


def weights_left_in_float(proto: onnx.ModelProto) -> None:
    node = _weight_dequantize(proto)
    integers = next(t for t in proto.graph.initializer if t.name == node.input[0])
    _replace(proto, node.input[0], numpy_helper.to_array(integers).astype(np.float32))


@pytest.mark.parametrize(
    ("defect", "complaint"),
    [
        (quantize_an_add, "reads a quantized value"),
        (weights_per_tensor, "output channel"),
        (channels_of_the_wrong_axis, "output channel"),
        (unsigned_activation, "not symmetric int8"),
        (scale_of_zero, "scale of zero"),
        (weights_left_in_float, "not stored as int8"),
    ],
)
def test_planted_defects_are_seen(
    int8: OnnxModel, defect: Callable[[onnx.ModelProto], None], complaint: str
) -> None:
    proto = copy.deepcopy(onnx.load(str(int8.path)))
    defect(proto)
    assert any(complaint in text for text in violations(proto))


def test_the_file_shrinks_and_tells_how_it_was_made(
    model: OnnxModel, int8: OnnxModel, calibration: CalibrationSet
) -> None:
    per_block = 96 * 288 + 96 * 96 + 2 * 96 * 384
    linear_bytes = 4 * (2 * per_block + 96 * 10)
    saved_bytes = model.size_bytes - int8.size_bytes
    # Three quarters of the Linear layers' weights, less scales, names and description.
    assert 0.75 * linear_bytes - 40_000 < saved_bytes < 0.75 * linear_bytes
    again = read_onnx_model(int8.path)
    assert again == int8
    made = again.description.quantization
    assert made is not None
    assert (made.method, made.images) == ("auto", 20)
    assert set(made.ranges.values()) <= {"mse", "entropy", "percentile", "absmax"}
    assert len(made.ranges) == 9
    assert made.image_digests == calibration.digests
    assert len(made.quantized) == 9
    assert again.description.parent_digest == model.digest
    with pytest.raises(CalibrationError, match="start from fp32"):
        quantize(again, calibration, int8.path.parent)


def test_options_name_other_files(
    model: OnnxModel, int8: OnnxModel, calibration: CalibrationSet, tmp_path: Path
) -> None:
    options = QuantizationOptions(method="absmax", keep=("head/Gemm",))
    other = quantize(model, calibration, tmp_path, options)
    assert other.path.name != int8.path.name
    proto = onnx.load(str(other.path))
    assert Counter(node.op_type for node in proto.graph.node)["QuantizeLinear"] == 8


def test_answers_stay_near_the_float_model(
    model: OnnxModel, int8: OnnxModel, pixels: NDArray[np.float32]
) -> None:
    exact = GraphSession(model.path).run(pixels)
    answered = GraphSession(int8.path, optimize=False).run(pixels)
    spread = float((exact - exact.mean(0)).std())
    error = np.abs(answered - exact).mean() / spread
    assert 1e-4 < error < 0.1


def test_a_saturated_scale_is_seen(
    model: OnnxModel, graph: ir.Model, int8: OnnxModel, pixels: NDArray[np.float32]
) -> None:
    """A twentieth of the range of one activation, and the answers are far off."""
    exact = GraphSession(model.path).run(pixels)
    good = GraphSession(int8.path, optimize=False).run(pixels)
    proto = onnx.load(str(int8.path))
    scale = next(t for t in proto.graph.initializer if t.name == "layer_norm_scale")
    _replace(proto, scale.name, numpy_helper.to_array(scale) / np.float32(20))
    bad = GraphSession(proto.SerializeToString(), optimize=False).run(pixels)
    assert np.abs(bad - exact).mean() > 5 * np.abs(good - exact).mean()


def test_half_scales_keep_the_integers(int8: OnnxModel, tmp_path: Path) -> None:
    half = to_half(int8, tmp_path)
    assert half.description.precision == "int8-fp16"

    def arrays(model: OnnxModel) -> dict[str, NDArray[Any]]:
        proto = onnx.load(str(model.path))
        return {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}

    wide, narrow = arrays(int8), arrays(half)
    assert wide.keys() == narrow.keys()
    scales = [name for name in wide if name.endswith("_scale")]
    integers = [name for name in wide if wide[name].dtype == np.int8]
    assert len(scales) == 18
    assert len(integers) == 27
    for name in scales:
        assert narrow[name].dtype == np.float16
        np.testing.assert_array_equal(narrow[name].astype(np.float32), wide[name])
    for name in integers:
        np.testing.assert_array_equal(narrow[name], wide[name])


@given(
    hnp.arrays(np.float32, 5, elements=st.floats(2.0**-24, 60000.0, width=32)),
    st.booleans(),
)
def test_rounded_scales_never_shrink(scales: NDArray[np.float32], half: bool) -> None:
    """A smaller scale would clip the largest weight."""
    found = _rounded(scales, half)
    assert found.dtype == np.float32
    assert (found >= scales).all()
    if half:
        np.testing.assert_array_equal(found.astype(np.float16).astype(np.float32), found)
        assert (found <= scales * np.float32(1.001) + np.float32(2.0**-24)).all()
    else:
        np.testing.assert_array_equal(found, scales)


@pytest.mark.parametrize("value", [7e4, np.inf, np.nan, 0.0])
def test_scales_beyond_float16_are_refused(value: float) -> None:
    with pytest.raises(CalibrationError, match="float16") as caught:
        _rounded(np.array(value), True)
    assert caught.value.hint


LINEAR = """
<ir_version: 9, opset_import: ["" : 20]>
one (float[n, 3, 4, 6] pixels) => (float[n, 3, 4, 5] logits)
{
    left = Identity (pixels)
    [linear] product = MatMul (left, weight)
    logits = Identity (product)
}
"""


def one_linear(weight: NDArray[np.float32]) -> ir.Model:
    proto = onnx.parser.parse_model(LINEAR)
    proto.graph.initializer.append(numpy_helper.from_array(weight, "weight"))
    return ir.from_proto(proto)


def test_one_linear_equals_a_slow_fake_quantization() -> None:
    generator = np.random.default_rng(0)
    weight = (generator.normal(size=(6, 5)) * [0.1, 1, 10, 0.01, 3]).astype(np.float32)
    pixels = generator.normal(size=(2, 3, 4, 6)).astype(np.float32) * 2
    graph = one_linear(weight)
    scale = float(np.float32(np.float16(0.03)))
    insert_qdq(graph, plan(graph), {"left": scale})
    answered = GraphSession(files.serialize(graph), optimize=False).run(pixels)

    expected = np.zeros((2, 3, 4, 5))
    for index in np.ndindex(2, 3, 4):
        for out in range(5):
            step = float(np.abs(weight[:, out]).max()) / 127
            half = np.float16(step)
            if float(half) < step:
                half = np.nextafter(half, np.float16(np.inf))
            total = 0.0
            for k in range(6):
                left = max(-128, min(127, round(float(pixels[(*index, k)]) / scale)))
                right = max(-127, min(127, round(float(weight[k, out]) / float(half))))
                total += left * scale * right * float(half)
            expected[(*index, out)] = total
    np.testing.assert_allclose(answered, expected, rtol=1e-5, atol=1e-5)


def test_one_pair_serves_all_readers_and_a_kept_one_stays_float() -> None:
    text = """
    <ir_version: 9, opset_import: ["" : 20]>
    three (float[n, 3, 4, 4] pixels) => (float[n, 3, 4, 4] logits)
    <float[4, 4] weight = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8,
                           0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6}>
    {
        left = Relu (pixels)
        [first] a = MatMul (left, weight)
        [second] b = MatMul (left, weight)
        [third] c = MatMul (left, weight)
        ab = Add (a, b)
        logits = Add (ab, c)
    }
    """
    graph = ir.from_proto(onnx.parser.parse_model(text))
    files.unused_initializers_removed(
        insert_qdq(graph, plan(graph, Policy(keep=("third",))), {"left": 0.02})
    )
    found = Counter(node.op_type for node in graph.graph)
    assert found["QuantizeLinear"] == 1
    assert found["DequantizeLinear"] == 2
    third = next(node for node in graph.graph if node.name == "third")
    assert [value.name for value in third.inputs if value is not None] == ["left", "weight"]
    assert "weight" in graph.graph.initializers
    onnx.checker.check_model(ir.to_proto(graph), full_check=True)


def test_unread_weights_leave_the_file(graph: ir.Model) -> None:
    chosen = plan(graph)
    insert_qdq(graph, chosen, dict.fromkeys(chosen.activations, 0.05))
    files.unused_initializers_removed(graph)
    assert not {node.weight for node in chosen.linear} & set(graph.graph.initializers)


def test_an_input_of_the_graph_is_not_quantized() -> None:
    graph = one_linear(np.ones((6, 5), np.float32))
    wrong = QuantizationPlan((LinearNode("linear", "pixels", "weight", 1),), {})
    with pytest.raises((CalibrationError, KeyError), match="pixels"):
        insert_qdq(graph, wrong, {"pixels": 0.1})
