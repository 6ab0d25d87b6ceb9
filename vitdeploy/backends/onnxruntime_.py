"""ONNX Runtime on the CPU."""

from __future__ import annotations

import errno
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vitdeploy import environment
from vitdeploy.artifacts.engine import Engine
from vitdeploy.artifacts.files import atomic_path, file_digest
from vitdeploy.artifacts.onnx_model import OnnxModel
from vitdeploy.backends.base import (
    Availability,
    BuildOptions,
    CpuBuild,
    ImageInput,
    checked_batch,
    image_input,
    require_cpu_graph,
    require_cpu_options,
    require_same_machine,
    write_cpu_engine,
)
from vitdeploy.errors import EngineError, MissingDependencyError
from vitdeploy.graph.files import RunnableGraph
from vitdeploy.progress import SILENT, Progress

_PROVIDER = "CPUExecutionProvider"
_CUDA = "CUDAExecutionProvider"

Device = Literal["cpu", "cuda"]
_INSTALL = "pip install 'vitdeploy[cpu]'"


class GraphSession:
    """A session on a graph, a file or in memory. Call with (n, channels, height, width) float32.

    With `optimize` off, a Q/DQ graph is computed as it is written: that is its
    reference meaning, which the fused int8 kernels are compared with. On a
    `device` other than the CPU, what the device cannot compute is computed on
    the CPU; a session that could not begin there is an EngineError.
    """

    def __init__(
        self,
        model: Path | bytes | RunnableGraph,
        *,
        optimize: bool = True,
        threads: int | None = None,
        name: str = "ONNX Runtime",
        takes: ImageInput | None = None,
        save_optimized_to: Path | None = None,
        device: Device = "cpu",
    ) -> None:
        runtime = _runtime()
        options = runtime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = threads or environment.available_cores()
        level = runtime.GraphOptimizationLevel
        options.graph_optimization_level = (
            level.ORT_ENABLE_ALL if optimize else level.ORT_DISABLE_ALL
        )
        if not environment.describe().has_int8_dot_product:
            # u8s8 products can saturate here; ONNX Runtime then keeps them exact.
            options.add_session_config_entry("session.x64quantprecision", "1")
        if save_optimized_to is not None:
            options.optimized_model_filepath = str(save_optimized_to)
        if isinstance(model, RunnableGraph):
            # ONNX Runtime keeps no reference: the values must live as long as the session.
            self._weights = [
                runtime.OrtValue.ortvalue_from_numpy(array) for array in model.weights.values()
            ]
            options.add_external_initializers(list(model.weights), self._weights)
            source: bytes | str = model.proto
        else:
            source = model if isinstance(model, bytes) else str(model)
        providers = [_PROVIDER] if device == "cpu" else [_CUDA, _PROVIDER]
        try:
            self._session = runtime.InferenceSession(source, options, providers=providers)
        except runtime_errors() as error:
            where = model if isinstance(model, Path) else "the graph"
            raise EngineError(
                f"ONNX Runtime cannot load {where}: {_in_one_line(error)}",
                hint="export it again; if that does not help, report the text above",
            ) from error
        used = self._session.get_providers()[0]
        if used != providers[0]:
            raise EngineError(
                f"ONNX Runtime was asked for {providers[0]} and took {used}",
                hint="its CUDA and cuDNN must be those onnxruntime-gpu was built for, see "
                "`vitdeploy doctor`; to do without the GPU install onnxruntime instead",
            )
        self._takes = takes
        self.name = name

    def run(self, batch: NDArray[np.float32]) -> NDArray[np.float32]:
        """The first output, (n, classes) float32."""
        return self.run_all(batch)[0]

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


def fastest_device() -> Device:
    """'cuda' where onnxruntime-gpu is installed beside an NVIDIA driver, else 'cpu'."""
    has_cuda = _CUDA in _runtime().get_available_providers()
    return "cuda" if has_cuda and environment.has_nvidia_driver() else "cpu"


class OnnxRuntimeBackend:
    """Builds an engine by saving the graph as ONNX Runtime optimized it for this CPU."""

    name = "onnxruntime"

    def probe(self) -> Availability:
        try:
            return Availability(True, _runtime().__version__)
        except MissingDependencyError as error:
            return Availability(False, reason=f"{error}; {error.hint}")

    def check_options(self, options: BuildOptions, precision: str) -> None:
        require_cpu_options(options, "ONNX Runtime")

    def build(
        self,
        model: OnnxModel,
        options: BuildOptions,
        output: Path,
        progress: Progress = SILENT,
    ) -> Engine:
        require_cpu_graph(model, options, "ONNX Runtime")
        started = time.perf_counter()
        with atomic_path(output) as temporary:
            _optimize(model, options, temporary)
            digest = file_digest(temporary)
        built = CpuBuild(
            backend=self.name,
            version=_runtime().__version__,
            digest=digest,
            seconds=time.perf_counter() - started,
            settings={"provider": _PROVIDER, "graph_optimization": "all"},
        )
        return write_cpu_engine(output, model, options, built)

    def load(self, engine: Engine, *, threads: int | None = None) -> GraphSession:
        require_same_machine(engine, _runtime().__version__)
        manifest = engine.manifest
        try:
            return GraphSession(
                engine.path,
                threads=threads,
                name=f"ONNX Runtime {manifest.model.precision}",
                takes=image_input(manifest.model),
            )
        except EngineError as error:
            raise EngineError(str(error), hint="run `vitdeploy build-engine` again") from error


def _optimize(model: OnnxModel, options: BuildOptions, destination: Path) -> None:
    try:
        GraphSession(model.path, threads=options.threads, save_optimized_to=destination)
    except EngineError as error:
        # ONNX Runtime says INVALID_PROTOBUF where the disk was full.
        if shutil.disk_usage(destination.parent).free < model.size_bytes:
            raise OSError(errno.ENOSPC, "no space left") from error
        raise


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
    )


def _runtime() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingDependencyError(
            f"ONNX Runtime is not usable here: {error}", hint=_INSTALL
        ) from error
    return onnxruntime
