"""ONNX Runtime's execution providers: which stands for a device, and how it is asked for."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from vitdeploy import environment
from vitdeploy.backends.options import OnnxRuntimeDevice as Device
from vitdeploy.backends.options import OnnxRuntimeOptions
from vitdeploy.errors import EngineError, MissingDependencyError
from vitdeploy.graph.files import RunnableGraph
from vitdeploy.progress import Progress

CUDA = "CUDAExecutionProvider"
PROVIDERS: dict[Device, tuple[str, ...]] = {
    "cpu": ("CPUExecutionProvider",),
    "cuda": (CUDA, "CPUExecutionProvider"),
    "tensorrt": ("TensorrtExecutionProvider", CUDA, "CPUExecutionProvider"),
}
"""The provider that must be used, then those for what it does not compute."""

LEVELS = {
    "none": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}
_INSTALL_GPU = (
    "pip uninstall onnxruntime, then pip install onnxruntime-gpu, beside the CUDA and cuDNN "
    "(and for --device tensorrt the TensorRT) that its release was built for"
)


def session_options(
    runtime: Any, tuning: OnnxRuntimeOptions, threads: int | None, *, spinning: bool = False
) -> Any:
    """Options of a session. `spinning` threads wait awake: a little faster on a machine of their
    own, much slower where others want its cores."""
    options = runtime.SessionOptions()
    # What it logs as errors it raises too: standard error has it once, from us.
    options.log_severity_level = 4
    options.intra_op_num_threads = threads or environment.available_cores()
    options.graph_optimization_level = getattr(
        runtime.GraphOptimizationLevel, LEVELS[tuning.graph_optimization]
    )
    if not environment.describe().has_int8_dot_product:
        # u8s8 products can saturate here; ONNX Runtime then keeps them exact.
        options.add_session_config_entry("session.x64quantprecision", "1")
    if not spinning:
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if tuning.affinity:
        options.add_session_config_entry("session.intra_op_thread_affinities", tuning.affinity)
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    return options


def require_provider(runtime: Any, device: Device) -> list[str]:
    """The providers of `device`. Raises MissingDependencyError where this build lacks the first."""
    providers = list(PROVIDERS[device])
    if device != "cpu" and providers[0] not in runtime.get_available_providers():
        raise MissingDependencyError(
            f"this ONNX Runtime {runtime.__version__} has no {providers[0]}", hint=_INSTALL_GPU
        )
    return providers


def configured(providers: list[str], model: Path | bytes | RunnableGraph) -> list[Any]:
    """Providers with their options: what TensorRT compiled is kept beside the graph's file."""
    if not isinstance(model, Path) or providers[0] != PROVIDERS["tensorrt"][0]:
        return providers
    kept = {"trt_engine_cache_enable": "1", "trt_engine_cache_path": f"{model.parent.absolute()}"}
    return [(providers[0], kept), *providers[1:]]


def nodes_by_provider(session: Any) -> dict[str, int]:
    """How many nodes each provider computes; empty where ONNX Runtime does not say (< 1.24)."""
    tell = getattr(session, "get_provider_graph_assignment_info", None)
    if tell is None:
        return {}
    counts: Counter[str] = Counter()
    for part in tell():
        counts[part.ep_name] += len(part.get_nodes())
    return dict(sorted(counts.items()))


def require_its_nodes(settings: dict[str, Any], device: Device, progress: Progress) -> None:
    """Say how much of the graph the CPU computes; EngineError where that is all of it."""
    counts, wanted = settings["nodes_by_provider"], PROVIDERS[device][0]
    others = sum(number for name, number in counts.items() if name != wanted)
    if not counts or not others:
        return
    if not counts.get(wanted):
        raise EngineError(
            f"ONNX Runtime would compute no node of this graph by {wanted}",
            hint="export the graph again at another opset, or leave --device out for the CPU",
        )
    progress.note(
        f"{others} of {sum(counts.values())} nodes are not computed by {wanted}: "
        + ", ".join(f"{number} by {name}" for name, number in counts.items() if name != wanted)
    )
