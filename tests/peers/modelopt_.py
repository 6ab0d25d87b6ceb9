"""NVIDIA Model Optimizer's quantizer of ONNX files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from modelopt.onnx import quantization

from tests.peers.subjects import Prepared


def quantize(prepared: Prepared, folder: Path) -> Path:
    """INT8 as it comes, on the CPU; what is not quantized stays in float32, for CPUs to run it."""
    output = folder / "modelopt.onnx"
    quantization.quantize(
        onnx_path=str(prepared.model_path),
        quantize_mode="int8",
        calibration_data=np.concatenate(list(prepared.batches())),
        calibration_eps=["cpu"],
        high_precision_dtype="fp32",
        output_path=str(output),
    )
    return output
