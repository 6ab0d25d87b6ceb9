"""What can be refused before a build, without a GPU and without the vendor's library."""

from __future__ import annotations

from vitdeploy.artifacts.files import require_file
from vitdeploy.artifacts.onnx_model import OnnxModel
from vitdeploy.backends.base import BuildOptions
from vitdeploy.backends.tensorrt.flavour import Flavour
from vitdeploy.errors import EngineError, InputError, MissingDependencyError
from vitdeploy.target import Target


def check_build(
    flavour: Flavour, model: OnnxModel, options: BuildOptions, *, has_driver: bool
) -> tuple[Target, ...]:
    """The NVIDIA targets to build for; empty means the GPU of this machine.

    Raises InputError for an impossible batch range or a missing graph,
    MissingDependencyError where a GPU would be needed, EngineError where the
    flavour cannot build this graph for one of the targets.
    """
    require_file(model.path, what="ONNX model")
    _check_limits(options)
    targets = tuple(target for target in options.targets if not target.is_cpu)
    if flavour.builds_for_others:
        _check_ahead_of_time(flavour, targets, has_driver=has_driver)
        _check_fp32(flavour, model, targets)
    else:
        _check_this_gpu(flavour, targets, has_driver=has_driver)
    _check_bfloat16(model, targets)
    _check_fp8(model, targets)
    return targets


def _check_limits(options: BuildOptions) -> None:
    smallest, optimal, largest = options.batch
    if not 1 <= smallest <= optimal <= largest:
        raise InputError(
            f"the batch range {smallest}:{optimal}:{largest} is impossible",
            hint="give smallest:optimal:largest, each at least 1 and none below the one before",
        )
    for what, value in (("workspace", options.workspace_bytes), ("threads", options.threads)):
        if value is not None and value < 1:
            raise InputError(f"{what} is {value}", hint="give at least 1, or leave it out")


def _check_ahead_of_time(
    flavour: Flavour, targets: tuple[Target, ...], *, has_driver: bool
) -> None:
    if not targets and not has_driver:
        raise EngineError(
            f"{flavour.label} builds for NVIDIA GPUs, and there is none here to build for",
            hint="name the GPU, for example --target sm89, or use --backend onnxruntime",
        )
    impossible = [target.name for target in targets if not target.builds_in_tensorrt_rtx]
    if impossible:
        raise EngineError(
            f"{flavour.label} does not build for {', '.join(impossible)}",
            hint="build with --backend tensorrt on that machine itself",
        )


def _check_fp32(flavour: Flavour, model: OnnxModel, targets: tuple[Target, ...]) -> None:
    if not model.description.precision.endswith("fp32"):
        return
    without = [target.name for target in targets if not target.has_fp32_gemm_in_tensorrt_rtx]
    if without:
        raise EngineError(
            f"{model.path.name} is {model.description.precision}, and for {', '.join(without)} "
            f"{flavour.label} says: FP32 GEMM is not supported",
            hint="export with --fp16 or as int8-fp16, or leave that target out",
        )


def _check_bfloat16(model: OnnxModel, targets: tuple[Target, ...]) -> None:
    if not model.description.precision.endswith("bf16"):
        return
    without = [target.name for target in targets if not target.has_bfloat16]
    if without:
        raise EngineError(
            f"{model.path.name} is bf16, which {', '.join(without)} cannot compute",
            hint="export with --precision fp16, or leave that target out",
        )


def _check_fp8(model: OnnxModel, targets: tuple[Target, ...]) -> None:
    if not model.description.precision.startswith("fp8"):
        return
    without = [target.name for target in targets if not target.has_fp8]
    if without:
        raise EngineError(
            f"{model.path.name} is {model.description.precision}, which {', '.join(without)} "
            "cannot compute: FP8 begins with Ada (sm89)",
            hint="quantize with --int8, or leave that target out",
        )


def _check_this_gpu(flavour: Flavour, targets: tuple[Target, ...], *, has_driver: bool) -> None:
    if not has_driver:
        raise MissingDependencyError(
            f"{flavour.label} builds on the GPU the engine is for, and no NVIDIA driver is here",
            hint="run this on the target machine, or build ahead of time with "
            "--backend tensorrt-rtx --target sm89",
        )
    if len(targets) > 1:
        names = ", ".join(target.name for target in targets)
        raise EngineError(
            f"{flavour.label} builds for one GPU at a time, not for {names}",
            hint="build on each machine, or use --backend tensorrt-rtx",
        )
