"""Whether the quantized attention of a graph is computed fused where it is to run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from vitdeploy.artifacts.onnx_model import OnnxModel
from vitdeploy.graph import files
from vitdeploy.graph.attentions import attention_at
from vitdeploy.target import Target


def why_not_fused(model: OnnxModel, targets: Sequence[Target], runtime: str) -> Iterator[str]:
    """One line for each reason why attention was quantized in vain.

    An INT8 graph may have been planned for another GPU than it is built for.
    Unfused INT8 attention runs, slower than FP16 would.
    """
    quantization = model.description.quantization
    if quantization is None or not targets:
        return
    quantized = set(quantization.quantized)
    kinds: dict[tuple[int, int], None] = {}
    graph = files.load(model).graph
    _without_pairs(graph)
    for node in graph:
        found = attention_at(node)
        if found is not None and {found.scores, found.values} & quantized:
            kinds[found.head_size or 0, found.tokens or 0] = None
    reasons: dict[str, list[str]] = {}
    for target in targets:
        for head_size, tokens in kinds:
            why = target.why_attention_is_float("int8", head_size, tokens, runtime)
            if why and target.name not in reasons.setdefault(why, []):
                reasons[why].append(target.name)
    for why, names in reasons.items():
        yield (
            f"{model.path.name} has INT8 attention that {', '.join(names)} may compute slower "
            f"than FP16: {why}; quantize it again with --target {','.join(names)}"
        )


def _without_pairs(graph: ir.Graph) -> None:
    """Read each quantized activation where it was before: attention is found by its form."""
    origins: list[ir.Node] = []
    for node in graph:
        quantized = node.inputs[0] if node.op_type == "DequantizeLinear" else None
        origin = None if quantized is None else quantized.producer()
        if origin is not None and origin.op_type == "QuantizeLinear":
            value = origin.inputs[0]
            assert value is not None
            origins.append(origin)
            ir.convenience.replace_all_uses_with(node.outputs[0], value)
    for origin in origins:
        # It is left without a reader of its own, and is no reader of the attention's.
        origin.replace_input_with(0, None)
