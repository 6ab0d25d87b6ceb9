"""The two half-precision number formats, and which of them a graph is written in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

from vitdeploy.errors import InputError

HalfName = Literal["fp16", "bf16"]


@dataclass(frozen=True)
class HalfType:
    """A 16-bit float. `epsilon` is the distance from 1 to the next number, `smallest` the first
    number above zero."""

    name: HalfName
    data_type: ir.DataType
    largest: float
    epsilon: float
    smallest: float


FP16 = HalfType("fp16", ir.DataType.FLOAT16, 65504.0, 2.0**-10, 2.0**-24)
BF16 = HalfType("bf16", ir.DataType.BFLOAT16, 3.3895313892515355e38, 2.0**-7, 2.0**-133)


def infer_missing_types(model: ir.Model) -> ir.Model:
    """Types and shapes of all values, in place, where a file does not tell them."""
    if any(value.dtype is None for node in model.graph for value in node.outputs):
        ShapeInferencePass()(model)
    return model


def half_type_of(model: ir.Model) -> HalfType:
    """The half type of a typed graph. Raises InputError where it has none, or both."""
    found = {
        value.dtype
        for node in model.graph
        for value in node.outputs
        if value.dtype in (FP16.data_type, BF16.data_type)
    }
    if len(found) != 1:
        what = "both float16 and bfloat16" if found else "neither float16 nor bfloat16"
        raise InputError(
            f"the graph computes in {what}",
            hint="give a graph that `vitdeploy export --precision fp16` or bf16 wrote",
        )
    return FP16 if FP16.data_type in found else BF16
