"""One way in: whatever names a model becomes a `SourceModel`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitdeploy.artifacts.files import require_file
from vitdeploy.artifacts.source import SourceDescription, Task, description_in
from vitdeploy.errors import InputError
from vitdeploy.models import checkpoint
from vitdeploy.models.library import LIBRARIES, library
from vitdeploy.models.names import Named, expand, split_name, understood
from vitdeploy.models.opened import Opened, open_folder, open_named
from vitdeploy.models.request import ModelRequest
from vitdeploy.models.source import SourceModel, weights_digest

__all__ = ["ModelRequest", "expand", "load_source", "seeded_random_source", "split_name"]


def load_source(request: ModelRequest) -> SourceModel:
    """Load a model at its native resolution, on the CPU, in evaluation mode.

    Raises InputError for unknown names, weights that do not fit, and a request
    that names no source of weights: random ones are used only when asked for.
    """
    named = understood(request.name)
    if named.file is not None:
        return _from_file(named.file, request)
    described = _description_of_same(named, request)
    if described is not None and request.checkpoint is not None:
        return _from_description(request.checkpoint, described, request)
    if named.folder is not None or named.repository is not None:
        return _source(open_folder(named, request), request)
    return _source(open_named(named, request), request)


def _from_file(path: Path, request: ModelRequest) -> SourceModel:
    """A checkpoint named as the model: it must say what it is."""
    require_file(path, what="checkpoint")
    request.require_no_weight_source()
    description = description_in(path) if path.suffix == ".safetensors" else None
    if description is None:
        raise InputError(
            f"{path} does not say which architecture it belongs to",
            hint=f"name it: --model TIMM_NAME --checkpoint {path}",
        )
    if description.library == "python":
        raise InputError(
            f"{path} belongs to the Python factory {description.architecture}, and no file may "
            "choose which code is run",
            hint=f"name it yourself: --model {description.architecture} --checkpoint {path}",
        )
    return _from_description(path, description, request)


def _description_of_same(named: Named, request: ModelRequest) -> SourceDescription | None:
    """The description in the checkpoint, where it is of the very model that was named.

    It then says preprocessing and labels, which the architecture alone does not.
    """
    path = request.checkpoint
    if path is None or path.suffix != ".safetensors" or named.folder or named.repository:
        return None
    description = description_in(path)
    if description is None or not _agrees(description.model_kwargs, request.model_kwargs or {}):
        return None
    same = (description.library, description.architecture) == (named.library, named.architecture)
    if not same or request.pretrained or request.random_weights:
        return None
    return replace(description, name=request.name)


def _agrees(described: dict[str, Any], given: dict[str, Any]) -> bool:
    return all(name in described and described[name] == value for name, value in given.items())


def _from_description(
    path: Path, description: SourceDescription, request: ModelRequest
) -> SourceModel:
    if description.library not in LIBRARIES:
        raise InputError(
            f"{path} describes a model of {description.library!r}",
            hint=f"this version loads models of {', '.join(LIBRARIES)}",
        )
    _require_agreement(path, description, request)
    module = library(description.library).build(
        description.architecture, model_kwargs=description.model_kwargs
    )
    state, _ = checkpoint.read_state(path)
    if weights_digest(state) != description.weights_digest:
        raise InputError(
            f"the weights in {path} are not those its description was written for",
            hint="copy the file again, or train again",
        )
    checkpoint.load_into(module, state, origin=str(path))
    changed = replace(
        description,
        preprocessing=request.preprocessed(lambda: description.preprocessing),
        labels=description.labels if request.labels is None else request.labels,
        task=request.task or description.task,
    )
    if changed.task == "features":
        changed = replace(changed, labels=())
    return _answering(module, changed)


def _require_agreement(path: Path, description: SourceDescription, request: ModelRequest) -> None:
    classes = description.num_classes
    if request.num_classes not in (None, classes):
        raise InputError(
            f"{path} has {classes} classes, not {request.num_classes}",
            hint="leave --num-classes out",
        )
    if request.in_chans not in (None, description.in_chans):
        raise InputError(
            f"{path} takes {description.in_chans} channels, not {request.in_chans}",
            hint="leave --in-chans out",
        )
    if not _agrees(description.model_kwargs, request.model_kwargs or {}):
        raise InputError(
            f"{path} was made with the arguments {description.model_kwargs}",
            hint="leave --model-kwargs out",
        )
    if request.labels is not None and len(request.labels) != classes:
        raise InputError(
            f"{len(request.labels)} labels were given for {classes} classes",
            hint="one label per class",
        )
    if request.task not in (None, "features") and description.task == "features":
        raise InputError(f"{path} has no classifier: it answers features", hint="leave --task out")


def _source(opened: Opened, request: ModelRequest) -> SourceModel:
    module, models = opened.module, library(opened.library)
    preprocessing = request.preprocessed(lambda: models.preprocessing_of(module))
    if preprocessing.channels != opened.in_chans:
        raise InputError(
            f"{request.name} takes {opened.in_chans} channels but its preprocessing "
            f"normalizes {preprocessing.channels}",
            hint="give one mean and std per channel: --mean and --std",
        )
    task: Task = request.task or getattr(module, "declared_task", None) or "classify"
    description = SourceDescription(
        name=request.name,
        library=opened.library,
        architecture=opened.architecture,
        model_kwargs=opened.model_kwargs,
        native_resolution=models.native_resolution(module),
        in_chans=opened.in_chans,
        labels=() if task == "features" else _labels(opened, request),
        weights_digest=weights_digest(module.state_dict()),
        preprocessing=preprocessing,
        origin=opened.origin,
        task=task,
    )
    return _answering(module, description)


def _answering(module: nn.Module, description: SourceDescription) -> SourceModel:
    towers: Any = module
    if description.library == "python":
        # A factory named as a feature tower answers features; nothing is cut off it.
        towers.is_tower = description.task == "features"
    output = "features" if description.task == "features" else "logits"
    return SourceModel(module, description, description.native_resolution, output)


def _labels(opened: Opened, request: ModelRequest) -> tuple[str, ...]:
    models = library(opened.library)
    classes = models.class_count(opened.module)
    if classes < 1:
        raise InputError(
            f"{request.name} has no classifier head",
            hint="give --num-classes, or --task features to deploy it as a feature tower",
        )
    labels = request.labels or opened.labels or models.labels_of(opened.module)
    if len(labels) != classes:
        raise InputError(
            f"{len(labels)} labels were given for {classes} classes", hint="one label per class"
        )
    return labels


def seeded_random_source(request: ModelRequest, seed: int) -> SourceModel:
    """A model with random weights that are the same for the same seed, for tests and trials."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return load_source(request)
