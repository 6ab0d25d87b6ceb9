"""Model folders of the Hugging Face hub: transformers' and timm's, local or fetched."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vitdeploy.errors import InputError, MissingDependencyError, first_line
from vitdeploy.models.hub import cache_where_out_of_reach

_CONFIG = "config.json"
_WANTED = ["config.json", "preprocessor_config.json", "*.safetensors", "*.safetensors.index.json"]
_PICKLED = ["config.json", "preprocessor_config.json", "pytorch_model*.bin*"]


def is_model_folder(path: Path) -> bool:
    """Whether a folder describes a model, or an adapter of one."""
    return any((path / name).is_file() for name in (_CONFIG, "adapter_config.json"))


def fetch(repository: str) -> Path:
    """The local copy of a hub repository ('google/vit-base-patch16-224', '...@revision').

    Only configuration and weights are fetched, safetensors before pickles.
    Raises MissingDependencyError where it is neither cached nor in reach.
    """
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise MissingDependencyError(
            f"fetching {repository} needs {error.name}", hint="pip install huggingface_hub"
        ) from error
    name, _, revision = repository.partition("@")
    try:
        with cache_where_out_of_reach():
            for patterns in (_WANTED, _PICKLED):
                folder = Path(
                    snapshot_download(name, revision=revision or None, allow_patterns=patterns)
                )
                if any(folder.glob("*.safetensors")) or any(folder.glob("*.bin")):
                    break
    except ValueError as error:
        raise InputError(
            f"{repository!r} is no name on the hub: {first_line(error)}",
            hint="hub names look like google/vit-base-patch16-224; a folder must exist",
        ) from error
    except OSError as error:
        raise MissingDependencyError(
            f"{repository} cannot be fetched from the hub: {first_line(error)}",
            hint="go online once, or copy its folder here and name the folder instead",
        ) from error
    return folder


def read_config(folder: Path) -> dict[str, Any]:
    """A folder's config.json. Raises InputError for one that asks to run its own code."""
    path = folder / _CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path} cannot be read: {first_line(error)}", hint="copy the whole model folder"
        ) from error
    if not isinstance(config, dict):
        raise InputError(f"{path} is no JSON object", hint="copy the whole model folder")
    if "auto_map" in config:
        code = (
            ", ".join(map(str, config["auto_map"].values())) if config["auto_map"] else "auto_map"
        )
        raise InputError(
            f"{path} wants code of its own to run ({code}), which is never done",
            hint="import the model's class yourself and name a factory: "
            "--model path/to/file.py:factory --checkpoint FOLDER",
        )
    return config


def is_timm(config: dict[str, Any]) -> bool:
    """Whether a config.json is timm's: it names one architecture, not a model type."""
    return "architecture" in config and "model_type" not in config
