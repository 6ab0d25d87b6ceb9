"""Half precision that keeps the answers: what stays in float32, why, and what is promised."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from PIL import Image
from planted import loud_stream, written
from tiny_vits import constant_of, replaced, smooth_inputs

from vitdeploy import api
from vitdeploy.artifacts.onnx_model import OnnxModel, read_onnx_model
from vitdeploy.backends.onnxruntime_ import GraphSession
from vitdeploy.errors import ExportError, InputError
from vitdeploy.export import half_plan
from vitdeploy.export.export import ExportOptions, export
from vitdeploy.export.forecast import Tolerance, compared, holds, tolerance_of
from vitdeploy.export.half_search import HalfSearch
from vitdeploy.export.passes.half import to_half_types
from vitdeploy.export.precision import to_half
from vitdeploy.export.samples import as_bytes
from vitdeploy.graph import files
from vitdeploy.graph.emulation import emulate, emulated
from vitdeploy.graph.half import BF16, FP16
from vitdeploy.graph.observation import with_magnitudes
from vitdeploy.images import scan
from vitdeploy.models.source import SourceModel
from vitdeploy.preprocessing import Preprocessing

STRICT = tolerance_of("fp16")


def magnitudes(model: ir.Model, inputs: np.ndarray) -> dict[str, float]:
    names = half_plan.observable(model) if model.graph.outputs else ()
    session = GraphSession(files.serialize(with_magnitudes(model, names)), optimize=False)
    return dict(zip(names, map(float, session.run_all(inputs)[1::2]), strict=True))


@pytest.mark.parametrize(("precision", "dtype"), [("fp16", "float16"), ("bf16", "bfloat16")])
def test_pytorch_in_half_is_as_far_off_as_the_emulation(
    precision: str, dtype: str, grown: SourceModel, exported: OnnxModel, tmp_path: Path
) -> None:
    """The second witness: PyTorch's own half kernels on the CPU."""
    model = to_half(exported, tmp_path, precision=precision)  # type: ignore[arg-type]
    inputs = smooth_inputs(16, grown.resolution)
    exact = grown.logits(inputs)
    kind = getattr(torch, dtype)
    with torch.no_grad():
        witness = copy.deepcopy(grown.module).to(kind)(torch.from_numpy(inputs).to(kind))
    wrong = float((witness.float().numpy() - exact).std())
    assert wrong > 0
    for variant in ("fused", "worst"):
        answered = GraphSession(emulate(model, variant), optimize=False).run(inputs)
        assert 0.5 * wrong < (answered - exact).std() < 2 * wrong


def test_a_sound_model_keeps_nothing_and_says_what_to_expect(
    exported: OnnxModel, tmp_path: Path
) -> None:
    model = to_half(exported, tmp_path)
    description = read_onnx_model(model.path).description
    assert description.kept_float32 == {}
    forecast = description.forecast
    assert forecast is not None
    assert (forecast.images, forecast.real_images) == (8, False)
    assert 0.999 <= forecast.fused.cosine < 1
    assert forecast.fused.agreement == 1.0
    assert 0 < forecast.fused.max_error < 0.1
    assert 0 < forecast.worst.max_error < 0.2


def test_a_loud_stream_needs_no_float32_where_the_loud_channels_do_not_matter(
    tmp_path: Path,
) -> None:
    source = loud_stream(1600.0)
    graph = export(source, ExportOptions(), tmp_path)
    stream = magnitudes(files.load(graph), smooth_inputs(2, source.resolution))
    assert stream["add_17"] > 1500
    assert stream["add_120"] > 1500
    model = to_half(graph, tmp_path)
    assert model.description.kept_float32 == {}
    assert model.description.forecast.worst.cosine > 0.999  # type: ignore[union-attr]


def test_rounding_that_loses_the_prediction_is_found(tmp_path: Path) -> None:
    source = loud_stream(1600.0, channels=4, width=48, matters=True)
    graph = written(source, tmp_path)
    inputs = smooth_inputs(8, source.resolution)
    exact = GraphSession(graph.path, optimize=False).run(inputs)
    bare = to_half_types(files.load(graph))
    lost = GraphSession(files.serialize(emulated(bare, "fused")), optimize=False).run(inputs)
    assert not holds(compared(exact, lost, STRICT, classes=True), STRICT, classes=True)
    model = to_half(graph, tmp_path)
    kept = model.description.kept_float32
    kinds = {name.rsplit("/", 1)[1].split("_")[0] for name in kept if "/" in name}
    assert {"LayerNormalization", "Add"} <= kinds
    assert all("deviations" in why for why in kept.values())
    assert not any("mlp.fc2" in name and "MatMul" in name for name in kept)
    found = GraphSession(emulate(model, "fused"), optimize=False).run(inputs)
    assert holds(compared(exact, found, STRICT, classes=True), STRICT, classes=True)
    onnx.checker.check_model(str(model.path), full_check=True)


