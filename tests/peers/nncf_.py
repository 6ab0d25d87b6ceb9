"""NNCF with its preset for transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nncf
import onnx
import openvino

from tests.peers.subjects import Prepared


def quantize_onnx(prepared: Prepared, folder: Path) -> Path:
    """The ONNX backend: an ONNX model with QuantizeLinear and DequantizeLinear."""
    output = folder / "nncf.onnx"
    onnx.save(_quantized(onnx.load(prepared.model_path), prepared), output)
    return output


def quantize_onnx_symmetric(prepared: Prepared, folder: Path) -> Path:
    """The ONNX backend with symmetric activations: the one form that TensorRT takes."""
    output = folder / "nncf_symmetric.onnx"
    preset = nncf.QuantizationPreset.PERFORMANCE
    onnx.save(_quantized(onnx.load(prepared.model_path), prepared, preset), output)
    return output


def quantize_openvino(prepared: Prepared, folder: Path) -> Path:
    """The OpenVINO backend: an OpenVINO model, an .xml with its weights in a .bin."""
    output = folder / "nncf.xml"
    model = openvino.Core().read_model(prepared.model_path)
    # Halving the weights that stay in float would be another tool's part.
    openvino.save_model(_quantized(model, prepared), output, compress_to_fp16=False)
    return output


def _quantized(
    model: Any, prepared: Prepared, preset: nncf.QuantizationPreset | None = None
) -> Any:
    """One image at a time, as NNCF's statistics expect, and all of them.

    Without a preset, transformers get NNCF's mixed one: weights symmetric, activations not.
    """
    name = prepared.model().description.input_name
    images = [{name: image} for image in prepared.single_images()]
    return nncf.quantize(
        model,
        nncf.Dataset(images),
        preset=preset,
        subset_size=len(images),
        model_type=nncf.ModelType.TRANSFORMER,
    )
