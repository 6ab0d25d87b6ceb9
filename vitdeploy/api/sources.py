"""The source model: load it, train it, export it. What needs PyTorch imports it when called."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vitdeploy.errors import InputError, MissingDependencyError
from vitdeploy.progress import SILENT, Progress

if TYPE_CHECKING:
    from vitdeploy.artifacts.onnx_model import ModelDescription, OnnxModel
    from vitdeploy.artifacts.source import SourceDescription
    from vitdeploy.export.export import ExportOptions
    from vitdeploy.images import ImageSet
    from vitdeploy.models.request import ModelRequest
    from vitdeploy.models.source import SourceModel
    from vitdeploy.training.destination import Destination
    from vitdeploy.training.recipe import TrainingRecipe
    from vitdeploy.training.run import EpochResult


@contextmanager
def needs_torch(what: str) -> Iterator[None]:
    """Turn a missing PyTorch, torchvision or timm into one error with its remedy."""
    try:
        yield
    except ImportError as error:
        raise MissingDependencyError(
            f"{what} needs the source model, and {error.name or error} is not installed",
            hint="pip install 'vitdeploy[torch]' (training: 'vitdeploy[train]')",
        ) from error


def load_model(request: ModelRequest) -> SourceModel:
    """Load a source model; see `vitdeploy.models.load.load_source`."""
    with needs_torch("loading a model"):
        from vitdeploy.models.load import load_source
    return load_source(request)


def starting_point(request: ModelRequest, *, seed: int, threads: int | None = None) -> SourceModel:
    """The model training begins with; random weights depend on the seed alone.

    From scratch, positions are drawn wider than timm does (see `widen_positions`).
    """
    with needs_torch("training"):
        import torch

        from vitdeploy.models.load import seeded_random_source
        from vitdeploy.training.initialize import from_scratch
    if threads is not None:
        torch.set_num_threads(threads)
    source = seeded_random_source(request, seed)
    return from_scratch(source, seed) if request.random_weights else source


def train(
    source: SourceModel,
    images: ImageSet,
    evaluation_images: ImageSet | None,
    recipe: TrainingRecipe,
    destination: Destination,
    *,
    progress: Progress = SILENT,
) -> tuple[SourceModel, list[EpochResult]]:
    """Train and write a self-describing checkpoint; see `vitdeploy.training.loop.train`."""
    with needs_torch("training"):
        from vitdeploy.training import loop
    return loop.train(source, images, evaluation_images, recipe, destination, progress=progress)


def export(
    source: SourceModel,
    options: ExportOptions,
    folder: Path,
    *,
    images: ImageSet | None = None,
    progress: Progress = SILENT,
) -> OnnxModel:
    """Write a verified fp32 graph; see `vitdeploy.export.export.export`."""
    with needs_torch("exporting"):
        from vitdeploy.export import export as stage
    return stage.export(source, options, folder, images=images, progress=progress)


def relabelled(source: SourceModel, name: str) -> SourceModel:
    """The same model under another name, which files and reports then carry."""
    return replace(source, description=replace(source.description, name=name))


def require_same_source(source: SourceDescription, model: ModelDescription) -> None:
    """Raise InputError unless a graph was made from these weights."""
    if source.weights_digest == model.source.weights_digest:
        return
    raise InputError(
        f"the engine was made from {model.source.name} "
        f"({model.source.weights_digest[:8]}), not from {source.name} "
        f"({source.weights_digest[:8]})",
        hint="name the model it was exported from with --model",
    )
