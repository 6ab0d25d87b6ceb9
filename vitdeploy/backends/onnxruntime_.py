"""ONNX Runtime on the CPU, and on NVIDIA GPUs through its CUDA and TensorRT providers.

The GPU providers were not run where this was written; what is asked of them is
tested with a stand-in.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitdeploy import environment
from vitdeploy.artifacts.engine import Engine
from vitdeploy.artifacts.files import atomic_path, file_digest
from vitdeploy.artifacts.onnx_model import ModelDescription, OnnxModel
from vitdeploy.backends.affinity import require_cores
from vitdeploy.backends.base import (
    Availability,
    BuildOptions,
    CpuBuild,
    checked_batch,
    image_input,
    require_cpu_options,
    require_own_options,
    require_same_machine,
    write_cpu_engine,
)
from vitdeploy.backends.onnxruntime_providers import (
    CUDA,
    LEVELS,
    PROVIDERS,
    configured,
    nodes_by_provider,
    require_its_nodes,
    require_provider,
    session_options,
)
from vitdeploy.backends.options import OnnxRuntimeDevice as Device
from vitdeploy.backends.options import OnnxRuntimeOptions
from vitdeploy.errors import EngineError, InputError, MissingDependencyError
from vitdeploy.graph.files import RunnableGraph
from vitdeploy.progress import SILENT, Progress

_INSTALL = "pip install 'vitdeploy[cpu]'"


class GraphSession:
    """A session on a graph, a file or in memory. Call with (n, channels, height, width) float32.

    With `optimize` off, a Q/DQ graph is computed as it is written: that is its
    reference meaning, which the fused int8 kernels are compared with.
    `description` says what the graph takes and which of its outputs `run`
    returns; without it, any images and the first. `tuning` names the device:
    what that cannot compute is computed on the CPU, and a session that could
    not begin there is an EngineError. `spinning`: see `session_options`.
    """

    def __init__(
        self,
        model: Path | bytes | RunnableGraph,
        *,
        optimize: bool = True,
        threads: int | None = None,
        name: str = "ONNX Runtime",
        description: ModelDescription | None = None,
        tuning: OnnxRuntimeOptions | None = None,
        spinning: bool = False,
    ) -> None:
        tuning = tuning or OnnxRuntimeOptions()
        if not optimize:
            tuning = replace(tuning, graph_optimization="none")
        # ONNX Runtime keeps no reference: the values must live as long as the session.
        self._session, self._weights = _opened(model, tuning, threads, spinning=spinning)
        self._takes = None if description is None else image_input(description)
        self._answer = 0 if description is None else self._position(description.output_name)
        self.name = name

    def _position(self, answer: str) -> int:
        names = [output.name for output in self._session.get_outputs()]
        if answer not in names:
            raise EngineError(
                f"the graph has no output {answer!r}, it has {', '.join(names)}",
                hint="export it again: the file is not what its description says",
            )
        return names.index(answer)

    def run(self, batch: NDArray[np.float32]) -> NDArray[np.float32]:
        """The output that was asked for, (n, classes) float32."""
        return self.run_all(batch)[self._answer]

    def run_all(
        self, batch: NDArray[np.float32], others: Mapping[str, NDArray] | None = None
    ) -> list[NDArray[np.float32]]:
        """Every output of the graph, in the graph's order; `others` are its inputs
        besides the batch."""
        batch = checked_batch(batch, self._takes)
        entry = self._session.get_inputs()[0]
        try:
            return self._session.run(None, {entry.name: batch, **(others or {})})
        except runtime_errors() as error:
            raise EngineError(
                f"ONNX Runtime failed while running: {_in_one_line(error)}",
                hint="try smaller batches; if that does not help, report the text above",
            ) from error


def _opened(
    model: Path | bytes | RunnableGraph,
    tuning: OnnxRuntimeOptions,
    threads: int | None,
    save_optimized_to: Path | None = None,
    *,
    spinning: bool = False,
) -> tuple[Any, list[Any]]:
    """ONNX Runtime's own session, and the weights that it reads from memory.

    Raises EngineError where the graph cannot be loaded, or the session does not begin on
    the device asked for.
    """
    runtime = _runtime()
    providers = require_provider(runtime, tuning.device)
    options = session_options(runtime, tuning, threads, spinning=spinning)
    if save_optimized_to is not None:
        options.optimized_model_filepath = str(save_optimized_to)
    weights = []
    if isinstance(model, RunnableGraph):
        weights = [runtime.OrtValue.ortvalue_from_numpy(array) for array in model.weights.values()]
        options.add_external_initializers(list(model.weights), weights)
        source: bytes | str = model.proto
    else:
        source = model if isinstance(model, bytes) else str(model)
    try:
        # By itself ONNX Runtime goes on with the CPU where a provider fails, then and in runs.
        session = runtime.InferenceSession(
            source, options, providers=configured(providers, model), enable_fallback=0
        )
    except runtime_errors() as error:
        where = model if isinstance(model, Path) else "the graph"
        raise EngineError(
            f"ONNX Runtime cannot load {where}: {_in_one_line(error)}",
            hint="export it again; if that does not help, report the text above",
        ) from error
    used = session.get_providers()[0]
    if used != providers[0]:
        raise EngineError(
            f"ONNX Runtime was asked for {providers[0]} and took {used}",
            hint="its CUDA and cuDNN must be those onnxruntime-gpu was built for, see "
            "`vitdeploy doctor`; to do without the GPU install onnxruntime instead",
        )
    return session, weights


def fastest_device() -> Device:
    """'cuda' where onnxruntime-gpu is installed beside an NVIDIA driver, else 'cpu'."""
    has_cuda = CUDA in _runtime().get_available_providers()
    return "cuda" if has_cuda and environment.has_nvidia_driver() else "cpu"


class OnnxRuntimeBackend:
    """Builds an engine by saving the graph as ONNX Runtime optimized it for this device.

    `device` is the one for builds whose options name none; another than the CPU
    stands in the backend's name.
    """

    def __init__(self, device: Device = "cpu") -> None:
        self._device: Device = device
        self.name = "onnxruntime" if device == "cpu" else f"onnxruntime-{device}"

    def probe(self) -> Availability:
        try:
            runtime = _runtime()
            require_provider(runtime, self._device)
            providers = tuple(runtime.get_available_providers())
            runs = self._device == "cpu" or environment.has_nvidia_driver()
            return Availability(True, runtime.__version__, can_execute=runs, devices=providers)
        except MissingDependencyError as error:
            return Availability(False, reason=f"{error}; {error.hint}")

    def check_options(self, options: BuildOptions, precision: str) -> None:
        """Raise what a build would, as far as the options tell."""
        device = self._tuning(options).device
        require_cpu_options(options, "ONNX Runtime", precision, device=device)
        require_own_options(options, self.name)
        require_provider(_runtime(), device)
        affinity = options.onnxruntime.affinity
        if affinity:
            require_cores(affinity)
        pinned = options.onnxruntime.pinned_threads()
        if pinned is not None and options.threads != pinned:
            raise InputError(
                f"--affinity {affinity!r} is for {pinned} threads",
                hint=f"give --threads {pinned}: the first is the caller's and is not pinned",
            )

    def _tuning(self, options: BuildOptions) -> OnnxRuntimeOptions:
        """What is asked for, on this backend's own device where no other is named."""
        asked = options.onnxruntime
        return replace(asked, device=self._device) if asked.device == "cpu" else asked

    def build(
        self,
        model: OnnxModel,
        options: BuildOptions,
        output: Path,
        progress: Progress = SILENT,
    ) -> Engine:
        tuning = self._tuning(options)
        options = replace(options, onnxruntime=tuning)
        self.check_options(options, model.description.precision)
        started = time.perf_counter()
        with atomic_path(output) as temporary:
            settings = _optimize(model, options, temporary)
            require_its_nodes(settings, tuning.device, progress)
            digest = file_digest(temporary)
        built = CpuBuild(
            backend=self.name,
            version=_runtime().__version__,
            digest=digest,
            seconds=time.perf_counter() - started,
            settings=settings,
            device=tuning.device,
            device_name=_device_name(tuning.device),
        )
        return write_cpu_engine(output, model, options, built)

    def load(
        self, engine: Engine, *, threads: int | None = None, alone: bool = True
    ) -> GraphSession:
        manifest = engine.manifest
        tuning = _recorded(engine)
        require_same_machine(engine, _runtime().__version__, _device_name(tuning.device))
        pinned = tuning.pinned_threads()
        if pinned is not None:
            require_cores(tuning.affinity)
        if pinned is not None and threads not in (None, pinned):
            raise InputError(
                f"{engine.path.name} pins its {pinned} threads to cores {tuning.affinity}",
                hint=f"leave --threads out, or give --threads {pinned}",
            )
        try:
            return GraphSession(
                engine.path,
                threads=threads or pinned,
                name=_session_name(tuning.device, manifest.model.precision),
                description=manifest.model,
                tuning=tuning,
                spinning=alone,
            )
        except EngineError as error:
            raise EngineError(str(error), hint="run `vitdeploy build-engine` again") from error


