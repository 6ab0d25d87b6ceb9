"""What is known about the model everything else is compared with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vitdeploy.preprocessing import Preprocessing


@dataclass(frozen=True)
class SourceDescription:
    """A source model without its weights: enough to build, name and recognise it.

    `architecture` and `model_kwargs` are what the library's factory takes.
    `weights_digest` is the sha256 of names, shapes and values of the state
    dict at the native resolution; it identifies the model across files.
    """

    name: str
    library: str
    architecture: str
    model_kwargs: dict[str, Any]
    native_resolution: tuple[int, int]
    in_chans: int
    labels: tuple[str, ...]
    weights_digest: str
    preprocessing: Preprocessing
    origin: str = ""
    training: dict[str, Any] = field(default_factory=dict)

    @property
    def num_classes(self) -> int:
        return len(self.labels)
