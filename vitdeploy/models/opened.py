"""From a name that is understood to a module with its weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from vitdeploy.errors import InputError
from vitdeploy.models import checkpoint
from vitdeploy.models.checkpoint_files import read_state, weights_in
from vitdeploy.models.folders import fetch, is_timm, read_config
from vitdeploy.models.library import library
from vitdeploy.models.names import Named, require_known_to_timm
from vitdeploy.models.request import ModelRequest
from vitdeploy.models.weight_names import without_wrappers

_PREPARED = ("mean", "std", "interpolation", "crop_pct", "crop_mode", "input_size")


@dataclass(frozen=True)
class Opened:
    """A module and how to make it again. `labels` None: ask the library.

    `origin` says where the weights came from and what was done to them.
    """

    module: nn.Module
    library: str
    architecture: str
    model_kwargs: dict[str, Any]
    origin: str
    in_chans: int = 3
    labels: tuple[str, ...] | None = None


def open_named(named: Named, request: ModelRequest) -> Opened:
    """A model of timm, torchvision or a Python factory, by its name."""
    kwargs = _arguments(request)
    if named.library == "timm":
        require_known_to_timm(named.architecture)
    request.require_one_weight_source()
    models = library(named.library)
    module = models.build(named.architecture, model_kwargs=kwargs, pretrained=request.pretrained)
    origin = "pretrained weights" if request.pretrained else "random weights"
    if request.checkpoint is not None:
        origin = load_checkpoint(module, request.checkpoint)
    architecture, kwargs = models.recipe_of(module, named.architecture, kwargs)
    opened = Opened(module, named.library, architecture, kwargs, origin, _channels(module, kwargs))
    if named.library == "python":
        from vitdeploy.models import python_

        note = python_.note_of(module)
        return replace(opened, origin=f"{origin}; {note}" if note else origin)
    return opened


def load_checkpoint(module: nn.Module, path: Path, *, new_head: bool = False) -> str:
    """Load a checkpoint file or folder into `module`; says what was taken of it."""
    state, entry = read_state(path)
    note = checkpoint.load_into(module, state, origin=str(path), new_head=new_head)
    notes = [f"its {entry!r}"] * bool(entry) + [note] * bool(note)
    return f"{path.name} ({', '.join(notes)})" if notes else path.name


def _arguments(request: ModelRequest) -> dict[str, Any]:
    kwargs = dict(request.model_kwargs or {})
    if request.num_classes is not None:
        kwargs["num_classes"] = request.num_classes
    if request.in_chans is not None:
        kwargs["in_chans"] = request.in_chans
    return kwargs


def _channels(module: nn.Module, kwargs: dict[str, Any]) -> int:
    return int(getattr(module, "channels", kwargs.get("in_chans", 3)))


def open_folder(named: Named, request: ModelRequest) -> Opened:
    """A model folder of transformers or timm, local or of the hub.

    A local folder's weights are its own unless the request names others; those
    of the hub are asked for with `pretrained`.
    """
    local = named.folder is not None
    request.require_one_weight_source(own=local)
    folder = named.folder if named.folder is not None else fetch(named.repository or "")
    if not (folder / "config.json").is_file():
        read_state(folder)  # an adapter without its model: the error says how to merge it
    config = read_config(folder)
    weights = request.checkpoint
    if weights is None and not request.random_weights:
        weights = weights_in(folder)
        if weights is None:
            raise InputError(
                f"{folder} holds no weights",
                hint="copy the whole folder, or give --checkpoint FILE or --random-weights",
            )
    if named.library == "timm" or (not named.library and is_timm(config)):
        return _timm_folder(folder, config, weights, request)
    return _transformers_folder(folder, config, weights, request)


def _timm_folder(
    folder: Path, config: dict[str, Any], weights: Path | None, request: ModelRequest
) -> Opened:
    saved = config.get("pretrained_cfg", config)
    architecture = str(config.get("architecture", ""))
    kwargs = {**config.get("model_args", {}), **_arguments(request)}
    classes = config.get("num_classes", saved.get("num_classes"))
    if classes is not None:
        kwargs.setdefault("num_classes", classes)
    if config.get("global_pool"):
        kwargs.setdefault("global_pool", config["global_pool"])
    if saved.get("fixed_input_size") and saved.get("input_size"):
        kwargs.setdefault("img_size", list(saved["input_size"][-2:]))
    require_known_to_timm(architecture)
    module = library("timm").build(architecture, model_kwargs=kwargs)
    known = {key: saved[key] for key in _PREPARED if saved.get(key) is not None}
    module.pretrained_cfg = {**module.pretrained_cfg, **known}  # type: ignore[assignment, dict-item]
    origin = "random weights"
    if weights is not None:
        origin = load_checkpoint(module, weights, new_head=request.pretrained)
        origin = f"{folder.name}/{origin}" if weights.parent == folder else origin
    names = config.get("label_names", saved.get("label_names"))
    labels = tuple(map(str, names)) if names and len(names) == kwargs.get("num_classes") else None
    return Opened(
        module, "timm", architecture, kwargs, origin, int(kwargs.get("in_chans", 3)), labels
    )


def _transformers_folder(
    folder: Path, config: dict[str, Any], weights: Path | None, request: ModelRequest
) -> Opened:
    try:
        from vitdeploy.models import transformers_
    except ImportError as error:
        from vitdeploy.errors import MissingDependencyError

        raise MissingDependencyError(
            f"{folder} is a model of transformers, and {error.name} is not installed",
            hint="pip install 'vitdeploy[transformers]'",
        ) from error
    from vitdeploy.models.transformers_folder import recipe_in, without_text

    state, entry = ({}, "") if weights is None else read_state(weights)
    state = without_wrappers(state)
    recipe = recipe_in(
        folder, config, request, names=frozenset(state) if weights is not None else None
    )
    origin = "random weights"
    if weights is None:
        module = transformers_.build(recipe.architecture, model_kwargs=recipe.model_kwargs)
    else:
        module = transformers_.with_weights(
            recipe.architecture,
            recipe.model_kwargs,
            without_text(state) if recipe.is_tower_of_pair else state,
            origin=str(weights),
            new_head=request.pretrained,
        )
        inside = weights.parent == folder
        origin = f"{folder.name}/{weights.name}" if inside else weights.name
    module.folder = folder
    notes = [f"its {entry!r}"] * bool(entry) + [recipe.note] * bool(recipe.note)
    origin = f"{origin} ({', '.join(notes)})" if notes else origin
    channels = int(getattr(module.config, "num_channels", 3))
    return Opened(
        module, "transformers", recipe.architecture, recipe.model_kwargs, origin, channels
    )
