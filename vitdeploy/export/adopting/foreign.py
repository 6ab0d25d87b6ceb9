"""A graph file of another exporter, and what keeps one from being taken in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from vitdeploy.artifacts.onnx_model import (
    METADATA_KEY,
    external_locations,
    graph_digest,
    load_proto,
)
from vitdeploy.errors import InputError
from vitdeploy.graph import files
from vitdeploy.preprocessing import Size

_CHANNELS = (1, 3, 4)
_QUANTIZED = ("DequantizeLinear", "DynamicQuantizeLinear", "QuantizeLinear")
_HALF = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_UNSUPPORTED = ("If", "Loop", "Resize", "Scan", "SequenceMap", "Upsample")


@dataclass(frozen=True)
class Foreign:
    """A float32 graph of one input of images, as it was found.

    `batch` is None where it is open, `channels` and `size` where the file does
    not tell; `channels_last` graphs take (n, height, width, channels).
    `output` is the index of the answer that is kept.
    """

    path: Path
    digest: str
    model: ir.Model
    producer: str
    batch: int | None
    channels: int | None
    size: Size | None
    channels_last: bool
    output: int


def read_foreign(path: Path, *, output: str | None = None) -> Foreign:
    """Read a graph that vitdeploy did not write; `output` names the answer to keep.

    Raises InputError, saying what to do instead, for a file that is no graph
    or one of vitdeploy's own, that does not take images alone, is not float32
    throughout, is quantized, or holds operators of a single runtime.
    """
    proto = load_proto(path)
    if any(entry.key == METADATA_KEY for entry in proto.metadata_props):
        raise InputError(
            f"{path} was written by vitdeploy and describes itself",
            hint=f"use it as it is: `vitdeploy build-engine {path}`",
        )
    model = files.load(path)
    imports = model.graph.opset_imports
    if "ai.onnx" in imports:  # the long name of the same domain
        imports[""] = imports.pop("ai.onnx")
    InlinePass()(model)
    image = _image_input(model, path)
    _require_float32(model, path)
    _require_onnx_operators(model, path)
    sides = [side if isinstance(side, int) else None for side in image.shape or ()]
    last = sides[1] not in (*_CHANNELS, None) and sides[3] in _CHANNELS
    batch, channels, *size = (sides[i] for i in ((0, 3, 1, 2) if last else (0, 1, 2, 3)))
    height, width = size
    known = None if height is None or width is None else (height, width)
    return Foreign(
        path=path,
        digest=graph_digest(path, external_locations(proto)),
        model=model,
        producer=f"{proto.producer_name} {proto.producer_version}".strip() or "an unknown exporter",
        batch=batch,
        channels=channels,
        size=known,
        channels_last=last,
        output=_chosen_output(model, path, output),
    )


def require_supported(model: ir.Model, path: Path) -> None:
    """Raise InputError for operators that no constant folding could remove."""
    left = sorted({node.op_type for node in model.graph} & set(_UNSUPPORTED))
    if left:
        raise InputError(
            f"{path} resamples or branches while it runs ({', '.join(left)})",
            hint="export it for one size, without interpolation of its positions in the graph",
        )


def _image_input(model: ir.Model, path: Path) -> ir.Value:
    inputs = [value for value in model.graph.inputs if not value.is_initializer()]
    if len(inputs) != 1:
        names = ", ".join(str(value.name) for value in inputs)
        raise InputError(
            f"{path} takes {len(inputs)} inputs ({names}); a ViT takes images alone",
            hint="export its vision tower by itself",
        )
    (image,) = inputs
    if image.dtype != ir.DataType.FLOAT:
        kind = "an unknown type" if image.dtype is None else str(image.dtype).lower()
        raise InputError(
            f"{path} takes {kind}, not float32",
            hint="export it in float32, taking normalized images; "
            "--fp16 and --int8 of `vitdeploy build-engine` come after",
        )
    if image.shape is None or len(image.shape) != 4:
        raise InputError(
            f"{path} takes {image.shape or 'an unknown shape'}, which are not images",
            hint="export it with an input of (batch, channels, height, width)",
        )
    return image


def _require_float32(model: ir.Model, path: Path) -> None:
    nodes = list(model.graph.all_nodes())
    quantized = sorted({node.op_type for node in nodes if _is_quantized(node.op_type)})
    if quantized:
        raise InputError(
            f"{path} is quantized already ({', '.join(quantized)})",
            hint="give the float32 graph it was made from",
        )
    values = [*model.graph.initializers.values(), *(v for node in nodes for v in node.outputs)]
    casts = [
        node.attributes["to"].as_int()
        for node in nodes
        if node.op_type == "Cast" and "to" in node.attributes
    ]
    half = [kind for kind in _HALF if kind in casts or any(v.dtype == kind for v in values)]
    if half:
        raise InputError(
            f"{path} computes in {str(half[0]).lower()}",
            hint="export it in float32; `vitdeploy build-engine --fp16` makes it half precision",
        )


def _is_quantized(op_type: str) -> bool:
    return op_type in _QUANTIZED or op_type.startswith("QLinear") or op_type.endswith("Integer")


def _require_onnx_operators(model: ir.Model, path: Path) -> None:
    others = sorted(
        {f"{node.domain}.{node.op_type}" for node in model.graph.all_nodes() if node.domain}
    )
    if others:
        raise InputError(
            f"{path} holds operators of one runtime alone ({', '.join(others[:3])})",
            hint="give the graph as it was exported, before a runtime optimized it",
        )


def _chosen_output(model: ir.Model, path: Path, wanted: str | None) -> int:
    names = [str(value.name) for value in model.graph.outputs]
    if wanted is None and len(names) > 1 and names.count("logits") == 1:
        wanted = "logits"
    if wanted is None and len(names) == 1:
        return 0
    if wanted not in names:
        asked = "several outputs" if wanted is None else f"no output {wanted}"
        raise InputError(
            f"{path} has {asked}: {', '.join(names)}",
            hint="name the one that answers: --answer NAME",
        )
    return names.index(wanted)
