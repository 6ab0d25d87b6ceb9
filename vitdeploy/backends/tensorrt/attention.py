"""Whether the quantized attention of a graph is computed fused where it is to run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
    for node in files.load(model).graph:
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
