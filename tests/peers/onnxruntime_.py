"""ONNX Runtime's quantizers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnxruntime.quantization import CalibrationDataReader, quantize_dynamic, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from tests.peers.subjects import Prepared


class _Reader(CalibrationDataReader):
    """Batches of the prepared images, by the input's name."""

    def __init__(self, name: str, batches: Iterator[NDArray[np.float32]]) -> None:
        self._name = name
        self._batches = batches

    def get_next(self) -> dict[str, NDArray[np.float32]] | None:  # type: ignore[override]
        batch = next(self._batches, None)
        return None if batch is None else {self._name: batch}


def static(prepared: Prepared, folder: Path) -> Path:
    """Every operator that ONNX Runtime quantizes, by its documented way."""
    output = folder / "ort_static.onnx"
    quantize_static(_preprocessed(prepared, folder), output, _reader(prepared))
    return output


def linear_only(prepared: Prepared, folder: Path) -> Path:
    """MatMuls with constant weights alone, symmetric, weights per channel: what TensorRT takes.

    Their outputs stay float, as they go into additions and GELU.
    """
    output = folder / "ort_linear.onnx"
    quantize_static(
        _preprocessed(prepared, folder),
        output,
        _reader(prepared),
        op_types_to_quantize=["MatMul"],
        per_channel=True,
        extra_options={
            "MatMulConstBOnly": True,
            "OpTypesToExcludeOutputQuantization": ["MatMul"],
            "ActivationSymmetric": True,
            "WeightSymmetric": True,
        },
    )
    return output


def dynamic(prepared: Prepared, folder: Path) -> Path:
    """Activations are quantized while the model runs: no image is looked at."""
    output = folder / "ort_dynamic.onnx"
    quantize_dynamic(_preprocessed(prepared, folder), output)
    return output


def _preprocessed(prepared: Prepared, folder: Path) -> Path:
    output = folder / "preprocessed.onnx"
    quant_pre_process(prepared.model_path, output)
    return output


def _reader(prepared: Prepared) -> _Reader:
    return _Reader(prepared.model().description.input_name, prepared.batches())
