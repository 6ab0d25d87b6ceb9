"""Numbers and names as they stand in every face of a report."""

from __future__ import annotations

from collections.abc import Sequence

from vitdeploy.benchmarks.accuracy.judging import AnyComparison
from vitdeploy.benchmarks.speed.throughput import Measurement, Speedup

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
NOTHING = "–"  # noqa: RUF001 (an en dash is what a table shows for nothing)


def backend_title(backend: str) -> str:
    """'onnxruntime' becomes 'ONNX Runtime'; an unknown name stays."""
    return BACKENDS.get(backend, backend)


def precision_title(precision: str) -> str:
    """'int8-fp32' becomes 'INT8', 'fp16' 'FP16'."""
    return _PRECISIONS.get(precision, precision.upper())


def percent(share: float | None) -> str:
    """0.8125 becomes '81.25 %'."""
    return NOTHING if share is None else f"{100 * share:.2f} %"


def megabytes(size_bytes: int | None) -> str:
    """Millions of bytes, one decimal: 86_567_656 becomes '86.6'."""
    return NOTHING if size_bytes is None else f"{size_bytes / 1e6:.1f}"


def drop(accuracy: AnyComparison | None) -> str:
    """'+0.05 (<= 0.30)', in points; a gain is below zero."""
    if accuracy is None:
        return NOTHING
    loss = accuracy.loss()
    named = "" if loss.what in ("drop", "mAP drop") else f"{loss.what}: "
    return f"{named}{loss.value:+.2f} (<= {loss.upper:.2f})"


def score(accuracy: AnyComparison | None) -> str:
    """Top-1 and mAP in percent, a cosine or R2 as it is."""
    if accuracy is None or accuracy.engine_score is None:
        return NOTHING
    if accuracy.score_name in ("Top-1", "mAP"):
        return percent(accuracy.engine_score)
    return f"{accuracy.engine_score:.5f}"


def per_image(measurements: Sequence[Measurement]) -> str:
    """Milliseconds per image, '12.3 / 9.8', one a batch size."""
    return " / ".join(significant(m.ms_per_image()) for m in measurements) or NOTHING


def speedups(values: Sequence[Speedup]) -> str:
    """'2.1x (2.0 to 2.2) / 1.8x (1.7 to 1.9)', one a batch size."""
    return " / ".join(map(speedup, values)) or NOTHING


def speedup(value: Speedup) -> str:
    """'2.1x (2.0 to 2.2)'; more decimals where the interval is narrow."""
    places = 1 if round(value.low, 1) != round(value.high, 1) else 2
    return f"{value.ratio:.{places}f}x ({value.low:.{places}f} to {value.high:.{places}f})"


def significant(value: float) -> str:
    """Three significant digits without exponents: 0.0123, 1.23, 1,230."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def size(resolution: tuple[int, int]) -> str:
    """(384, 512) becomes '384x512', height first."""
    return f"{resolution[0]}x{resolution[1]}"