def test_an_overflow_is_caught_though_the_end_is_finite(written_out: OnnxModel) -> None:
    """Squares beyond 65,504 make the deviation infinite, and x / infinity is zero."""
    inputs = smooth_inputs(4, written_out.description.resolution)
    exact = GraphSession(written_out.path, optimize=False).run(inputs)
    bare = to_half_types(files.load(written_out))
    hidden = GraphSession(files.serialize(bare)).run(inputs)
    assert compared(exact, hidden, STRICT, classes=True).cosine > 0.99, "it shows by itself"
    emulation = emulated(bare, "fused")
    session = GraphSession(files.serialize(emulation), optimize=False)
    answered = session.run(inputs)
    assert np.isfinite(answered).all()
    assert compared(exact, answered, STRICT, classes=True).cosine < 0.9
    seen = with_magnitudes(emulation, ["blocks.0.norm1/Pow_2_out_rounded"])
    assert np.isinf(GraphSession(files.serialize(seen), optimize=False).run_all(inputs)[1])


def test_the_overflowing_operators_stay_in_float32(written_out: OnnxModel, tmp_path: Path) -> None:
    model = to_half(written_out, tmp_path)
    kept = model.description.kept_float32
    for block in ("blocks.0.norm1", "blocks.1.norm2", "norm"):
        squares = kept[f"{block}/Pow_2"]
        assert "65504" in squares
        assert f"{block}/ReduceMean_3" in kept
        assert f"{block}/Sqrt_5" not in kept, "the variance itself fits"
    assert not any("MatMul" in name or name.endswith("Softmax") for name in kept)
    assert model.description.forecast.fused.cosine > 0.999  # type: ignore[union-attr]
    proto = onnx.load(str(model.path))
    onnx.checker.check_model(proto, full_check=True)


def test_a_weight_beyond_float16_stays_in_float32(exported: OnnxModel, tmp_path: Path) -> None:
    graph = files.load(exported)
    gain = constant_of(graph, "blocks.0.norm1.weight")
    weight_name = next(
        str(node.inputs[1].name) for node in graph.graph if node.name == "blocks.0.attn.qkv/MatMul"
    )
    weight = constant_of(graph, weight_name)
    gain[5] *= 1e5
    weight[5] /= 1e5
    bias = constant_of(graph, "blocks.0.norm1.bias")
    bias[5] *= 1e5
    for name, array in (
        ("blocks.0.norm1.weight", gain),
        (weight_name, weight),
        ("blocks.0.norm1.bias", bias),
    ):
        graph = replaced(graph, name, array)
    planted = files.save(graph, exported.description, tmp_path / "planted.onnx")
    model = to_half(planted, tmp_path)
    kept = model.description.kept_float32
    assert set(kept) >= {"blocks.0.norm1/LayerNormalization", "blocks.0.attn.qkv/MatMul"}
    assert "blocks.0.norm1.weight holds" in kept["blocks.0.norm1/LayerNormalization"]
    assert "reaches" in kept["blocks.0.attn.qkv/MatMul"]
    assert len(kept) <= 3
    half = files.load(model)
    np.testing.assert_array_equal(constant_of(half, "blocks.0.norm1.weight"), gain)


def searched(text: str, inputs: np.ndarray, tolerance: Tolerance = STRICT) -> HalfSearch:
    graph = ir.from_proto(onnx.parser.parse_model(text))
    return HalfSearch(graph, FP16, tolerance, inputs, classes=False)


