"""What is refused before any library is asked."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trt_graphs import SHAPE, describe, transformer_head

from vitdeploy.artifacts.onnx_model import OnnxModel, Precision, ResolutionRange
from vitdeploy.backends.base import BuildOptions
from vitdeploy.backends.tensorrt.checks import Checked, Here
from vitdeploy.backends.tensorrt.checks import check_build as checked_build
from vitdeploy.backends.tensorrt.device import CudaBindings
from vitdeploy.backends.tensorrt.flavour import TENSORRT, TENSORRT_RTX, Flavour
from vitdeploy.backends.tensorrt.options import Shapes, TensorRTOptions
from vitdeploy.errors import EngineError, InputError, MissingDependencyError, VitDeployError
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


@dataclass(frozen=True)
class Refused:
    """One thing that cannot work, and what is said of it and of the way out."""

    flavour: Flavour
    said: str
    remedy: str
    targets: str = "sm89"
    precision: str = "fp16"
    opset: int = 20
    version: str = ""
    batch: tuple[int, int, int] = (1, 8, 64)
    tensorrt: TensorRTOptions = field(default_factory=TensorRTOptions)
    error: type[VitDeployError] = EngineError


def shapes(best: tuple[int, ...], name: str = "pixels") -> TensorRTOptions:
    return TensorRTOptions(shapes=Shapes(name, (1, *SHAPE), best, (8, *SHAPE)))


REFUSED = {
    "RTX on Orin": Refused(TENSORRT_RTX, "does not build for sm87", "on that machine", "sm87"),
    "RTX, FP32 on Turing": Refused(TENSORRT_RTX, "FP32 GEMM", "--fp16", "sm75", "fp32"),
    "BF16 on Turing": Refused(TENSORRT, "sm75 cannot compute", "fp16", "sm75", "bf16"),
    "FP8 before Ada": Refused(TENSORRT_RTX, "begins with Ada", "--int8", "sm86", "fp8-fp16"),
    "FP8 on Orin": Refused(TENSORRT, "begins with Ada", "--int8", "sm87", "fp8-fp16"),
    "opset for JetPack 6": Refused(
        TENSORRT, "takes opsets 9 to 20, not 21", "--opset 19", "sm87", opset=21,
        version="10.3.0.26",
    ),
    "opset for 11": Refused(
        TENSORRT, "takes opsets 9 to 25, not 26", "--opset", opset=26, version="11.4.1.2"
    ),
    "compatibility on Orin": Refused(
        TENSORRT, "ampere+ for sm87, a Jetson", "leave out", "sm87",
        tensorrt=TensorRTOptions(hardware_compatibility="ampere+"),
    ),
    "compatibility on Turing": Refused(
        TENSORRT, "older than Ampere", "leave out", "sm75",
        tensorrt=TensorRTOptions(hardware_compatibility="ampere+"),
    ),
    "RTX, hardware compatibility": Refused(
        TENSORRT_RTX, "no hardware compatibility levels", "--target sm86,sm89,sm120",
        tensorrt=TensorRTOptions(hardware_compatibility="same-cc"), error=InputError,
    ),
    "RTX, version compatibility": Refused(
        TENSORRT_RTX, "for other versions", "leave out --version-compat",
        tensorrt=TensorRTOptions(version_compatible=True), error=InputError,
    ),
    "optimization level": Refused(
        TENSORRT_RTX, "level is 6", "0 (fast to build) to 5",
        tensorrt=TensorRTOptions(optimization_level=6), error=InputError,
    ),
    "one range twice": Refused(
        TENSORRT_RTX, "twice", "leave one",
        tensorrt=TensorRTOptions(batches=((1, 2, 4), (1, 2, 4))), error=InputError,
    ),
    "an impossible second range": Refused(
        TENSORRT_RTX, "4:2:8 is impossible", "smallest",
        tensorrt=TensorRTOptions(batches=((1, 1, 1), (4, 2, 8))), error=InputError,
    ),
    "shapes of another input": Refused(
        TENSORRT_RTX, "the graph's is 'pixels'", "--minShapes=pixels:1x3x4x4",
        tensorrt=shapes((2, *SHAPE), "images"), error=InputError,
    ),
    "shapes of another size": Refused(
        TENSORRT_RTX, "which takes images of 3x4x4", "--res",
        tensorrt=shapes((2, 3, 8, 8)), error=InputError,
    ),
    "shapes without a batch": Refused(
        TENSORRT_RTX, "four sides", "--minShapes", tensorrt=shapes(SHAPE), error=InputError
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_work_is_refused_with_a_way_out(name: str, graph: Path) -> None:
    row = REFUSED[name]
    wanted = model(graph, row.precision)
    wanted = replace(wanted, description=replace(wanted.description, opset=row.opset))
    asked = options(row.targets, batch=row.batch, tensorrt=row.tensorrt)
    with pytest.raises(row.error, match=re.escape(row.said)) as caught:
        check_build(row.flavour, wanted, asked, has_driver=True, version=row.version)
    assert row.remedy in str(caught.value.hint)
    # Without the one thing that is wrong the same build is let through.
    check_build(row.flavour, model(graph), options("sm89"), has_driver=True, version=row.version)


def test_what_is_refused_for_a_target_is_refused_for_the_gpu_that_is_here(graph: Path) -> None:
    with pytest.raises(EngineError, match="sm75 cannot compute"):
        check_build(TENSORRT, model(graph, "bf16"), BuildOptions(), has_driver=True, capability=75)
    assert check_build(
        TENSORRT, model(graph, "bf16"), BuildOptions(), has_driver=True, capability=80
    ).targets == parse_targets("sm80")


@pytest.mark.parametrize("asked", [{"strip_weights": True}, {"refittable": True}])
def test_rtx_builds_without_weights_on_a_gpu_only(asked: dict[str, bool], graph: Path) -> None:
    wanted = options("sm89", tensorrt=TensorRTOptions(**asked))
    with pytest.raises(MissingDependencyError, match="needs a GPU"):
        check_build(TENSORRT_RTX, model(graph), wanted, has_driver=False)
    assert check_build(TENSORRT_RTX, model(graph), wanted, has_driver=True)


@pytest.mark.parametrize(("opset", "version"), [(20, "10.3.0"), (21, "10.13.2"), (25, "11.4.0")])
def test_opsets_that_are_taken_or_not_known_pass(opset: int, version: str, graph: Path) -> None:
    wanted = model(graph)
    wanted = replace(wanted, description=replace(wanted.description, opset=opset))
    assert check_build(TENSORRT, wanted, options("sm89"), has_driver=True, version=version)


def test_a_range_of_sizes_takes_shapes_within_it(graph: Path) -> None:
    wanted = model(graph)
    sizes = ResolutionRange((4, 4), (16, 16), (4, 4))
    wanted = replace(wanted, description=replace(wanted.description, resolution_range=sizes))

    def asking(largest: tuple[int, int]) -> BuildOptions:
        said = Shapes("pixels", (1, 3, 4, 8), (2, 3, 8, 8), (4, 3, *largest))
        return options("sm89", tensorrt=TensorRTOptions(shapes=said))

    check_build(TENSORRT_RTX, wanted, asking((16, 12)), has_driver=False)
    with pytest.raises(InputError, match="3x4x4 to 3x16x16"):
        check_build(TENSORRT_RTX, wanted, asking((20, 12)), has_driver=False)


def test_a_graph_of_one_batch_is_looked_at_before_the_vendor_is_asked(graph: Path) -> None:
    proto = transformer_head("fp16")
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 4
    graph.write_bytes(proto.SerializeToString())
    with pytest.raises(InputError, match="fixed batch of 4, and the engine was asked for 1 to 64"):
        check_build(TENSORRT_RTX, model(graph), options("sm89"), has_driver=False)
    check_build(TENSORRT_RTX, model(graph), options("sm89", batch=(4, 4, 4)), has_driver=False)


def test_weights_that_are_missing_or_cut_short_are_named(graph: Path) -> None:
    weights = "tiny.onnx.data"
    onnx.save(
        transformer_head("fp16"), str(graph), save_as_external_data=True, location=weights,
        size_threshold=16,
    )  # fmt: skip
    data = graph.with_name(weights)
    check_build(TENSORRT_RTX, model(graph), options("sm89"), has_driver=False)
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"tiny\.onnx\.data, which is cut short"):
        check_build(TENSORRT_RTX, model(graph), options("sm89"), has_driver=False)
    data.unlink()
    with pytest.raises(InputError, match="not beside it"):
        check_build(TENSORRT_RTX, model(graph), options("sm89"), has_driver=False)


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
