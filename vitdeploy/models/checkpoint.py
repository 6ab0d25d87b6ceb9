"""Checkpoint files: our self-describing safetensors, and plain state dicts read safely."""

from __future__ import annotations

import pickle
import struct
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from vitdeploy.artifacts.files import atomic_path, require_file, to_json
from vitdeploy.artifacts.source import CHECKPOINT_KEY, SourceDescription
from vitdeploy.errors import InputError

PICKLE_ERRORS = (
    pickle.UnpicklingError, RuntimeError, EOFError, ValueError, LookupError, TypeError,
    AttributeError, AssertionError, OverflowError, struct.error,
)  # fmt: skip
"""What torch's weights-only loading raises for damaged files (found by overwriting bytes)."""


def save(path: Path, state: dict[str, torch.Tensor], description: SourceDescription) -> None:
    """Write weights and description into one safetensors file, whole or not at all."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    with atomic_path(path) as temporary:
        try:
            save_file(tensors, temporary, metadata={CHECKPOINT_KEY: to_json(description)})
        except SafetensorError as error:
            raise OSError(*_os_error_arguments(error)) from error


def read_state(path: Path) -> dict[str, torch.Tensor]:
    """The state dict of a checkpoint. Pickles are read through weights-only loading.

    A training checkpoint's 'state_dict', 'model' or 'model_ema' entry is
    opened, and prefixes left by wrappers ('module.', 'model.', '_orig_mod.')
    are dropped. Raises InputError for anything else.
    """
    require_file(path, what="checkpoint")
    try:
        if path.suffix == ".safetensors":
            content: Any = load_file(path)
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, *PICKLE_ERRORS) as error:
        raise _unreadable(path, error) from error
    for key in ("state_dict_ema", "model_ema", "state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
            break
    if not isinstance(content, dict) or not content:
        raise InputError(f"{path} holds no state dict", hint="save model.state_dict() instead")
    tensors = {str(k): v for k, v in content.items() if isinstance(v, torch.Tensor)}
    for prefix in ("module.", "_orig_mod.", "model."):
        if tensors and all(name.startswith(prefix) for name in tensors):
            tensors = {name[len(prefix) :]: tensor for name, tensor in tensors.items()}
    if not tensors:
        raise InputError(f"{path} holds no tensors", hint="save model.state_dict() instead")
    return tensors


def load_into(module: torch.nn.Module, state: dict[str, torch.Tensor], *, origin: str) -> None:
    """Load `state` into `module`. Raises InputError listing every key that does not fit."""
    own = module.state_dict()
    missing = sorted(own.keys() - state.keys())
    unexpected = sorted(state.keys() - own.keys())
    misshaped = [
        f"{name} is {tuple(state[name].shape)}, the model wants {tuple(own[name].shape)}"
        for name in sorted(own.keys() & state.keys())
        if own[name].shape != state[name].shape
    ]
    if not (missing or unexpected or misshaped):
        module.load_state_dict(state)
        return
    parts = [
        f"{len(names)} {what}: {', '.join(names[:5])}{' ...' if len(names) > 5 else ''}"
        for what, names in (
            ("missing", missing),
            ("unexpected", unexpected),
            ("of another shape", misshaped),
        )
        if names
    ]
    head = any(name.startswith("head") for name in misshaped)
    hint = (
        "the head has another size: give --num-classes"
        if head
        else "check that --model and --model-kwargs are what the checkpoint was trained with"
    )
    raise InputError(f"{origin} does not fit the model; {'; '.join(parts)}", hint=hint)


def _unreadable(path: Path, error: Exception) -> InputError:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if isinstance(error, pickle.UnpicklingError):
        hint = (
            "it is damaged, or holds pickled code, which is never run; where you trust it, "
            "load it and re-save: "
            "safetensors.torch.save_file(model.state_dict(), 'model.safetensors')"
        )
    else:
        hint = "copy it again; it may be incomplete"
    return InputError(f"checkpoint {path} cannot be read: {reason}", hint=hint)


def _os_error_arguments(error: SafetensorError) -> tuple[int, str]:
    import errno

    text = str(error)
    full = "No space left" in text or "os error 28" in text
    return (errno.ENOSPC if full else errno.EIO, text)