def test_an_epsilon_that_becomes_zero_is_found_behind_the_division() -> None:
    """0 / sqrt(0 + 1e-12) is 0; FP16 has no 1e-12, and 0 / 0 is none."""
    text = """
    <ir_version: 9, opset_import: ["" : 20]>
    planted (float[n, 1, 2, 8] pixels) => (float[n, 1, 2, 8] logits)
    <int64[1] last = {-1}, float[2, 1] epsilon = {1e-12, 1e-12}> {
        squares = Mul (pixels, pixels)
        mean = ReduceMean (squares, last)
        safe = Add (mean, epsilon)
        root = Sqrt (safe)
        spread = Identity (root)
        logits = Div (pixels, spread)
    }
    """
    inputs = np.random.default_rng(0).normal(size=(4, 1, 2, 8)).astype(np.float32)
    inputs[:, :, 1] = 0
    typed = searched(text, inputs).typed()
    assert any(name.startswith("Sqrt") or name.startswith("Add") for name in typed.kept)
    assert "not finite" in "".join(typed.kept.values())
    assert typed.fused.cosine > 0.999
    bare = emulated(to_half_types(ir.from_proto(onnx.parser.parse_model(text))), "fused")
    lost = GraphSession(files.serialize(bare), optimize=False).run(inputs)
    assert np.isnan(lost).any()


def test_values_near_the_end_of_the_range_leave_headroom() -> None:
    text = """
    <ir_version: 9, opset_import: ["" : 20]>
    planted (float[n, 1, 1, 8] pixels) => (float[n, 1, 1, 8] logits)
    <float[1] gain = {GAIN}, float[1] back = {0.001}> {
        large = Mul (pixels, gain)
        mild = Softmax (large)
        logits = Mul (mild, back)
    }
    """
    inputs = np.random.default_rng(0).uniform(-1, 1, (4, 1, 1, 8)).astype(np.float32)
    assert np.abs(inputs).max() > 0.85
    assert "Mul_node0" in searched(text.replace("GAIN", "40000.0"), inputs).typed().kept
    assert searched(text.replace("GAIN", "100.0"), inputs).typed().kept == {}


def test_an_infinite_border_is_no_overflow() -> None:
    text = """
    <ir_version: 9, opset_import: ["" : 20]>
    planted (float[n, 1, 4, 8] pixels) => (float[n, 1, 2, 4] logits)
    <int64[8] sides = {0, 0, 0, 0, 0, 0, 1, 1}, float border = {BORDER}> {
        wide = Neg (pixels)
        padded = Pad (wide, sides, border)
        logits = MaxPool <kernel_shape = [3, 3], strides = [2, 2]> (padded)
    }
    """
    inputs = np.random.default_rng(0).normal(size=(3, 1, 4, 8)).astype(np.float32)
    graph = ir.from_proto(onnx.parser.parse_model(text.replace("BORDER", "-1.0")))
    graph.graph.initializers["border"].const_value = ir.Tensor(np.float32(-np.inf).reshape(()))
    search = HalfSearch(graph, FP16, STRICT, inputs, classes=False)
    assert search.typed().kept == {}
    # The least float32 number is a mask too, but FP16 does not hold it.
    finite = searched(text.replace("BORDER", "-3e38"), inputs).typed()
    assert "border holds 3e+38" in "".join(finite.kept.values())


def test_geometry_is_kept_in_float32(tmp_path: Path) -> None:
    text = """
    <ir_version: 9, opset_import: ["" : 20]>
    planted (float[n, 1, h, 8] pixels) => (float[n, 1, h, 8] logits)
    <float zero = {0.0}, float one = {1.0}, int64[4] form = {1, 1, -1, 1}> {
        size = Shape <start = 2, end = 3> (pixels)
        scalar = Squeeze (size)
        height = Cast <to = 1> (scalar)
        steps = Range (zero, height, one)
        waves = Sin (steps)
        column = Reshape (waves, form)
        logits = Add (pixels, column)
    }
    """
    inputs = np.random.default_rng(0).normal(size=(3, 1, 5, 8)).astype(np.float32)
    typed = searched(text, inputs).typed()
    kinds = {node.op_type for node in typed.graph.graph if node.name in typed.kept}
    assert kinds == {"Cast", "Range", "Sin"}
    assert any("no fp16 Range" in why for why in typed.kept.values())
    proto = ir.to_proto(typed.graph)
    onnx.checker.check_model(proto, full_check=True)


def test_nothing_is_promised_that_cannot_be_kept(exported: OnnxModel) -> None:
    inputs = smooth_inputs(8, exported.description.resolution)
    search = HalfSearch(files.load(exported), FP16, Tolerance(1 - 1e-9, 0.1), inputs, classes=True)
    with pytest.raises(ExportError, match="most to blame") as caught:
        search.typed()
    assert "fp32" in str(caught.value.hint)
    assert "patch_embed.proj/Conv" in str(caught.value) or "blocks." in str(caught.value)


