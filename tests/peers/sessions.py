"""A peer's file on a CPU runtime, whoever wrote it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vitdeploy.backends.base import ImageInput, Session
from vitdeploy.backends.onnxruntime_ import GraphSession
from vitdeploy.backends.openvino_ import OpenVinoSession
from vitdeploy.errors import EngineError

RUNTIMES = ("onnxruntime", "openvino")


def open_session(runtime: str, path: Path, takes: ImageInput, threads: int, name: str) -> Session:
    """Raises EngineError where the runtime does not take the file."""
    if runtime == "onnxruntime":
        return GraphSession(path, takes=takes, threads=threads, name=name)
    import openvino

    # As vitdeploy's own backend: latency, and no bfloat16 that the file does not name.
    settings: dict[str, Any] = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "f32",
    }
    try:
        compiled = openvino.Core().compile_model(str(path), "CPU", settings)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise EngineError(f"OpenVINO: {reason}", hint="see the peer's own documentation") from error
    return OpenVinoSession(compiled, name, takes)


def offered(runtime: str, path: Path) -> bool:
    """Whether the file is of a kind that the runtime reads at all."""
    return path.suffix == ".onnx" or runtime == "openvino"
