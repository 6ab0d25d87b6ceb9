"""OpenVINO on the CPU, and on Intel's GPUs and NPUs where they are.

Other devices than the CPU were not run where this was written.
"""

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
    require_cpu_options,
    require_own_options,
    require_same_machine,
    write_cpu_engine,
)
from vitdeploy.backends.options import Hint, OpenVinoOptions
from vitdeploy.errors import EngineError, MissingDependencyError
from vitdeploy.graph import files
from vitdeploy.graph.unsigned import activations_made_unsigned
from vitdeploy.progress import SILENT, Progress

_OLDEST = (2025, 2)
_INSTALL = "pip install 'vitdeploy[openvino]'"


class OpenVinoSession:
    """A compiled model, with as many requests as its hint asks for.

    For latency that is one. For throughput a batch is divided among several,
    which run at once. `answer` is the output that `run` returns.
    """

    def __init__(self, compiled: Any, name: str, takes: ImageInput, *, answer: str) -> None:
        try:
            self._answer = compiled.output(answer)
            count = 1
            if str(compiled.get_property("PERFORMANCE_HINT")).endswith("THROUGHPUT"):
                count = int(compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS"))
        except RuntimeError as error:
            raise EngineError(
                f"OpenVINO finds no output {answer!r}: {_reason(error)}",
                hint="export the graph again: it is not what its description says",
            ) from error
        self._requests = [compiled.create_infer_request() for _ in range(count)]
        self._takes = takes
        self.name = name

    def run(self, batch: NDArray[np.float32]) -> NDArray[np.float32]:
        batch = checked_batch(batch, self._takes)
        parts = np.array_split(batch, min(len(batch), len(self._requests)))
        requests = self._requests[: len(parts)]
        try:
            for request, part in zip(requests, parts, strict=True):
                request.start_async({0: part}, share_inputs=False)
            for request in requests:
                request.wait()
        except RuntimeError as error:
            raise EngineError(
                f"OpenVINO failed while running: {_reason(error)}",
                hint="try smaller batches, or run `vitdeploy build-engine` again",
            ) from error
        # The tensors belong to the requests, which write to them again in the next run.
        answers = [request.get_tensor(self._answer).data.copy() for request in requests]
        return np.concatenate(answers).astype(np.float32, copy=False)


class OpenVinoBackend:
    """Builds an engine by exporting the compiled model as OpenVINO's blob."""

    name = "openvino"

    def probe(self) -> Availability:
        try:
            return Availability(
                True, _version(), devices=tuple(_runtime().Core().available_devices)
            )
        except MissingDependencyError as error:
            return Availability(False, reason=f"{error}; {error.hint}")

    def check_options(self, options: BuildOptions, precision: str) -> None:
        device = options.openvino.device.lower()
        require_cpu_options(options, "OpenVINO", precision, device=device)
        require_own_options(options, self.name)
        _require_device(_runtime().Core(), options.openvino.device)

    def build(
        self,
        model: OnnxModel,
        options: BuildOptions,
        output: Path,
        progress: Progress = SILENT,
    ) -> Engine:
        asked = options.openvino
        self.check_options(options, model.description.precision)
        started = time.perf_counter()
        graph, moved = str(model.path), 0
        if asked.device == "CPU":
            graph, moved = graph_for_this_cpu(model)
        settings = _settings(options.threads, asked, model.description.precision)
        core = _runtime().Core()
        try:
            compiled = core.compile_model(core.read_model(graph), asked.device, settings)
            blob = compiled.export_model()
            used = _used(compiled)
        except RuntimeError as error:
            raise EngineError(
                f"OpenVINO cannot compile {model.path.name}: {_reason(error)}",
                hint="try --backend onnxruntime, or export the graph again; "
                "if neither helps, report the text above",
            ) from error
        _require_used(used["execution_devices"], asked.device)
        with atomic_path(output) as temporary:
            temporary.write_bytes(blob.getvalue() if hasattr(blob, "getvalue") else bytes(blob))
            digest = file_digest(temporary)
        built = CpuBuild(
            backend=self.name,
            version=_version(),
            digest=digest,
            seconds=time.perf_counter() - started,
            settings={**settings, **used, "unsigned_activations": moved},
            device=asked.device.lower(),
            device_name=_device_name(core, asked.device),
        )
        return write_cpu_engine(output, model, options, built)

    def load(
        self, engine: Engine, *, threads: int | None = None, alone: bool = True
    ) -> OpenVinoSession:
        core = _runtime().Core()
        manifest = engine.manifest
        asked = _recorded(engine)
        _require_device(core, asked.device)
        require_same_machine(engine, _version(), _device_name(core, asked.device))
        settings = _settings(threads, asked, manifest.model.precision)
        try:
            compiled = core.import_model(engine.path.read_bytes(), asked.device, settings)
        except RuntimeError as error:
            raise EngineError(
                f"OpenVINO cannot load {engine.path.name}: {_reason(error)}",
                hint="run `vitdeploy build-engine` again",
            ) from error
        on = "" if asked.device == "CPU" else f" {asked.device}"
        return OpenVinoSession(
            compiled,
            f"OpenVINO{on} {manifest.model.precision}",
            image_input(manifest.model),
            answer=manifest.model.output_name,
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


def _settings(threads: int | None, asked: OpenVinoOptions, precision: str) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "PERFORMANCE_HINT": asked.hint.upper(),
        # By themselves AMX machines would take bf16, and GPUs f16; the graph's types decide.
        "INFERENCE_PRECISION_HINT": "f16" if precision.endswith("fp16") else "f32",
    }
    if asked.device == "CPU":
        settings["INFERENCE_NUM_THREADS"] = threads or environment.available_cores()
    return settings


def _used(compiled: Any) -> dict[str, Any]:
    """What the compiled model says of itself, in plain words, for the manifest."""
    devices = compiled.get_property("EXECUTION_DEVICES")
    return {
        "execution_devices": [str(name) for name in devices],
        "inference_precision": compiled.get_property("INFERENCE_PRECISION_HINT").to_string(),
        "requests": int(compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")),
    }


def _recorded(engine: Engine) -> OpenVinoOptions:
    """How an engine was built, for loading it alike."""
    hint: Hint = "latency"
    if engine.manifest.settings.get("PERFORMANCE_HINT") == "THROUGHPUT":
        hint = "throughput"
    device = engine.manifest.targets[0] if engine.manifest.targets else "cpu"
    return OpenVinoOptions(device=device.upper(), hint=hint)


def _require_device(core: Any, device: str) -> None:
    """Raise MissingDependencyError where OpenVINO does not see the device: none takes its place."""
    found = list(core.available_devices)
    if device not in found and f"{device}.0" not in found:
        raise MissingDependencyError(
            f"OpenVINO sees no {device} here, only {', '.join(found) or 'nothing'}",
            hint="install the device's driver, or leave --device out for the CPU",
        )


def _require_used(used: list[str], device: str) -> None:
    """Raise EngineError where a model was compiled for another device than was asked for."""
    if any(name.partition(".")[0] != device.partition(".")[0] for name in used):
        raise EngineError(
            f"OpenVINO was asked for {device} and took {', '.join(used)}",
            hint="name the device that is to be used with --device",
        )


def _device_name(core: Any, device: str) -> str:
    """Empty for the CPU, whose features say more than its name."""
    return "" if device == "CPU" else str(core.get_property(device, "FULL_DEVICE_NAME"))


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
    release = tuple(int(part) for part in openvino.__version__.split(".")[:2])
    if release < _OLDEST:
        raise MissingDependencyError(
            f"OpenVINO {'.'.join(map(str, release))} is too old: its INT8 engines answer one class "
            "for every image (measured with 2024.6 and 2025.0)",
            hint="pip install -U 'openvino>=2025.2'",
        )
    return openvino
