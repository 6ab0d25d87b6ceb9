"""Checkpoints: our self-describing safetensors, and weights of others fitted to a module."""

from __future__ import annotations

import sys
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import nn

from vitdeploy.artifacts.files import atomic_path, to_json
from vitdeploy.artifacts.source import CHECKPOINT_KEY, SourceDescription
from vitdeploy.errors import InputError
from vitdeploy.models.checkpoint_files import PICKLE_ERRORS, State, read_state
from vitdeploy.models.library import WRAPPED
from vitdeploy.models.weight_names import as_in_module

__all__ = [
    "PICKLE_ERRORS",
    "Misshaped",
    "State",
    "load_into",
    "read_state",
    "require_fit",
    "save",
]

Misshaped = dict[str, tuple[tuple[int, ...], tuple[int, ...]]]
"""Name to its shape in the file and in the model."""

_SHOWN = 5


def save(path: Path, state: State, description: SourceDescription) -> None:
    """Write weights and description into one safetensors file, whole or not at all."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    with atomic_path(path) as temporary:
        try:
            save_file(tensors, temporary, metadata={CHECKPOINT_KEY: to_json(description)})
        except SafetensorError as error:
            raise OSError(*_os_error_arguments(error)) from error


def load_into(module: nn.Module, state: State, *, origin: str, new_head: bool = False) -> str:
    """Load `state` into `module`, under the module's names and in its types.

    Names may carry the prefixes of wrappers, or be those of the original
    repository where timm knows how to convert them. Answers what was done to
    them, in words ('' where nothing was). With `new_head`, a classifier of
    another size is left as it is in the module. Raises InputError listing
    every key that does not fit.
    """
    target = getattr(module, WRAPPED, module)
    own = target.state_dict()
    renamed, note = as_in_module(state, set(own))
    missing, unexpected, misshaped = _misfits(renamed, own)
    if missing or unexpected:
        converted = _converted_by_timm(target, renamed)
        if converted is not None and not any(_misfits(converted, own)):
            renamed, missing, unexpected, misshaped = converted, set(), set(), {}
            note = "names converted by timm"
    if new_head and not missing and _classes_in(misshaped) is not None:
        renamed = {**renamed, **{name: own[name] for name in misshaped}}
        note, misshaped = ", ".join(filter(None, (note, "a new head"))), {}
    require_fit(origin, missing=missing, unexpected=unexpected, misshaped=misshaped)
    # Half-precision checkpoints are computed in the module's own float32.
    target.load_state_dict({name: renamed[name].to(value.dtype) for name, value in own.items()})
    return note


def require_fit(
    origin: str, *, missing: set[str], unexpected: set[str], misshaped: Misshaped
) -> None:
    """Raise InputError listing the keys that do not fit, with the option that mends it."""
    shapes = [
        f"{name} is {found}, the model wants {wanted}"
        for name, (found, wanted) in sorted(misshaped.items())
    ]
    parts = [
        f"{len(names)} {what}: {', '.join(names[:_SHOWN])}{' ...' if len(names) > _SHOWN else ''}"
        for what, names in (
            ("missing", sorted(missing)),
            ("unexpected", sorted(unexpected)),
            ("of another shape", shapes),
        )
        if names
    ]
    if parts:
        hint = _remedy(missing, unexpected, misshaped)
        raise InputError(f"{origin} does not fit the model; {'; '.join(parts)}", hint=hint)


def _misfits(state: State, own: State) -> tuple[set[str], set[str], Misshaped]:
    return (
        set(own) - set(state),
        set(state) - set(own),
        {
            name: (tuple(state[name].shape), tuple(own[name].shape))
            for name in own.keys() & state.keys()
            if own[name].shape != state[name].shape
        },
    )


def _remedy(missing: set[str], unexpected: set[str], misshaped: Misshaped) -> str:
    classes = _classes_in(misshaped)
    if classes is not None and not missing and not unexpected:
        return f"the head has another size: give --num-classes {classes}"
    if misshaped and all("pos" in name for name in misshaped) and not missing:
        return (
            "the positions are of another size: create the model at the size it was trained at, "
            "and give the other one with --res"
        )
    if any(shape[0][1:2] != shape[1][1:2] for shape in misshaped.values() if len(shape[0]) == 4):
        return "the first convolution takes another number of channels: give --in-chans"
    return "check that --model and --model-kwargs are what the checkpoint was trained with"


def _classes_in(misshaped: Misshaped) -> int | None:
    """The file's number of classes, where only a classifier's rows differ."""
    rows = {found[0] for found, wanted in misshaped.values() if found[:1] and wanted[:1]}
    alike = all(
        len(found) in (1, 2) and found[1:] == wanted[1:] for found, wanted in misshaped.values()
    )
    return rows.pop() if misshaped and alike and len(rows) == 1 else None


def _converted_by_timm(module: nn.Module, state: State) -> State | None:
    """`state` through the filter of the module's own file in timm; None where it has none.

    A filter that resamples positions is not wanted here: a model is loaded at
    the size it was trained at, and resampled from there once.
    """
    convert = getattr(sys.modules[type(module).__module__], "checkpoint_filter_fn", None)
    if convert is None or not type(module).__module__.startswith("timm."):
        return None
    try:
        converted = convert(dict(state), module)
    except (KeyError, IndexError, RuntimeError, ValueError, AttributeError, TypeError):
        return None  # the names are listed as they stand in the file
    resampled = [
        name
        for name, tensor in converted.items()
        if "pos" in name and name in state and state[name].shape != tensor.shape
    ]
    return None if resampled else converted


def _os_error_arguments(error: SafetensorError) -> tuple[int, str]:
    import errno

    text = str(error)
    full = "No space left" in text or "os error 28" in text
    return (errno.ENOSPC if full else errno.EIO, text)
