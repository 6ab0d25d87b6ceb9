"""What the modules of the source model compute, to be compared with a graph's layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitdeploy.models.source import SourceModel


def observe_source(
    source: SourceModel, batch: NDArray[np.float32]
) -> dict[str, NDArray[np.float32]]:
    """{module: what it answers} for one batch, in the order in which modules finish.

    Modules that answer something else than one float tensor are left out; of
    one that is called again, the last answer stands.
    """
    found: dict[str, NDArray[np.float32]] = {}

    def keep(name: str) -> Any:
        def hook(_module: Any, _inputs: Any, answer: Any) -> None:
            if isinstance(answer, torch.Tensor) and answer.is_floating_point():
                found[name] = answer.detach().float().numpy().copy()

        return hook

    module = source.answering()
    hooks = [part.register_forward_hook(keep(n)) for n, part in module.named_modules() if n]
    try:
        source.logits(batch)
    finally:
        for hook in hooks:
            hook.remove()
    return found
