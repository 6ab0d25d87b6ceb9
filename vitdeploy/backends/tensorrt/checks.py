"""What can be refused before a build, without a GPU and without the vendor's library.

Facts about devices come from `Target`, facts about the graph from its file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vitdeploy.artifacts.files import require_file
from vitdeploy.artifacts.onnx_model import OnnxModel, load_proto
from vitdeploy.backends.base import BuildOptions
from vitdeploy.backends.tensorrt.flavour import Flavour
from vitdeploy.backends.tensorrt.profiles import Profile, profiles_of
from vitdeploy.errors import EngineError, InputError, MissingDependencyError
from vitdeploy.target import Target, why_opset_is_refused

_LEVELS = range(6)


@dataclass(frozen=True)
class Here:
    """The machine that builds: its driver, its GPU's compute capability, the vendor's version.

    What is not known (None, "") is left to the vendor.
    """

    has_driver: bool
    capability: int | None = None
    version: str = ""


@dataclass(frozen=True)
class Checked:
    """A build that nothing speaks against.

    `asked` are the NVIDIA targets named, none for the GPU of this machine;
    `targets` those the engine is for, as far as that is known.
    """

    asked: tuple[Target, ...]
    targets: tuple[Target, ...]


def check_build(flavour: Flavour, model: OnnxModel, options: BuildOptions, here: Here) -> Checked:
    """The NVIDIA targets to build for.

    Raises InputError for options that contradict each other or the graph, and
    for a damaged graph or one whose weights are missing, MissingDependencyError
    where a GPU would be needed, EngineError where the flavour cannot build this
    graph for one of the targets.
    """
    require_file(model.path, what="ONNX model")
    profiles = profiles_of(model.description, options)
    checked = check_options(
        flavour, options, here, precision=model.description.precision, graph=model.path.name
    )
    _check_opset(flavour, model, here)
    _check_file(model, profiles)
    return checked


def check_options(
    flavour: Flavour,
    options: BuildOptions,
    here: Here,
    *,
    precision: str,
    graph: str = "the graph",
) -> Checked:
    """As `check_build`, as far as it can be told before there is a graph of this precision."""
    _check_limits(options)
    asked = tuple(target for target in options.targets if not target.is_cpu)
    targets = asked
    if not asked and here.capability is not None:
        targets = (Target(f"sm{here.capability}", here.capability),)
    if flavour.builds_for_others:
        _check_ahead_of_time(flavour, targets, here)
        _check_no_enterprise_options(flavour, options, here)
    else:
        _check_this_gpu(flavour, targets, here)
        _check_hardware_level(options, targets)
    _check_precision(flavour, f"{graph} is {precision}", precision, targets)
    return Checked(asked, targets)


def _check_limits(options: BuildOptions) -> None:
    for what, value in (("workspace", options.workspace_bytes), ("threads", options.threads)):
        if value is not None and value < 1:
            raise InputError(f"{what} is {value}", hint="give at least 1, or leave it out")
    level = options.tensorrt.optimization_level
    if level is not None and level not in _LEVELS:
        raise InputError(
            f"the optimization level is {level}",
            hint=f"give {_LEVELS[0]} (fast to build) to {_LEVELS[-1]} (fast to run)",
        )
    if options.tensorrt.timing_cache is not None and options.tensorrt.without_timing_cache:
        raise InputError(
            "a timing cache is named and refused at once",
            hint="leave out --timing-cache or --no-timing-cache",
        )


def _check_ahead_of_time(flavour: Flavour, targets: tuple[Target, ...], here: Here) -> None:
    if not targets and not here.has_driver:
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


def _check_no_enterprise_options(flavour: Flavour, options: BuildOptions, here: Here) -> None:
    """What TensorRT-RTX 1.7.1 ignores or fails on, each tried."""
    asked = options.tensorrt
    if asked.hardware_compatibility is not None:
        raise InputError(
            f"{flavour.label} has no hardware compatibility levels",
            hint="name every GPU instead: --target sm86,sm89,sm120 builds one engine for them all",
        )
    if asked.version_compatible:
        raise InputError(
            f"{flavour.label} builds no engine for other versions of itself",
            hint="leave out --version-compat and build once with each version, "
            "which needs no GPU and takes seconds",
        )
    if (asked.strip_weights or asked.refittable) and not here.has_driver:
        raise MissingDependencyError(
            f"{flavour.label} needs a GPU to build engines without weights or refittable ones",
            hint="leave out --strip-weights and --refit, or build on a machine with a GPU",
        )


def _check_hardware_level(options: BuildOptions, targets: tuple[Target, ...]) -> None:
    level = options.tensorrt.hardware_compatibility
    if level is None:
        return
    for target in targets:
        if target.is_jetson or (level == "ampere+" and not target.has_hardware_compatibility):
            why = "a Jetson" if target.is_jetson else "older than Ampere"
            raise EngineError(
                f"there is no hardware compatibility {level} for {target.name}, {why}",
                hint="leave out --hardware-compat, and build on each machine",
            )


def _check_precision(
    flavour: Flavour, said: str, precision: str, targets: tuple[Target, ...]
) -> None:
    """Raise EngineError where a target cannot compute in this precision.

    `said` begins the message: 'vit.onnx is fp8-fp16'.
    """
    rules: list[tuple[bool, Callable[[Target], bool], str, str]] = [
        (
            flavour.builds_for_others and precision.endswith("fp32"),
            lambda target: target.has_fp32_gemm_in_tensorrt_rtx,
            f"and for {{}} {flavour.label} says: FP32 GEMM is not supported",
            "export with --fp16 or as int8-fp16",
        ),
        (
            precision.endswith("bf16"),
            lambda target: target.has_bfloat16,
            "which {} cannot compute",
            "export with --precision fp16",
        ),
        (
            precision.startswith("fp8"),
            lambda target: target.has_fp8,
            "which {} cannot compute: FP8 begins with Ada (sm89)",
            "quantize with --int8",
        ),
    ]
    for applies, has, wrong, remedy in rules:
        without = [target.name for target in targets if not has(target)]
        if applies and without:
            raise EngineError(
                f"{said}, {wrong.format(', '.join(without))}",
                hint=f"{remedy}, or leave that target out",
            )


def _check_this_gpu(flavour: Flavour, targets: tuple[Target, ...], here: Here) -> None:
    if not here.has_driver:
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
    others = [target.name for target in targets if target.compute_capability != here.capability]
    if here.capability is not None and others:
        raise EngineError(
            f"{flavour.label} builds for the GPU it runs on, sm{here.capability}, "
            f"not for {others[0]}",
            hint=f"build on the target machine, or give --target sm{here.capability}",
        )


def _check_opset(flavour: Flavour, model: OnnxModel, here: Here) -> None:
    why = why_opset_is_refused(model.description.opset, flavour.name, here.version)
    if why:
        raise EngineError(
            f"{model.path.name} is of opset {model.description.opset}: {flavour.label} {why}",
            hint="export with --opset 19 (or 17 with FP32 scales for JetPack 6)",
        )


def _check_file(model: OnnxModel, profiles: tuple[Profile, ...]) -> None:
    """What the file itself shows: it is a graph, its weights are here, the profiles fit it."""
    proto = load_proto(model.path)
    _require_weights(model, proto)
    batch = _fixed_batch(proto)
    for smallest, _, largest in profiles:
        if batch is not None and (smallest[0], largest[0]) != (batch, batch):
            raise InputError(
                f"{model.path.name} has a fixed batch of {batch}, and the engine was asked "
                f"for {smallest[0]} to {largest[0]}",
                hint=f"build with --batch {batch}, or export a dynamic batch",
            )


def _require_weights(model: OnnxModel, proto: Any) -> None:
    """External data is there, and long enough for what the graph reads of it."""
    needed: dict[str, int] = {}
    for tensor in proto.graph.initializer:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if entries:
            end = int(entries.get("offset", 0)) + int(entries.get("length", 0))
            needed[entries["location"]] = max(end, needed.get(entries["location"], 0))
    for location, size_bytes in needed.items():
        path = model.path.parent / location
        if not path.is_file() or path.stat().st_size < size_bytes:
            wrong = "cut short" if path.is_file() else "not beside it"
            raise InputError(
                f"{model.path.name} keeps its weights in {location}, which is {wrong}",
                hint=f"copy {path.name} into the same folder again",
            )


def _fixed_batch(proto: Any) -> int | None:
    sides = proto.graph.input[0].type.tensor_type.shape.dim
    if not sides or not sides[0].HasField("dim_value"):
        return None
    return sides[0].dim_value