def test_bf16_and_int8_say_what_they_start_from(exported: OnnxModel, tmp_path: Path) -> None:
    wide = to_half(exported, tmp_path, precision="bf16")
    assert wide.description.precision == "bf16"
    assert wide.path.name.split("-")[0].endswith("bf16")
    assert wide.description.kept_float32 == {
        "patch_embed.proj/Conv": "ONNX has no bf16 Conv at opset 20"
    }
    with pytest.raises(InputError, match="bfloat16 already"):
        to_half(wide, tmp_path)
    int8 = replace(exported, description=replace(exported.description, precision="int8-fp32"))
    with pytest.raises(InputError, match="INT8 with bf16"):
        to_half(int8, tmp_path, precision="bf16")


def test_bytes_are_what_the_preprocessing_normalizes() -> None:
    preprocessing = Preprocessing(mean=(0.2, 0.5, 0.7), std=(0.3, 0.2, 0.1))
    pixels = np.random.default_rng(0).integers(0, 256, (2, 4, 5, 3)).astype(np.uint8)
    normalized = (pixels / np.float32(255) - preprocessing.mean) / preprocessing.std
    inputs = normalized.transpose(0, 3, 1, 2).astype(np.float32)
    np.testing.assert_array_equal(as_bytes(inputs, preprocessing), pixels)
    assert BF16.epsilon == 8 * FP16.epsilon


def test_images_that_are_there_are_what_it_is_judged_on(
    exported: OnnxModel, tmp_path: Path
) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    generator = np.random.default_rng(0)
    for index in range(3):
        pixels = np.kron(generator.integers(0, 256, (6, 10, 3)), np.ones((16, 16, 1)))
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{index}.png")
    request = api.PrecisionRequest(precision="bf16", images=scan(folder))
    model = api.with_precision(exported, request, tmp_path)
    forecast = model.description.forecast
    assert forecast is not None
    assert forecast.real_images
    assert api.with_precision(model, request, tmp_path) == model


def test_a_dynamic_graph_of_bytes_is_judged_at_its_best_size(
    source: SourceModel, tmp_path: Path
) -> None:
    options = ExportOptions(
        dynamic_resolution=((64, 64), (128, 128)), input_format="uint8-nhwc", precision="fp16"
    )
    model = export(source, options, tmp_path)
    kept = model.description.kept_float32
    assert model.description.precision == "fp16"
    assert {"normalize/Cast", "normalize/Sub", "normalize/Mul"} <= kept.keys()
    assert any("independent of the pixels" in why for why in kept.values())
    assert not any("attn" in name or "mlp" in name for name in kept)
    assert model.description.forecast.fused.cosine > 0.999  # type: ignore[union-attr]
    onnx.checker.check_model(str(model.path), full_check=True)


LEARNED_AND_COUNTED = """
<ir_version: 9, opset_import: ["" : 20]>
pooling (float[n, 4, 2] pixels) => (float[n, 1, 2] answers)
<float[1, 1, 2] query = {0.5, 2.0}, float[2, 2] weight = {1.0, 0.5, 0.25, 1.0},
 int64[2] sides = {1, 2}, int64 zero = {0}, int64 one = {1}, int64[1] axis = {0},
 float step = {0.1}>
{
   count = Shape <start = 0, end = 1> (pixels)
   shape = Concat <axis = 0> (count, sides)
   queries = Expand (query, shape)
   learned = MatMul (queries, weight)
   tokens = Shape <start = 1, end = 2> (pixels)
   scalar = Squeeze (tokens, axis)
   range = Range (zero, scalar, one)
   floats = Cast <to = 1> (range)
   counted = Mul (floats, step)
   wide = Unsqueeze (counted, one)
   moved = Add (pixels, wide)
   turned = Transpose <perm = [0, 2, 1]> (moved)
   scores = MatMul (learned, turned)
   shares = Softmax <axis = -1> (scores)
   answers = MatMul (shares, moved)
}
"""


def test_what_is_counted_stays_and_what_is_learned_does_not() -> None:
    """A learned query is repeated for the batch: its numbers come of no size."""
    graph = ir.from_proto(
        onnx.shape_inference.infer_shapes(onnx.parser.parse_model(LEARNED_AND_COUNTED))
    )
    for node in graph.graph:
        node.name = str(node.outputs[0].name)
    kept = half_plan.required(graph, FP16)
    assert {"counted", "floats"} <= kept.keys()
    assert kept.keys().isdisjoint({"queries", "learned", "moved", "scores", "shares", "answers"})
