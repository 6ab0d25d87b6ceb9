"""One request, any precision: what is drawn, kept, gated, and what is left as it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from patterned import PLAIN, Patterned, ruined

from vitdeploy.artifacts.onnx_model import OnnxModel
from vitdeploy.calibration.precision import BuildPrecision, PrecisionRequest, with_precision
from vitdeploy.calibration.quantize import Gates, QuantizationOptions
from vitdeploy.errors import CalibrationError, GateFailedError, InputError

FIRST = "blocks.0.mlp.fc2/MatMul"


@pytest.fixture(scope="module")
def int8(bench: Patterned, tmp_path_factory: pytest.TempPathFactory) -> OnnxModel:
    request = PrecisionRequest(precision="int8", calibration=bench.calibration, quantization=PLAIN)
    return with_precision(bench.model, request, tmp_path_factory.mktemp("int8"))


def test_fp32_is_the_graph_itself(bench: Patterned, tmp_path: Path) -> None:
    assert with_precision(bench.model, PrecisionRequest(), tmp_path) == bench.model
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_no_images_are_made_up(precision: BuildPrecision, bench: Patterned, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"{precision.upper()} needs calibration images") as caught:
        with_precision(bench.model, PrecisionRequest(precision=precision), tmp_path)
    assert "--calib" in str(caught.value.hint)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("precision", "half", "found"),
    [
        ("int8", False, "int8-fp32"),
        ("int8", True, "int8-fp16"),
        ("fp8", False, "fp8-fp32"),
        ("fp8", True, "fp8-fp16"),
        ("fp16", False, "fp16"),
        ("bf16", False, "bf16"),
    ],
)
def test_both_halves_of_the_name(
    precision: BuildPrecision, half: bool, found: str, bench: Patterned, tmp_path: Path
) -> None:
    """Whatever numbers the options were made for: the precision asked for is what is written."""
    request = PrecisionRequest(
        precision=precision, half=half, calibration=bench.calibration, quantization=PLAIN
    )
    written = with_precision(bench.model, request, tmp_path)
    assert written.description.precision == found
    other = replace(request, quantization=replace(PLAIN, numbers="fp8"))
    if precision == "int8" and not half:
        again = with_precision(bench.model, other, tmp_path)
        assert again.description.precision == found


def test_a_graph_that_is_quantized_already_is_left(int8: OnnxModel, tmp_path: Path) -> None:
    assert with_precision(int8, PrecisionRequest(precision="int8"), tmp_path) == int8
    assert list(tmp_path.iterdir()) == []


def test_one_of_other_numbers_is_refused(int8: OnnxModel, bench: Patterned, tmp_path: Path) -> None:
    request = PrecisionRequest(precision="fp8", calibration=bench.calibration)
    with pytest.raises(CalibrationError, match="is int8-fp32; INT8 and FP8 start from fp32"):
        with_precision(int8, request, tmp_path)


def test_half_of_a_quantized_graph_needs_no_calibration(int8: OnnxModel, tmp_path: Path) -> None:
    written = with_precision(int8, PrecisionRequest(precision="int8", half=True), tmp_path)
    assert written.description.precision == "int8-fp16"
    assert written.description.parent_digest == int8.digest
    assert written.description.quantization == int8.description.quantization
    assert written.description.forecast is not None
    assert not written.description.forecast.real_images


def test_images_are_drawn_from_a_folder(bench: Patterned, tmp_path: Path) -> None:
    request = PrecisionRequest(
        precision="int8",
        calibration=bench.images,
        calibration_count=24,
        seed=5,
        quantization=PLAIN,
        cache_folder=tmp_path / "statistics",
    )
    written = with_precision(bench.model, request, tmp_path)
    made = written.description.quantization
    assert made is not None
    assert made.images == len(set(made.image_digests)) == 24
    assert list((tmp_path / "statistics").glob("statistics-*.npz"))
    other = with_precision(bench.model, replace(request, seed=6), tmp_path)
    assert other.description.quantization is not None
    assert set(other.description.quantization.image_digests) != set(made.image_digests)
    assert other.path != written.path


def test_the_guard_stands_unless_it_is_forced(bench: Patterned, tmp_path: Path) -> None:
    bad = ruined(bench.model, tmp_path, FIRST)
    request = PrecisionRequest(precision="int8", calibration=bench.calibration, quantization=PLAIN)
    with pytest.raises(GateFailedError, match="lost its float version's answers"):
        with_precision(bad, request, tmp_path / "out")
    forced = with_precision(bad, replace(request, gates=Gates(force=True)), tmp_path / "out")
    assert forced.path.is_file()
    gates = Gates(max_drop_points=2.0, evaluation=bench.evaluation)
    mended = with_precision(bad, replace(request, gates=gates), tmp_path / "out")
    made = mended.description.quantization
    assert made is not None
    assert FIRST in made.kept
    assert mended.path != forced.path


def test_options_default_to_all_that_is_known(bench: Patterned, tmp_path: Path) -> None:
    request = PrecisionRequest(precision="int8", calibration=bench.calibration)
    made = with_precision(bench.model, request, tmp_path).description.quantization
    assert made is not None
    assert made.method == QuantizationOptions().method == "auto"