def _optimize(model: OnnxModel, options: BuildOptions, destination: Path) -> dict[str, Any]:
    """Save the optimized graph; the settings it was made with, for the manifest."""
    asked = options.onnxruntime
    # TensorRT compiles when a session begins, and what it compiled cannot be saved as a graph.
    saved_by = replace(asked, device="cpu", graph_optimization="basic")
    tuning = saved_by if asked.device == "tensorrt" else asked
    try:
        session, _ = _opened(model.path, tuning, options.threads, destination)
    except EngineError as error:
        _opened(model.path, tuning, options.threads)  # raises where it is the graph's fault
        raise _write_error(destination, model.size_bytes) from error
    if asked.device == "tensorrt":
        session, _ = _opened(destination, asked, options.threads)
    return {
        "provider": session.get_providers()[0],
        "nodes_by_provider": nodes_by_provider(session),
        "graph_optimization": tuning.graph_optimization,
        "threads": options.threads or environment.available_cores(),
        "affinity": asked.affinity,
    }


def _write_error(destination: Path, size_bytes: int) -> OSError:
    """Why so many bytes cannot be written: ONNX Runtime itself calls the graph invalid then."""
    try:
        destination.write_bytes(bytes(size_bytes))
    except OSError as error:
        return error
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # what it wrote was larger


