"""FP8 graphs: their numbers against ONNX's own operators, their files, and for whom they are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator

from vitdeploy.artifacts.onnx_model import OnnxModel, read_onnx_model
from vitdeploy.backends import registry
from vitdeploy.backends.base import BuildOptions
from vitdeploy.backends.onnxruntime_ import GraphSession
from vitdeploy.calibration import quantize as quantizing
from vitdeploy.calibration.grids import FP8
from vitdeploy.calibration.image_set import CalibrationSet
from vitdeploy.calibration.plan import Policy, plan
from vitdeploy.calibration.qdq import insert_qdq
from vitdeploy.calibration.quantize import QuantizationOptions, quantize
from vitdeploy.errors import CalibrationError, EngineError, InputError
from vitdeploy.export.precision import to_half
from vitdeploy.graph import files
from vitdeploy.graph.emulation import emulate
from vitdeploy.images import batches
from vitdeploy.target import parse_targets

PLAIN = QuantizationOptions(numbers="fp8")


@pytest.fixture(scope="module")
def fp8(
    model: OnnxModel, calibration: CalibrationSet, tmp_path_factory: pytest.TempPathFactory
) -> OnnxModel:
    return quantize(model, calibration, tmp_path_factory.mktemp("fp8"), PLAIN)


@pytest.fixture(scope="module")
def half(fp8: OnnxModel, tmp_path_factory: pytest.TempPathFactory) -> OnnxModel:
    return to_half(fp8, tmp_path_factory.mktemp("half"))


@pytest.fixture(scope="module")
def pixels(model: OnnxModel, calibration: CalibrationSet) -> NDArray[np.float32]:
    description = model.description
    preprocessing = description.source.preprocessing
    return next(batches(calibration.images, preprocessing, description.resolution, 20))


def initializers(model: OnnxModel) -> dict[str, TensorProto]:
    return {tensor.name: tensor for tensor in onnx.load(str(model.path)).graph.initializer}


def test_weights_are_stored_as_fp8(
    model: OnnxModel, calibration: CalibrationSet, tmp_path: Path
) -> None:
    plain = replace(PLAIN, fold=False, correct_bias=False)
    written = quantize(model, calibration, tmp_path, plain)
    held, exact = initializers(written), initializers(model)
    weights = [name for name in held if name.endswith("_fp8") and len(held[name].dims) == 2]
    assert len(weights) == 9
    for name in weights:
        assert held[name].data_type == TensorProto.FLOAT8E4M3FN
        assert len(held[name].raw_data) == np.prod(held[name].dims)
        wanted = numpy_helper.to_array(exact[name.removesuffix("_fp8")])
        scales = numpy_helper.to_array(held[name.replace("_fp8", "_scale")])
        scales = scales.reshape([-1, 1] if name.startswith("head") else [1, -1])
        kept = numpy_helper.to_array(held[name]).astype(np.float32) * scales
        # Three bits behind the point: half a step is a sixteenth, and below 2^-6 steps are even.
        bound = np.maximum(np.abs(wanted) / 16, 2.0**-10 * scales)
        assert (np.abs(kept - wanted) <= 1.001 * bound).all()
    linear_bytes = 4 * sum(int(np.prod(held[name].dims)) for name in weights)
    saved = model.size_bytes - written.size_bytes
    assert 0.75 * linear_bytes - 40_000 < saved < 0.75 * linear_bytes
    zeros = [held[name] for name in held if name.endswith("_zero_point")]
    assert len(zeros) == 18
    assert {zero.data_type for zero in zeros} == {TensorProto.FLOAT8E4M3FN}


def test_it_describes_itself(model: OnnxModel, fp8: OnnxModel) -> None:
    again = read_onnx_model(fp8.path)
    assert again == fp8
    assert again.description.precision == "fp8-fp32"
    assert "_fp8-fp32-" in fp8.path.name
    made = again.description.quantization
    assert made is not None
    assert made.method == "absmax"
    assert set(made.ranges.values()) == {"absmax"}
    assert again.description.parent_digest == model.digest


def test_answers_stay_near_the_float_model(
    model: OnnxModel, fp8: OnnxModel, pixels: NDArray[np.float32]
) -> None:
    exact = GraphSession(model.path).run(pixels)
    answered = GraphSession(fp8.path, optimize=False).run(pixels)
    error = np.abs(answered - exact).mean() / (exact - exact.mean(0)).std()
    assert 1e-3 < error < 0.15


def test_a_smaller_scale_saturates(
    model: OnnxModel, fp8: OnnxModel, pixels: NDArray[np.float32]
) -> None:
    """Mutation: one range a thousandth of what it should be, beyond what FP8 still reaches."""
    exact = GraphSession(model.path).run(pixels)
    good = GraphSession(fp8.path, optimize=False).run(pixels)
    proto = onnx.load(str(fp8.path))
    scale = next(t for t in proto.graph.initializer if t.name == "layer_norm_scale")
    less = numpy_helper.to_array(scale) / np.float32(1000)
    scale.CopyFrom(numpy_helper.from_array(less, scale.name))
    bad = GraphSession(proto.SerializeToString(), optimize=False).run(pixels)
    assert np.isfinite(bad).all(), "saturated, not overflown"
    assert np.abs(bad - exact).mean() > 5 * np.abs(good - exact).mean()


ONE = """
<ir_version: 9, opset_import: ["" : 20]>
one (float[n, 1, 4, 6] pixels) => (float[n, 1, 4, 5] logits)
{
    left = Identity (pixels)
    [linear] product = MatMul (left, weight)
    logits = Identity (product)
}
"""


def one_linear(weight: NDArray[np.float32], scale: float) -> onnx.ModelProto:
    proto = onnx.parser.parse_model(ONE)
    proto.graph.initializer.append(numpy_helper.from_array(weight, "weight"))
    graph = ir.from_proto(proto)
    insert_qdq(graph, plan(graph, Policy(grid=FP8)), {"left": scale}, grid=FP8)
    files.unused_initializers_removed(graph)
    return ir.to_proto(graph)


def test_one_linear_equals_onnx_and_ml_dtypes() -> None:
    """Beyond 448 steps, between steps, below the smallest, and zero."""
    generator = np.random.default_rng(0)
    weight = (generator.normal(size=(6, 5)) * [0.1, 1, 10, 0.01, 3]).astype(np.float32)
    scale = 2.0**-6
    pixels = (generator.normal(size=(3, 1, 4, 6)) * [9, 1, 0.1, 1e-3, 1e-5, 0]).astype(np.float32)
    assert np.abs(pixels).max() > 448 * scale, "nothing saturates"
    proto = one_linear(weight, scale)
    onnx.checker.check_model(proto, full_check=True)

    answered = GraphSession(proto.SerializeToString(), optimize=False).run(pixels)
    (by_onnx,) = ReferenceEvaluator(proto).run(None, {"pixels": pixels})
    np.testing.assert_allclose(answered, by_onnx, rtol=1e-5, atol=1e-6)

    def e4m3(values: NDArray[Any]) -> NDArray[np.float64]:
        return np.clip(values, -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float64)

    scales = np.abs(weight).max(axis=0) / np.float32(448)
    scales = np.array([next(h for h in (np.float16(s), np.nextafter(np.float16(s), np.float16(1)))
                            if float(h) >= s) for s in scales]).astype(np.float32)  # fmt: skip
    expected = (e4m3(pixels / np.float32(scale)) * scale) @ (e4m3(weight / scales) * scales)
    np.testing.assert_allclose(answered, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("opset", [17, 18])
def test_older_opsets_have_no_fp8(
    opset: int, model: OnnxModel, calibration: CalibrationSet, tmp_path: Path
) -> None:
    old = replace(model, description=replace(model.description, opset=opset))
    with pytest.raises(CalibrationError, match=f"opset {opset}, which has no FP8") as caught:
        quantize(old, calibration, tmp_path, PLAIN)
    assert "--opset 19" in str(caught.value.hint)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("targets", "named"), [("sm86", "sm86"), ("sm89,sm75,sm87", "sm75, sm87")])
def test_gpus_without_fp8_are_refused_before_any_pass(
    targets: str,
    named: str,
    model: OnnxModel,
    calibration: CalibrationSet,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class NoPass:
        def __init__(self, *_: Any) -> None:
            raise AssertionError("calibration began")

    monkeypatch.setattr(quantizing, "Tuning", NoPass)
    options = replace(PLAIN, targets=parse_targets(targets))
    with pytest.raises(CalibrationError, match=f"^{named} cannot compute FP8") as caught:
        quantize(model, calibration, tmp_path, options)
    assert "--int8" in str(caught.value.hint)
    with pytest.raises(AssertionError, match="calibration began"):
        quantize(model, calibration, tmp_path, replace(PLAIN, targets=parse_targets("sm89,sm120")))


def test_the_rest_in_float16_keeps_the_numbers(fp8: OnnxModel, half: OnnxModel) -> None:
    assert half.description.precision == "fp8-fp16"
    wide, narrow = initializers(fp8), initializers(half)
    numbers = [name for name in wide if wide[name].data_type == TensorProto.FLOAT8E4M3FN]
    assert len(numbers) == 9 + 18
    for name in numbers:
        assert narrow[name].raw_data == wide[name].raw_data
        assert narrow[name].data_type == TensorProto.FLOAT8E4M3FN
    scales = [name for name in wide if name.endswith("_scale")]
    assert len(scales) == 18
    for name in scales:
        assert narrow[name].data_type == TensorProto.FLOAT16
        left, right = (numpy_helper.to_array(one[name]) for one in (wide, narrow))
        np.testing.assert_array_equal(left, right.astype(np.float32))


@pytest.mark.parametrize("variant", ["fused", "worst"])
def test_the_emulation_runs(
    variant: Any, fp8: OnnxModel, half: OnnxModel, pixels: NDArray[np.float32]
) -> None:
    exact = GraphSession(fp8.path, optimize=False).run(pixels)
    emulated = GraphSession(emulate(half, variant), optimize=False).run(pixels)
    error = np.abs(emulated - exact).mean() / (exact - exact.mean(0)).std()
    assert 0 < error < 0.1
    assert half.description.forecast is not None


def test_bfloat16_for_the_rest_is_refused(fp8: OnnxModel, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="FP8 with bf16"):
        to_half(fp8, tmp_path, precision="bf16")


def test_it_builds_for_gpus_that_have_it(half: OnnxModel, tmp_path: Path) -> None:
    """Without TensorRT-RTX this fails: a build that was never tried proves nothing."""
    options = BuildOptions(targets=parse_targets("sm89,sm120"), batch=(1, 2, 4))
    engine = registry.get("tensorrt-rtx").build(half, options, tmp_path / "fp8.engine")
    assert engine.manifest.targets == ("sm89", "sm120")
    assert engine.size_bytes > 0.5 * half.size_bytes


@pytest.mark.parametrize("backend", ["tensorrt-rtx", "tensorrt"])
@pytest.mark.parametrize("targets", ["sm86", "sm120,sm75"])
def test_other_gpus_are_refused_before_a_build(
    backend: str, targets: str, half: OnnxModel, tmp_path: Path
) -> None:
    from vitdeploy.backends.tensorrt.checks import Here, check_build
    from vitdeploy.backends.tensorrt.flavour import TENSORRT, TENSORRT_RTX

    flavour = TENSORRT_RTX if backend == "tensorrt-rtx" else TENSORRT
    if backend == "tensorrt":
        targets = targets.rpartition(",")[2]  # one GPU at a time
    options = BuildOptions(targets=parse_targets(targets))
    with pytest.raises(EngineError, match=r"fp8-fp16, which sm\d+ cannot compute") as caught:
        check_build(flavour, half, options, Here(has_driver=True))
    assert "--int8" in str(caught.value.hint)
    fine = BuildOptions(targets=parse_targets("sm89"))
    assert check_build(flavour, half, fine, Here(has_driver=True)).targets == parse_targets("sm89")
