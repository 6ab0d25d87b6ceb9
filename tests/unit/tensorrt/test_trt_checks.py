"""What is refused before any library is asked."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trt_graphs import describe, transformer_head

from vitdeploy.artifacts.onnx_model import OnnxModel, Precision
from vitdeploy.backends.base import BuildOptions
from vitdeploy.backends.tensorrt.checks import Checked, Here
from vitdeploy.backends.tensorrt.checks import check_build as checked_build
from vitdeploy.backends.tensorrt.device import CudaBindings
from vitdeploy.backends.tensorrt.flavour import TENSORRT, TENSORRT_RTX, Flavour
from vitdeploy.errors import EngineError, InputError, MissingDependencyError
from vitdeploy.target import CPU, parse_targets


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.onnx"
    path.write_bytes(transformer_head("fp16").SerializeToString())
    return path


def check_build(
    flavour: Flavour,
    wanted: OnnxModel,
    asked: BuildOptions,
    *,
    has_driver: bool,
    version: str = "",
    capability: int | None = None,
) -> Checked:
    here = Here(has_driver, capability, version)
    return checked_build(flavour, wanted, asked, here)


def model(path: Path, precision: str = "fp16") -> OnnxModel:
    return OnnxModel(path, "0" * 64, describe(cast(Precision, precision)))


def options(targets: str, **more: Any) -> BuildOptions:
    return BuildOptions(targets=parse_targets(targets), **more)


@pytest.mark.parametrize("target", ["sm87", "sm90", "sm100", "sm110", "jetson-orin", "h200"])
def test_rtx_does_not_build_for_data_centre_and_jetson(target: str, graph: Path) -> None:
    with pytest.raises(EngineError, match="does not build for sm") as caught:
        check_build(TENSORRT_RTX, model(graph), options(target), has_driver=True)
    assert "--backend tensorrt" in str(caught.value.hint)


@pytest.mark.parametrize("precision", ["fp32", "int8-fp32"])
def test_rtx_has_no_fp32_product_on_turing(precision: str, graph: Path) -> None:
    with pytest.raises(EngineError, match="FP32 GEMM is not supported") as caught:
        check_build(TENSORRT_RTX, model(graph, precision), options("sm75,sm86"), has_driver=False)
    assert "--fp16" in str(caught.value.hint)
    assert "int8-fp16" in str(caught.value.hint)


@pytest.mark.parametrize("precision", ["fp16", "int8-fp16"])
def test_rtx_builds_fp16_for_turing(precision: str, graph: Path) -> None:
    checked = check_build(TENSORRT_RTX, model(graph, precision), options("sm75"), has_driver=False)
    assert checked.targets == parse_targets("sm75")


def test_rtx_without_gpu_needs_a_target(graph: Path) -> None:
    with pytest.raises(EngineError, match="none here to build for") as caught:
        check_build(TENSORRT_RTX, model(graph), BuildOptions(), has_driver=False)
    assert "--target sm89" in str(caught.value.hint)
    checked = check_build(TENSORRT_RTX, model(graph), BuildOptions(), has_driver=True)
    assert checked.asked == ()


def test_tensorrt_needs_the_gpu(graph: Path) -> None:
    with pytest.raises(MissingDependencyError, match="no NVIDIA driver") as caught:
        check_build(TENSORRT, model(graph), options("sm89"), has_driver=False)
    assert "--backend tensorrt-rtx" in str(caught.value.hint)


def test_tensorrt_builds_for_one_gpu(graph: Path) -> None:
    with pytest.raises(EngineError, match="one GPU at a time"):
        check_build(TENSORRT, model(graph), options("sm86,sm89"), has_driver=True)
    assert check_build(TENSORRT, model(graph), options("sm90"), has_driver=True)


def test_missing_graph_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent\.onnx does not exist"):
        check_build(TENSORRT_RTX, model(tmp_path / "absent.onnx"), options("sm89"), has_driver=True)


@pytest.mark.parametrize("more", [{"workspace_bytes": 0}, {"threads": 0}])
def test_limits_are_positive(more: dict[str, int], graph: Path) -> None:
    with pytest.raises(InputError, match="is 0"):
        check_build(TENSORRT_RTX, model(graph), options("sm89", **more), has_driver=True)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(batch=st.tuples(*[st.integers(-1, 4)] * 3))
def test_exactly_the_ordered_positive_ranges_pass(batch: tuple[int, int, int], graph: Path) -> None:
    wanted = options("sm89", batch=batch)
    if list(batch) == sorted(batch) and batch[0] > 0:
        check_build(TENSORRT_RTX, model(graph), wanted, has_driver=False)
    else:
        with pytest.raises(InputError, match="impossible"):
            check_build(TENSORRT_RTX, model(graph), wanted, has_driver=False)


def test_cpu_stands_for_the_gpu_of_this_machine(graph: Path) -> None:
    wanted = BuildOptions(targets=(CPU,))
    assert check_build(TENSORRT, model(graph), wanted, has_driver=True).asked == ()


@pytest.mark.skipif(
    sys.platform == "darwin", reason="tensorrt: cuda-bindings has no wheel for macOS"
)
def test_cuda_codes_become_errors() -> None:
    """Against the real bindings' codes; no driver is needed for that."""
    from cuda.bindings import runtime as cudart

    codes = cudart.cudaError_t

    def answering(code: Any, *values: Any) -> CudaBindings:
        stand_in = SimpleNamespace(
            cudaError_t=codes,
            cudaMalloc=lambda size: (code, *values),
            cudaDriverGetVersion=lambda: (codes.cudaSuccess, 0),
            cudaRuntimeGetVersion=lambda: (codes.cudaSuccess, 12060),
        )
        return CudaBindings(stand_in)

    assert answering(codes.cudaSuccess, 7).allocate(1) == 7
    with pytest.raises(EngineError, match="allocating 9 bytes: cudaErrorMemory") as caught:
        answering(codes.cudaErrorMemoryAllocation, None).allocate(9)
    assert "batch" in str(caught.value.hint)
    with pytest.raises(MissingDependencyError, match=r"driver 0\.0, CUDA runtime 12\.6"):
        answering(codes.cudaErrorInsufficientDriver, None).allocate(9)
