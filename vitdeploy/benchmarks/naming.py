"""What engines are called, wherever people read of them: 'INT8 on OpenVINO'."""

from __future__ import annotations

from collections.abc import Sequence

from vitdeploy.artifacts.engine import Engine

BACKENDS = {
    "onnxruntime": "ONNX Runtime",
    "onnxruntime-cuda": "ONNX Runtime CUDA",
    "openvino": "OpenVINO",
    "tensorrt": "TensorRT",
    "tensorrt-rtx": "TensorRT-RTX",
    "torch": "PyTorch",
}
_PRECISIONS = {
    "int8-fp32": "INT8",
    "int8-fp16": "INT8 with FP16",
    "fp8-fp16": "FP8 with FP16",
}


def backend_title(backend: str) -> str:
    """'onnxruntime' becomes 'ONNX Runtime'; an unknown name stays."""
    return BACKENDS.get(backend, backend)


def precision_title(precision: str) -> str:
    """'int8-fp32' becomes 'INT8', 'fp16' 'FP16'."""
    return _PRECISIONS.get(precision, precision.upper())


def engine_name(backend: str, precision: str, targets: Sequence[str] = ()) -> str:
    """'INT8 on OpenVINO', or where it was built for others than this CPU 'FP16 on TensorRT-RTX
    (sm86, sm89)'."""
    on = "" if tuple(targets) in ((), ("cpu",)) else f" ({', '.join(targets)})"
    return f"{precision_title(precision)} on {backend_title(backend)}{on}"


def engine_names(engines: Sequence[Engine]) -> list[str]:
    """A name for each; those that would share one are told apart by their digests."""
    manifests = [engine.manifest for engine in engines]
    names = [engine_name(m.backend, m.model.precision, m.targets) for m in manifests]
    return told_apart(names, [m.engine_digest for m in manifests])


def told_apart(names: Sequence[str], digests: Sequence[str]) -> list[str]:
    """`names`, with the beginning of the engine's digest where two are the same; with a number
    where that is not known."""
    found = []
    for i, (name, digest) in enumerate(zip(names, digests, strict=True)):
        own = f", engine {digest[:8]}" if digest else f" ({names[: i + 1].count(name)})"
        found.append(name if names.count(name) == 1 else name + own)
    return found
