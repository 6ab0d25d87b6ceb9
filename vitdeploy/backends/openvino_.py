"""OpenVINO on the CPU."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

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
from vitdeploy.graph import files
from vitdeploy.graph.unsigned import activations_made_unsigned
from vitdeploy.progress import SILENT, Progress

_INSTALL = "pip install 'vitdeploy[openvino]'"


class OpenVinoSession:
    """A compiled model; one request at a time."""

    def __init__(self, compiled: Any, name: str, takes: ImageInput) -> None:
        self._request = compiled.create_infer_request()
        self._takes = takes
        self.name = name

    def run(self, batch: NDArray[np.float32]) -> NDArray[np.float32]:
        try:
            answers = self._request.infer(
                {0: checked_batch(batch, self._takes)}, share_outputs=False
            )
        except RuntimeError as error:
            raise EngineError(
                f"OpenVINO failed while running: {_reason(error)}",
                hint="try smaller batches, or run `vitdeploy build-engine` again",
            ) from error
        # With share_outputs off (its default, asked for above) this is no view of the request.
        return np.asarray(answers[0], dtype=np.float32)


class OpenVinoBackend:
    """Builds an engine by exporting the compiled model as OpenVINO's blob."""

    name = "openvino"

    def probe(self) -> Availability:
        try:
            return Availability(True, _version())
        except MissingDependencyError as error:
            return Availability(False, reason=f"{error}; {error.hint}")

    def check_options(self, options: BuildOptions, precision: str) -> None:
        require_cpu_options(options, "OpenVINO")

    def build(
        self,
        model: OnnxModel,
        options: BuildOptions,
        output: Path,
        progress: Progress = SILENT,
    ) -> Engine:
        require_cpu_graph(model, options, "OpenVINO")
        runtime = _runtime()
        started = time.perf_counter()
        settings = _settings(options.threads)
        graph, moved = graph_for_this_cpu(model)
        try:
            core = runtime.Core()
            compiled = core.compile_model(core.read_model(graph), "CPU", settings)
            blob = compiled.export_model()
        except RuntimeError as error:
            raise EngineError(
                f"OpenVINO cannot compile {model.path.name}: {_reason(error)}",
                hint="try --backend onnxruntime, or export the graph again; "
                "if neither helps, report the text above",
            ) from error
        with atomic_path(output) as temporary:
            temporary.write_bytes(blob.getvalue() if hasattr(blob, "getvalue") else bytes(blob))
            digest = file_digest(temporary)
        built = CpuBuild(
            backend=self.name,
            version=_version(),
            digest=digest,
            seconds=time.perf_counter() - started,
            settings={**settings, "unsigned_activations": moved},
        )
        return write_cpu_engine(output, model, options, built)

    def load(self, engine: Engine, *, threads: int | None = None) -> OpenVinoSession:
        runtime = _runtime()
        require_same_machine(engine, _version())
        try:
            compiled = runtime.Core().import_model(
                engine.path.read_bytes(), "CPU", _settings(threads)
            )
        except RuntimeError as error:
            raise EngineError(
                f"OpenVINO cannot load {engine.path.name}: {_reason(error)}",
                hint="run `vitdeploy build-engine` again",
            ) from error
        manifest = engine.manifest
        return OpenVinoSession(
            compiled, f"OpenVINO {manifest.model.precision}", image_input(manifest.model)
        )


def graph_for_this_cpu(model: OnnxModel) -> tuple[str | bytes, int]:
    """The file, or its bytes with that many tensors in unsigned numbers where this CPU is faster
    with them (ViT-B/16: 1.12x, OpenVINO 2026.4). Without VNNI unsigned products may saturate:
    other CPUs get the file as it is, and so does what is too large for one file."""
    quantized = model.description.precision.startswith("int8")
    if not quantized or not environment.describe().has_vnni:
        return str(model.path), 0
    graph = files.load(model)
    moved = activations_made_unsigned(graph)
    if not moved or files.weights_bytes(graph) > files.LARGEST_FILE_BYTES:
        return str(model.path), 0
    return files.serialize(graph), moved


def _settings(threads: int | None) -> dict[str, Any]:
    return {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads or environment.available_cores(),
        # On AMX machines OpenVINO would pick bf16 by itself; the graph's types decide.
        "INFERENCE_PRECISION_HINT": "f32",
    }


def _version() -> str:
    """Release and build number, '2026.4.1-22982'; the commit behind them is left out."""
    return "-".join(_runtime().__version__.split("-")[:2])


def _reason(error: Exception) -> str:
    """The last line of an error: those before it name places in OpenVINO's source."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()


def _runtime() -> Any:
    try:
        import openvino
    except ImportError as error:
        raise MissingDependencyError(
            f"OpenVINO is not usable here: {error}", hint=_INSTALL
        ) from error
    return openvino
