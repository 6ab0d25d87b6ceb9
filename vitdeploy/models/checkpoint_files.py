"""Reading weights: single and sharded files, folders, without running anything in them."""

from __future__ import annotations

import json
import pickle
import struct
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from vitdeploy.artifacts.files import require_file
from vitdeploy.errors import InputError, first_line
from vitdeploy.models import rescue

State = dict[str, torch.Tensor]

PICKLE_ERRORS = (
    pickle.UnpicklingError, RuntimeError, EOFError, ValueError, LookupError, TypeError,
    AttributeError, AssertionError, OverflowError, struct.error,
)  # fmt: skip
"""What torch's weights-only loading raises for damaged files (found by overwriting bytes)."""

_SINGLE = ("model.safetensors", "pytorch_model.bin", "open_clip_pytorch_model.bin")
_INDEXED = ("model.safetensors.index.json", "pytorch_model.bin.index.json")

_AVERAGED_ENTRIES = ("state_dict_ema", "model_ema", "ema_state_dict", "ema", "teacher")
_ENTRIES = ("state_dict", "model_state_dict", "model", "module", "net", "student")


def read_state(path: Path) -> tuple[State, str]:
    """The tensors of a checkpoint, and the entry of a training checkpoint they are from ('').

    Takes safetensors files, pickles (weights-only loading), shards named by an
    index, and folders that hold one of those. Where a file holds averaged
    weights beside the trained ones, the averaged are taken.

    Raises InputError for anything else; where only running the file's code
    could read it, with the script that re-saves it.
    """
    path = _weights_of_folder(path) if path.is_dir() else path
    require_file(path, what="checkpoint")
    if path.name.endswith(".index.json"):
        return _sharded(path), ""
    content = _content(path)
    content, entry = _opened(content)
    if not isinstance(content, dict) or not content:
        raise InputError(f"{path} holds no state dict", hint="save model.state_dict() instead")
    tensors = {str(k): v for k, v in content.items() if isinstance(v, torch.Tensor)}
    if not tensors:
        raise InputError(f"{path} holds no tensors", hint="save model.state_dict() instead")
    if any(".lora_A." in name or ".lora_a." in name for name in tensors):
        raise rescue.lora_refused(path)
    return tensors, entry


def weights_in(folder: Path) -> Path | None:
    """The weights file (or index of shards) of a model folder; None where it has none."""
    for name in (*_SINGLE[:1], *_INDEXED[:1], *_SINGLE[1:], *_INDEXED[1:]):
        if (folder / name).is_file():
            return folder / name
    return None


def _weights_of_folder(folder: Path) -> Path:
    found = weights_in(folder)
    if found is not None:
        return found
    if (folder / "adapter_config.json").is_file():
        raise rescue.lora_refused(folder)
    raise InputError(
        f"{folder} holds no weights", hint=f"it should hold one of {', '.join(_SINGLE + _INDEXED)}"
    )


def _content(path: Path) -> Any:
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with warnings.catch_warnings():
            # A TorchScript archive is named before it is refused; the error says it too.
            warnings.filterwarnings("ignore", message=".*TorchScript archive")
            return torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, *PICKLE_ERRORS) as error:
        raise _unreadable(path, error) from error


def _opened(content: Any) -> tuple[Any, str]:
    for key in (*_AVERAGED_ENTRIES, *_ENTRIES):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            inner, deeper = _opened(content[key])
            if any(isinstance(value, torch.Tensor) for value in inner.values()):
                return inner, f"{key}.{deeper}" if deeper else key
    return content, ""


def _sharded(index: Path) -> State:
    try:
        shards = json.loads(index.read_text(encoding="utf-8-sig"))["weight_map"]
        names = sorted(set(shards.values()))
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, AttributeError, TypeError) as error:
        raise InputError(f"{index} is no index of shards", hint="copy it again") from error
    strangers = [name for name in names if not isinstance(name, str) or Path(name).name != name]
    if strangers:
        raise InputError(
            f"{index} names shards outside its folder: {strangers[0]}", hint="copy it again"
        )
    missing = [name for name in names if not (index.parent / name).is_file()]
    if missing:
        raise InputError(
            f"{index.parent} lacks {len(missing)} of {len(names)} shards: {', '.join(missing[:3])}",
            hint="copy the whole folder",
        )
    state: State = {}
    for name in names:
        part = _content(index.parent / name)
        state |= {str(k): v for k, v in part.items() if isinstance(v, torch.Tensor)}
    lacking = sorted(shards.keys() - state.keys())
    if lacking:
        raise InputError(
            f"the shards of {index} lack {len(lacking)} weights: {', '.join(lacking[:3])}",
            hint="copy the whole folder",
        )
    return state


def _unreadable(path: Path, error: Exception) -> InputError:
    text = str(error)
    if "TorchScript" in text or isinstance(error, pickle.UnpicklingError):
        return rescue.code_refused(path, error)
    return InputError(
        f"checkpoint {path} cannot be read: {first_line(error)}",
        hint="copy it again; it may be incomplete",
    )
