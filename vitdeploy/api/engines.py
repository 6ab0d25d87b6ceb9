"""Engines: which backend, with which options, built and loaded."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vitdeploy import environment
from vitdeploy.artifacts.files import require_writable
from vitdeploy.backends import registry
from vitdeploy.backends.base import Backend, BuildOptions, Session, require_own_options
from vitdeploy.backends.tensorrt import device
from vitdeploy.errors import MissingDependencyError
from vitdeploy.progress import SILENT, Progress
from vitdeploy.target import CPU, Target

if TYPE_CHECKING:
    from vitdeploy.artifacts.engine import Engine
    from vitdeploy.artifacts.onnx_model import OnnxModel


def choose_backend(name: str, targets: Sequence[Target] | None) -> tuple[Backend, str]:
    """The backend called `name` ('auto' picks one), and why."""
    if name == "auto":
        return registry.choose(targets)
    return registry.get(name), "it was asked for"


def targets_of(backend: Backend, targets: Sequence[Target] | None) -> tuple[Target, ...]:
    """What a graph is planned for: the targets given, else this machine's GPU or its CPU.

    Raises MissingDependencyError where there is a GPU that cannot be asked what it is.
    """
    if targets is not None:
        return tuple(targets)
    if backend.name.startswith("tensorrt") and environment.has_nvidia_driver():
        capability = device.compute_capability()
        return (Target(f"sm{capability}", capability),)
    return (CPU,)


def check_options(backend: Backend, options: BuildOptions, precision: str) -> None:
    """Raise what a build would, as far as machine and options tell: before a graph is quantized.

    Backends of other packages need not have a `check_options`; `build` refuses then.
    """
    require_own_options(options, backend.name)
    check = getattr(backend, "check_options", None)
    if check is not None:
        check(options, precision)


def build_engine(
    model: OnnxModel,
    backend: Backend,
    folder: Path,
    options: BuildOptions | None = None,
    *,
    progress: Progress = SILENT,
) -> Engine:
    """Compile a graph into '<graph's stem>_<backend>-<digest>.engine' with its manifest.

    The digest is of the graph and of all options: builds of other graphs, or
    for other batches and threads, never take each other's place.
    """
    options = options or BuildOptions()
    availability = backend.probe()
    if not availability.available:
        raise MissingDependencyError(
            f"{backend.name} cannot be used here: {availability.reason}",
            hint="`vitdeploy doctor` lists what can",
        )
    targets = "" if options.targets == (CPU,) else "-" + "-".join(t.name for t in options.targets)
    digest = hashlib.sha256(f"{model.digest} {options}".encode()).hexdigest()[:8]
    output = folder / f"{model.path.stem}_{backend.name}{targets}-{digest}.engine"
    require_writable(output)
    return backend.build(model, options, output, progress)


def load_engine(engine: Engine, *, threads: int | None = None, alone: bool = True) -> Session:
    """Load an engine on this machine; see `Backend.load`."""
    return registry.get(engine.manifest.backend).load(engine, threads=threads, alone=alone)