def _recorded(engine: Engine) -> OnnxRuntimeOptions:
    """How an engine was built, for loading it alike. Raises EngineError where that is not known."""
    settings = engine.manifest.settings
    devices = {names[0]: device for device, names in PROVIDERS.items()}
    device = devices.get(str(settings.get("provider", PROVIDERS["cpu"][0])))
    level = str(settings.get("graph_optimization", "all"))
    if device is None or level not in LEVELS:
        raise EngineError(
            f"{engine.path.name} names provider {settings.get('provider')!r} and graph "
            f"optimization {level!r}, which this version does not know",
            hint="run `vitdeploy build-engine` again",
        )
    affinity = str(settings.get("affinity", ""))
    return OnnxRuntimeOptions(device=device, graph_optimization=level, affinity=affinity)  # pyright: ignore[reportArgumentType]


def _device_name(device: Device) -> str:
    """Empty for the CPU, whose features say more than its name."""
    return "" if device == "cpu" else environment.describe().gpu or "an NVIDIA GPU"


def _session_name(device: Device, precision: str) -> str:
    on = {"cpu": "", "cuda": " CUDA", "tensorrt": " TensorRT"}[device]
    return f"ONNX Runtime{on} {precision}"


def _in_one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def runtime_errors() -> tuple[type[BaseException], ...]:
    """The exception types ONNX Runtime raises; they share no root of their own."""
    from onnxruntime.capi import (
        onnxruntime_pybind11_state as state,  # pyright: ignore[reportAttributeAccessIssue]
    )

    return (
        state.Fail,
        state.InvalidArgument,
        state.InvalidGraph,
        state.InvalidProtobuf,
        state.NoModel,
        state.NoSuchFile,
        state.NotImplemented,
        state.RuntimeException,
        state.EPFail,
        RuntimeError,  # of settings it cannot read
    )


def _runtime() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingDependencyError(
            f"ONNX Runtime is not usable here: {error}", hint=_INSTALL
        ) from error
    return onnxruntime
