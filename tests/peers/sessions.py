"""A peer's file on a CPU runtime, whoever wrote it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vitdeploy.artifacts.onnx_model import read_onnx_model
from vitdeploy.backends.base import ImageInput, Session
from vitdeploy.backends.onnxruntime_ import GraphSession
from vitdeploy.backends.openvino_ import OpenVinoSession, graph_for_this_cpu
from vitdeploy.errors import EngineError, InputError

RUNTIMES = ("onnxruntime", "openvino")


def open_session(runtime: str, path: Path, takes: ImageInput, threads: int, name: str) -> Session:
    """Each file as its user would run it: vitdeploy's own through vitdeploy's backend.

    Raises EngineError where the runtime does not take the file.
    """
    if runtime == "onnxruntime":
        return GraphSession(path, threads=threads, name=name)
    import openvino

    # As vitdeploy's own backend: latency, and no bfloat16 that the file does not name.
    settings: dict[str, Any] = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "f32",
    }
    try:
        core = openvino.Core()
        compiled = core.compile_model(core.read_model(_graph(path)), "CPU", settings)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise EngineError(f"OpenVINO: {reason}", hint="see the peer's own documentation") from error
    return OpenVinoSession(compiled, name, takes, answer=compiled.output(0).get_any_name())


def _graph(path: Path) -> str | bytes:
    if path.suffix != ".onnx":
        return str(path)
    try:
        return graph_for_this_cpu(read_onnx_model(path))[0]
    except InputError:  # not written by vitdeploy
        return str(path)


def offered(runtime: str, path: Path) -> bool:
    """Whether the file is of a kind that the runtime reads at all."""
    return path.suffix == ".onnx" or runtime == "openvino"
