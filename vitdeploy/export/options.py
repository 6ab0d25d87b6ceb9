"""What to export. Imports no PyTorch: what cannot be is refused at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vitdeploy.artifacts.onnx_model import InputFormat, Output
from vitdeploy.errors import InputError
from vitdeploy.preprocessing import Size

DEFAULT_OPSET = 20
"""The first with Gelu as one operator; TensorRT 10.3 is believed to stop here."""

ExportPrecision = Literal["fp32", "fp16", "bf16"]


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """What to export.

    `resolution` None keeps the model's own; `dynamic_resolution` (lowest,
    highest) makes one graph for all sizes between. `output` None is what the
    source's task asks for. `external_data` None stores the weights beside the
    graph only where one file cannot hold them.
    """

    resolution: Size | None = None
    dynamic_resolution: tuple[Size, Size] | None = None
    precision: ExportPrecision = "fp32"
    input_format: InputFormat = "float32-nchw"
    output: Output | None = None
    opset: int = DEFAULT_OPSET
    external_data: bool | None = None

    def __post_init__(self) -> None:
        if not 17 <= self.opset <= 23:
            raise InputError(
                f"opset {self.opset} is not supported",
                hint="use 17 to 23; 20 is the default, below it Gelu is written as Erf",
            )
        if self.resolution is not None and self.dynamic_resolution is not None:
            raise InputError(
                "one resolution and a range of them were asked for",
                hint="give --res or --dynamic-res",
            )
