"""One way in: whatever names a model becomes a `SourceModel`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitdeploy.artifacts.files import require_file
from vitdeploy.artifacts.source import SourceDescription, Task, description_in
from vitdeploy.errors import InputError
from vitdeploy.models import checkpoint, timm_
from vitdeploy.models.library import LIBRARIES, Library, library
from vitdeploy.models.source import SourceModel, weights_digest
from vitdeploy.preprocessing import Preprocessing


@dataclass(frozen=True, kw_only=True)
class ModelRequest:
    """How a user names a model. Exactly one source of weights must be given.

    `name` is a timm name, or the path of a checkpoint that describes itself.
    """

    name: str
    checkpoint: Path | None = None
    pretrained: bool = False
    random_weights: bool = False
    num_classes: int | None = None
    in_chans: int | None = None
    model_kwargs: dict[str, Any] | None = None
    labels: tuple[str, ...] | None = None
    preprocessing: Preprocessing | None = None
    task: Task = "classify"


def load_source(request: ModelRequest) -> SourceModel:
    """Load a model at its native resolution, on the CPU, in evaluation mode.

    Raises InputError for unknown names, weights that do not fit, and a request
    that names no source of weights: random ones are used only when asked for.
    """
    described = _described_checkpoint(request)
    if described is not None:
        return _from_description(*described, request)
    from_library, architecture = split_name(request.name)
    models = library(from_library)
    kwargs = dict(request.model_kwargs or {})
    if request.num_classes is not None:
        kwargs["num_classes"] = request.num_classes
    if request.in_chans is not None:
        kwargs["in_chans"] = request.in_chans
    timm_.require_known(architecture)
    _require_one_weight_source(request)
    module = models.build(architecture, model_kwargs=kwargs, pretrained=request.pretrained)
    origin = "pretrained weights" if request.pretrained else "random weights"
    if request.checkpoint is not None:
        checkpoint.load_into(
            module, checkpoint.read_state(request.checkpoint), origin=str(request.checkpoint)
        )
        origin = request.checkpoint.name
    description = _describe(module, request, (from_library, architecture, kwargs), origin)
    output = "features" if description.task == "features" else "logits"
    return SourceModel(module, description, description.native_resolution, output)


def split_name(name: str) -> tuple[str, str]:
    """'torchvision:vit_b_16' to its library and architecture; timm where none is named."""
    prefix, colon, rest = name.partition(":")
    if colon and prefix in LIBRARIES:
        return prefix, rest
    return "timm", name


def _described_checkpoint(request: ModelRequest) -> tuple[Path, SourceDescription] | None:
    path = request.checkpoint
    if path is None and _looks_like_file(request.name):
        path = Path(request.name)
        require_file(path, what="checkpoint")
        description = description_in(path) if path.suffix == ".safetensors" else None
        if description is None:
            raise InputError(
                f"{path} does not say which architecture it belongs to",
                hint=f"name it: --model TIMM_NAME --checkpoint {path}",
            )
        return path, description
    return None


def _looks_like_file(name: str) -> bool:
    return Path(name).suffix in {".safetensors", ".pth", ".pt", ".bin", ".ckpt"} or "/" in name


def _from_description(
    path: Path, description: SourceDescription, request: ModelRequest
) -> SourceModel:
    if description.library not in LIBRARIES:
        raise InputError(
            f"{path} describes a model of {description.library!r}",
            hint=f"this version loads models of {', '.join(LIBRARIES)}",
        )
    if request.num_classes not in (None, description.num_classes):
        raise InputError(
            f"{path} has {description.num_classes} classes, not {request.num_classes}",
            hint="leave --num-classes out",
        )
    if request.in_chans not in (None, description.in_chans):
        raise InputError(
            f"{path} takes {description.in_chans} channels, not {request.in_chans}",
            hint="leave --in-chans out",
        )
    models = library(description.library)
    module = models.build(description.architecture, model_kwargs=description.model_kwargs)
    state = checkpoint.read_state(path)
    if weights_digest(state) != description.weights_digest:
        raise InputError(
            f"the weights in {path} are not those its description was written for",
            hint="copy the file again, or train again",
        )
    checkpoint.load_into(module, state, origin=str(path))
    if request.preprocessing is not None:
        description = replace(description, preprocessing=request.preprocessing)
    output = "features" if description.task == "features" else "logits"
    return SourceModel(module, description, description.native_resolution, output)


def _require_one_weight_source(request: ModelRequest) -> None:
    given = [request.checkpoint is not None, request.pretrained, request.random_weights]
    if sum(given) == 1:
        return
    what = "no weights" if not any(given) else "more than one source of weights"
    raise InputError(
        f"{request.name} was given {what}",
        hint="give one of --checkpoint FILE, --pretrained, --random-weights",
    )


def _describe(
    module: nn.Module,
    request: ModelRequest,
    made_by: tuple[str, str, dict[str, Any]],
    origin: str,
) -> SourceDescription:
    from_library, architecture, kwargs = made_by
    models = library(from_library)
    preprocessing = request.preprocessing or models.preprocessing_of(module)
    in_chans = int(kwargs.get("in_chans", 3))
    if preprocessing.channels != in_chans:
        raise InputError(
            f"{request.name} takes {in_chans} channels but its preprocessing "
            f"normalizes {preprocessing.channels}",
            hint="give one mean and std per channel: --mean and --std, "
            "or ModelRequest(preprocessing=...) in Python",
        )
    architecture, kwargs = models.recipe_of(module, architecture, kwargs)
    return SourceDescription(
        name=request.name,
        library=from_library,
        architecture=architecture,
        model_kwargs=kwargs,
        native_resolution=models.native_resolution(module),
        in_chans=in_chans,
        labels=_labels(module, models, request),
        weights_digest=weights_digest(module.state_dict()),
        preprocessing=preprocessing,
        origin=origin,
        task=request.task,
    )


def _labels(module: nn.Module, models: Library, request: ModelRequest) -> tuple[str, ...]:
    if request.task == "features":
        return ()
    classes = models.class_count(module)
    if classes < 1:
        raise InputError(
            f"{request.name} has no classifier head",
            hint="give --num-classes, or --task features to deploy it as a feature tower",
        )
    labels = request.labels or models.labels_of(module)
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
