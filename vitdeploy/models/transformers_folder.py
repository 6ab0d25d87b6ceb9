"""A folder saved by transformers becomes a module with its weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitdeploy.errors import InputError
from vitdeploy.models.checkpoint_files import State
from vitdeploy.models.request import ModelRequest

_TOWERS = {
    "CLIPModel": "CLIPVisionModelWithProjection",
    "SiglipModel": "SiglipVisionModel",
    "ChineseCLIPModel": "ChineseCLIPVisionModel",
}
"""Models of images and text, and the vision tower that is taken of them."""

_TEXT = ("text_model.", "text_projection.", "logit_scale", "logit_bias")


@dataclass(frozen=True)
class Recipe:
    """What `transformers_.build` takes, and what was taken of the folder, in words."""

    architecture: str
    model_kwargs: dict[str, Any]
    note: str = ""
    is_tower_of_pair: bool = False


def recipe_in(
    folder: Path, config: dict[str, Any], request: ModelRequest, *, names: frozenset[str] | None
) -> Recipe:
    """How to build the model of a config.json, changed by what the user gave.

    `names` are those of its weights: a plain ViT without a pooler in them is
    built without one, and its class token is the feature. Raises InputError
    where no class is named, and for quantized weights.
    """
    named = config.get("architectures")
    named = named if isinstance(named, list) else []
    if len(named) != 1:
        raise InputError(
            f"{folder / 'config.json'} names {len(named)} architectures; one is needed",
            hint='save the model with save_pretrained, or write "architectures": ["CLASS"]',
        )
    if "quantization_config" in config:
        raise InputError(
            f"{folder} holds weights quantized by {config['quantization_config']}",
            hint="save the model it was quantized from; vitdeploy quantizes it itself",
        )
    architecture, note = str(named[0]), ""
    config = {key: value for key, value in config.items() if key != "architectures"}
    tower = _TOWERS.get(architecture)
    if tower is not None:
        vision = dict(config.get("vision_config") or {})
        if "projection_dim" in config:
            vision["projection_dim"] = config["projection_dim"]
        note = f"the vision tower of {architecture}"
        architecture, config = tower, vision
    config = _changed(config, request)
    kwargs: dict[str, Any] = {"config": config}
    pooled = architecture in ("ViTModel", "DeiTModel")
    if pooled and names is not None and not any("pooler." in name for name in names):
        kwargs["add_pooling_layer"] = False
        note = "the class token, as the weights hold no pooler"
    return Recipe(architecture, kwargs, note, tower is not None)


def _changed(config: dict[str, Any], request: ModelRequest) -> dict[str, Any]:
    classes = request.num_classes
    if classes is not None and classes != _class_count(config):
        config = {k: v for k, v in config.items() if k not in ("id2label", "label2id")}
        config["num_labels"] = classes
    if request.in_chans is not None:
        config = {**config, "num_channels": request.in_chans}
    return {**config, **(request.model_kwargs or {})}


def _class_count(config: dict[str, Any]) -> int:
    return len(config["id2label"]) if "id2label" in config else int(config.get("num_labels", 2))


def without_text(state: State) -> State:
    """The weights of a model of images and text, less those of the text."""
    return {name: value for name, value in state.items() if not name.startswith(_TEXT)}
