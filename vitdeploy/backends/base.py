"""What every runtime offers: probe, build, load; and what a loaded engine offers: run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from vitdeploy import environment
from vitdeploy.artifacts.engine import Engine
from vitdeploy.artifacts.onnx_model import OnnxModel
from vitdeploy.errors import EngineError, InputError
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


def checked_batch(batch: NDArray[np.float32], shape: tuple[int, ...] | None) -> NDArray[np.float32]:
    """`batch` as contiguous memory. Raises InputError unless it is (n, *shape) float32."""
    wanted = (
        "(n, channels, height, width)" if shape is None else f"(n, {', '.join(map(str, shape))})"
    )
    fits = batch.ndim == 4 and len(batch) > 0 and (shape is None or batch.shape[1:] == shape)
    if not fits or batch.dtype != np.float32:
        raise InputError(
            f"the batch is {batch.shape} {batch.dtype}, the model takes {wanted} float32",
            hint="prepare images with the model's own Preprocessing",
        )
    return np.ascontiguousarray(batch)


def require_cpu_graph(model: OnnxModel, options: BuildOptions, runtime: str) -> None:
    """Raise EngineError where a CPU runtime is asked for a GPU, or for FP16 arithmetic."""
    if any(not target.is_cpu for target in options.targets):
        names = ", ".join(target.name for target in options.targets)
        raise EngineError(
            f"{runtime} builds for this CPU, not for {names}",
            hint="use --backend tensorrt-rtx for NVIDIA targets",
        )
    precision = model.description.precision
    if precision.endswith("fp16"):
        raise EngineError(
            f"{model.path.name} is {precision}: on a CPU it would be computed in float32, "
            "which says nothing about FP16",
            hint="use fp32 or int8-fp32 on a CPU",
        )


def require_same_machine(engine: Engine, version: str) -> None:
    """Raise EngineError unless a CPU engine was built by this version on a CPU like this one."""
    manifest = engine.manifest
    here = list(environment.describe().cpu_features)
    built_for = list(manifest.settings.get("cpu_features", []))
    if manifest.backend_version == version and built_for == here:
        return
    raise EngineError(
        f"{engine.path.name} was built by {manifest.backend} {manifest.backend_version} on "
        f"{manifest.device} ({', '.join(built_for)}); here is {version} "
        f"with {', '.join(here) or 'no known features'}",
        hint="a compiled graph belongs to its CPU and version: run `vitdeploy build-engine` here",
    )
