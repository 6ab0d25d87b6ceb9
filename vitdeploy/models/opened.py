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

_PREPARED: dict[str, type[Any]] = {
    "mean": list,
    "std": list,
    "interpolation": str,
    "crop_pct": float,
    "crop_mode": str,
    "input_size": list,
}
"""Of timm's pretrained configuration: what is read, and its type in JSON."""


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
    return int(getattr(module, "channels", None) or kwargs.get("in_chans") or 3)


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
    is_of_timm = named.library == "timm" or (not named.library and is_timm(config))
    open_as = _timm_folder if is_of_timm else _transformers_folder
    opened = open_as(folder, config, weights, request)
    # A folder of the hub's cache is called by its commit.
    place = named.repository or folder.name
    inside = weights is not None and weights.parent == folder
    return replace(opened, origin=f"{place}/{opened.origin}") if inside else opened


def _timm_folder(
    folder: Path, config: dict[str, Any], weights: Path | None, request: ModelRequest
) -> Opened:
    saved = _part(folder, config, "pretrained_cfg", dict) or config
    architecture = _part(folder, config, "architecture", str) or ""
    kwargs = {**(_part(folder, config, "model_args", dict) or {}), **_arguments(request)}
    for key in ("num_classes", "global_pool"):
        if (value := config.get(key, saved.get(key))) is not None:
            kwargs.setdefault(key, value)
    size = _part(folder, saved, "input_size", list)
    if saved.get("fixed_input_size") and size:
        kwargs.setdefault("img_size", size[-2:])
    require_known_to_timm(architecture)
    module = library("timm").build(architecture, model_kwargs=kwargs)
    known = {
        key: value
        for key, kind in _PREPARED.items()
        if (value := _part(folder, saved, key, kind)) is not None
    }
    module.pretrained_cfg = {**module.pretrained_cfg, **known}  # type: ignore[assignment, dict-item]
    origin = "random weights"
    if weights is not None:
        origin = load_checkpoint(module, weights, new_head=request.pretrained)
    names = _part(folder, {**saved, **config}, "label_names", list) or []
    labels = tuple(map(str, names)) if len(names) == kwargs.get("num_classes") else None
    return Opened(module, "timm", architecture, kwargs, origin, _channels(module, kwargs), labels)


def _part(folder: Path, config: dict[str, Any], key: str, kind: type[Any]) -> Any:
    value = config.get(key)
    whole = kind is float and type(value) is int
    if value is None or isinstance(value, kind) or whole:
        return value
    raise InputError(
        f"{folder / 'config.json'}: {key} is {value!r}, which should be a {kind.__name__}",
        hint="copy the whole folder again",
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
        origin = weights.name
    module.folder = folder
    notes = [f"its {entry!r}"] * bool(entry) + [recipe.note] * bool(recipe.note)
    origin = f"{origin} ({', '.join(notes)})" if notes else origin
    channels = int(getattr(module.config, "num_channels", 3))
    return Opened(
        module, "transformers", recipe.architecture, recipe.model_kwargs, origin, channels
    )
