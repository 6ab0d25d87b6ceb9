"""`SourceModel`: the PyTorch model that everything else must equal."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from vitdeploy.artifacts.onnx_model import Output
from vitdeploy.artifacts.source import SourceDescription
from vitdeploy.models.library import Library, library
from vitdeploy.models.plain_pooling import use_plain_pooling
from vitdeploy.models.size_step import require_multiple
from vitdeploy.preprocessing import Size


@dataclass(frozen=True)
class SourceModel:
    """A module in evaluation mode at one resolution, and its description.

    `output` says what is taken of it: logits (of a model without a classifier:
    its features), class probabilities, pooled features or tokens. `positions`
    says how the positions came to this resolution, and `native` is the model
    they came from (None: this one).
    """

    module: nn.Module
    description: SourceDescription
    resolution: Size
    output: Output = "logits"
    positions: str = "as trained"
    native: SourceModel | None = None

    @property
    def library(self) -> Library:
        return library(self.description.library)

    def at(self, resolution: Size) -> SourceModel:
        """The same weights at another resolution; this one stays as it is.

        Positions are always carried over from the native resolution, by the
        source library's own method (timm: bicubic with antialias, float32).

        Raises InputError where the resolution is not a multiple of the patch
        size, ExportError where the architecture cannot change its size.
        """
        if resolution == self.resolution:
            return self
        native = self
        if self.native is not None:
            native = replace(self.native, output=self.output, description=self.description)
        if resolution == native.resolution:
            return native
        native.require_patch_multiple(resolution)
        resized = self.library.at_resolution(native.module, self.description, resolution)
        return SourceModel(
            resized.module.eval(),
            self.description,
            resolution,
            self.output,
            resized.positions,
            native,
        )

    def answering(self, module: nn.Module | None = None) -> nn.Module:
        """`module` (default: the source's own) with `output` taken of it."""
        module = self.module if module is None else module
        if self.output == "features":
            return self.library.features_of(module)
        if self.output == "tokens":
            return self.library.tokens_of(module)
        if self.output == "probabilities":
            return _Probabilities(module, multilabel=self.description.task == "multilabel")
        return module

    def traceable(self) -> nn.Module:
        """A module that computes what `logits` does, in the form the exporter takes best."""
        module = self.library.traceable(self.module, self.resolution)
        return self.answering(use_plain_pooling(module)).eval()

    def logits(self, batch: NDArray[np.float32]) -> NDArray[np.float32]:
        """(n, channels, height, width) to the output asked for, float32, in inference mode.

        (n, classes) for logits and probabilities, (n, width) for features,
        (n, tokens, width) for tokens.
        """
        with torch.inference_mode():
            return self.answering()(torch.from_numpy(batch)).float().numpy()

    def parameter_count(self) -> int:
        return sum(parameter.numel() for parameter in self.module.parameters())

    def require_patch_multiple(self, resolution: Size, *, option: str = "--res") -> None:
        """Raise InputError, naming the nearest that is, unless patches tile `resolution`."""
        step = self.library.size_step(self.module)
        require_multiple(resolution, step, self.description.name, option=option)


class _Probabilities(nn.Module):
    def __init__(self, module: nn.Module, *, multilabel: bool) -> None:
        super().__init__()
        self.wrapped = module
        self._multilabel = multilabel

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits = self.wrapped(images)
        return logits.sigmoid() if self._multilabel else logits.softmax(-1)


def weights_digest(state: dict[str, torch.Tensor]) -> str:
    """sha256 over names, shapes, types and bytes of a state dict, in name order."""
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        digest.update(f"{name}:{tuple(tensor.shape)}:{tensor.dtype}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
