"""PyTorch eager: the source model as a session, the baseline of every comparison."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from vitdeploy.backends.base import ImageInput, checked_batch
from vitdeploy.models.source import SourceModel


class TorchSession:
    """Runs the source on the CPU in float32, in inference mode."""

    def __init__(self, source: SourceModel, *, threads: int | None = None) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
        self._source = source
        self._takes = ImageInput((source.description.in_chans, *source.resolution))
        self.name = "PyTorch eager fp32"

    def run(self, batch: NDArray[np.float32]) -> NDArray[np.float32]:
        batch = checked_batch(batch, self._takes)
        # PyTorch warns of memory it may not write to.
        return self._source.logits(batch if batch.flags.writeable else batch.copy())
