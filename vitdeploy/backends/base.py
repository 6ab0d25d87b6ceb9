"""What every runtime offers: probe, build, load; and what a loaded engine offers: run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from vitdeploy.artifacts.engine import Engine
from vitdeploy.artifacts.onnx_model import OnnxModel
from vitdeploy.progress import SILENT, Progress
from vitdeploy.target import CPU, Target


@dataclass(frozen=True)
class Availability:
    """Whether a backend can be used here; `reason` says why not and what to install."""

    available: bool
    version: str = ""
    reason: str = ""
    can_execute: bool = True


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """How to build. `batch` is (smallest, optimal, largest) images per run."""

    targets: tuple[Target, ...] = (CPU,)
    batch: tuple[int, int, int] = (1, 8, 64)
    threads: int | None = None
    workspace_bytes: int | None = None


class Session(Protocol):
    """A loaded engine (or the source model itself)."""

    @property
    def name(self) -> str: ...

    def run(self, batch: NDArray[np.float32]) -> NDArray[np.float32]:
        """(n, channels, height, width) float32 to (n, classes) float32 logits.

        Returns after the work is done. The result is the caller's own: no
        later run touches it. Raises InputError for another shape or type.
        """
        ...


class Backend(Protocol):
    """A runtime."""

    @property
    def name(self) -> str: ...

    def probe(self) -> Availability:
        """Look whether the runtime is usable here. Never raises."""
        ...

    def build(
        self,
        model: OnnxModel,
        options: BuildOptions,
        output: Path,
        progress: Progress = SILENT,
    ) -> Engine:
        """Compile `model` into the engine file `output` and write its manifest.

        Raises EngineError where the runtime refuses the graph,
        MissingDependencyError where the runtime is not here.
        """
        ...

    def load(self, engine: Engine, *, threads: int | None = None) -> Session:
        """Load an engine. Raises EngineError where it does not belong to this machine."""
        ...
