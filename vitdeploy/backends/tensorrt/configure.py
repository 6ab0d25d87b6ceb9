"""How the builder is told what was asked for. Runs in the child process.

Every option of `BuildRequest` becomes a call here; RTX's own stand behind
`builds_for_others`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vitdeploy.backends.tensorrt.flavour import FLAVOURS
from vitdeploy.backends.tensorrt.request import BuildRequest
from vitdeploy.errors import EngineError
from vitdeploy.target import Target


class RefusedError(Exception):
    """The vendor refused; its reason is in the log, or in these fields."""

    def __init__(self, text: str = "", *, node: str = "", operator: str = "") -> None:
        super().__init__(text)
        self.fields = {"text": text, "node": node, "operator": operator}


def configure(
    trt: Any,
    builder: Any,
    network: Any,
    config: Any,
    request: BuildRequest,
    capability: int | None,
) -> None:
    """Set everything but the timing cache and the progress monitor.

    `capability` is that of this machine's GPU where the engine is for it, None
    where it is for others. Raises RefusedError where the vendor says no,
    EngineError where the graph or the version does not have what was asked for.
    """
    if request.threads is not None:
        builder.max_threads = request.threads
    _set_memory(trt, config, request, capability)
    if request.optimization_level is not None:
        config.builder_optimization_level = request.optimization_level
    for name in request.flags:
        config.set_flag(getattr(trt.BuilderFlag, name))
    if request.hardware_level:
        _set_hardware_level(trt, config, request.hardware_level)
    _add_profiles(builder, network, config, request)
    if FLAVOURS[request.flavour].builds_for_others:
        _set_targets(trt, config, request)


def _set_memory(trt: Any, config: Any, request: BuildRequest, capability: int | None) -> None:
    limit = request.workspace_bytes
    if limit is None:
        return
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, limit)
    if capability is not None and Target(f"sm{capability}", capability).is_jetson:
        # The GPU of a Jetson takes its memory from the system's, and tactics from this pool.
        config.set_memory_pool_limit(trt.MemoryPoolType.TACTIC_DRAM, limit)


def _set_hardware_level(trt: Any, config: Any, name: str) -> None:
    level = getattr(trt.HardwareCompatibilityLevel, name, None)
    if level is None:
        raise EngineError(
            f"TensorRT {trt.__version__} has no hardware compatibility {name}",
            hint="give --hardware-compat ampere+, or use a newer TensorRT",
        )
    config.hardware_compatibility_level = level


def _add_profiles(builder: Any, network: Any, config: Any, request: BuildRequest) -> None:
    tensor = network.get_input(0)
    fixed = tensor.shape[0]
    for smallest, best, largest in request.profiles:
        if fixed != -1 and (smallest[0], largest[0]) != (fixed, fixed):
            raise EngineError(
                f"{Path(request.graph).name} has a fixed batch of {fixed}",
                hint=f"build with --batch {fixed}, or export a dynamic batch",
            )
        profile = builder.create_optimization_profile()
        profile.set_shape(tensor.name, smallest, best, largest)
        if config.add_optimization_profile(profile) < 0:
            raise RefusedError("the optimization profile is invalid")


def _set_targets(trt: Any, config: Any, request: BuildRequest) -> None:
    names = [f"SM{number}" for number in request.compute_capabilities] or ["CURRENT"]
    config.num_compute_capabilities = len(names)
    for index, name in enumerate(names):
        if not config.set_compute_capability(getattr(trt.ComputeCapability, name), index):
            raise RefusedError(f"cannot build for {name}")
