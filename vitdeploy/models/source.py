"""`SourceModel`: the PyTorch model that everything else must equal."""

from __future__ import annotations

import copy
import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from vitdeploy.artifacts.source import SourceDescription
from vitdeploy.errors import ExportError, InputError
from vitdeploy.preprocessing import Size


@dataclass(frozen=True)
class SourceModel:
    """A module in evaluation mode at one resolution, and its description."""

    module: nn.Module
    description: SourceDescription
    resolution: Size

    def at(self, resolution: Size) -> SourceModel:
        """The same weights at another resolution; this one stays as it is.

        Absolute positions are resampled by the source library's own method
        (timm: bicubic with antialias, in float32).

        Raises InputError where the resolution is not a multiple of the patch
        size, ExportError where the architecture cannot change its size.
        """
        if resolution == self.resolution:
            return self
        self.require_patch_multiple(resolution)
        module = copy.deepcopy(self.module)
        resize = getattr(module, "set_input_size", None)
        if not callable(resize):
            native = "x".join(map(str, self.resolution))
            raise ExportError(
                f"{self.description.architecture} cannot change its resolution",
                hint=f"timm gives it no set_input_size; export it at its own {native}",
            )
        resize(img_size=resolution)
        return SourceModel(module.eval(), self.description, resolution)

    def logits(self, batch: NDArray[np.float32]) -> NDArray[np.float32]:
        """(n, channels, height, width) float32 to (n, classes) float32, in inference mode."""
        with torch.inference_mode():
            return self.module(torch.from_numpy(batch)).float().numpy()

    def parameter_count(self) -> int:
        return sum(parameter.numel() for parameter in self.module.parameters())

    def require_patch_multiple(self, resolution: Size, *, option: str = "--res") -> None:
        """Raise InputError, naming the nearest that is, unless patches tile `resolution`."""
        patch = patch_size(self.module)
        if patch is None or all(
            side > 0 and side % step == 0 for side, step in zip(resolution, patch, strict=True)
        ):
            return
        near = "x".join(
            str(max(step, round(side / step) * step))
            for side, step in zip(resolution, patch, strict=True)
        )
        raise InputError(
            f"resolution {resolution[0]}x{resolution[1]} is not a multiple of "
            f"the patch size {patch[0]}x{patch[1]} of {self.description.name}",
            hint=f"the nearest that is: {option} {near}",
        )


def patch_size(module: nn.Module) -> Size | None:
    """(height, width) of a patch in pixels; None where the module has no patch embedding."""
    size = getattr(getattr(module, "patch_embed", None), "patch_size", None)
    if isinstance(size, int):
        return (size, size)
    return (int(size[0]), int(size[1])) if size is not None else None


def weights_digest(state: dict[str, torch.Tensor]) -> str:
    """sha256 over names, shapes, types and bytes of a state dict, in name order."""
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        digest.update(f"{name}:{tuple(tensor.shape)}:{tensor.dtype}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
