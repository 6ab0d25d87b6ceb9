"""`Library`: what vitdeploy must know about a library that models come from."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

from vitdeploy.artifacts.source import SourceDescription
from vitdeploy.preprocessing import Preprocessing, Size

if TYPE_CHECKING:
    from torch import nn

WRAPPED = "wrapped"
"""Attribute under which a wrapper module of ours holds the library's own.

Names of nodes and initializers are freed of it, so they are the library's.
"""


@dataclass(frozen=True)
class Resized:
    """A module at another resolution. `positions` says how its positions came there."""

    module: nn.Module
    positions: str


class Library(Protocol):
    """Implemented by one module of this package per library; modules need no instance.

    Every module built maps (n, channels, height, width) float32 to
    (n, classes) logits, or to (n, width) features where it has no classifier.
    """

    def build(
        self, architecture: str, *, model_kwargs: dict[str, Any], pretrained: bool = False
    ) -> nn.Module:
        """The module in evaluation mode. InputError where the name or an argument is unknown."""
        ...

    def recipe_of(
        self, module: nn.Module, architecture: str, model_kwargs: dict[str, Any]
    ) -> tuple[str, dict[str, Any]]:
        """The architecture and arguments with which `build` makes the module again anywhere."""
        ...

    def native_resolution(self, module: nn.Module) -> Size:
        """(height, width) in pixels the module was built for."""
        ...

    def size_step(self, module: nn.Module) -> Size | None:
        """Sides must be multiples of this; None where no such rule is known beforehand."""
        ...

    def at_resolution(
        self, module: nn.Module, description: SourceDescription, size: Size
    ) -> Resized:
        """A new module with the same weights at `size`, positions by the library's own method.

        Raises ExportError where the architecture cannot change its size.
        """
        ...

    def traceable(self, module: nn.Module, size: Size) -> nn.Module:
        """A copy that computes the same at `size` in the form the exporter takes best."""
        ...

    def preprocessing_of(self, module: nn.Module) -> Preprocessing | None:
        """The evaluation preprocessing the source's configuration gives; None where it has none.

        Raises InputError for steps that `Preprocessing` cannot express.
        """
        ...

    def class_count(self, module: nn.Module) -> int:
        """Width of the classifier; 0 where there is none."""
        ...

    def labels_of(self, module: nn.Module) -> tuple[str, ...]:
        """One name per class; '0', '1', ... where the source has none."""
        ...

    def features_of(self, module: nn.Module) -> nn.Module:
        """The module up to its pooled features: (n, width)."""
        ...

    def tokens_of(self, module: nn.Module) -> nn.Module:
        """The module up to its last normalized tokens: (n, tokens, width)."""
        ...


_MODULES = {
    "timm": "timm_",
    "torchvision": "torchvision_",
    "transformers": "transformers_",
    "python": "python_",
}

LIBRARIES = tuple(_MODULES)


def library(name: str) -> Library:
    """The library called `name`, imported only now."""
    return cast(Library, import_module(f"vitdeploy.models.{_MODULES[name]}"))
