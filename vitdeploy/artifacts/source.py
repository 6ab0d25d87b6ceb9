"""What is known about the model everything else is compared with."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from vitdeploy.artifacts.files import from_json, reading, require_file
from vitdeploy.artifacts.strict import printable
from vitdeploy.errors import InputError
from vitdeploy.preprocessing import Preprocessing

CHECKPOINT_KEY = "vitdeploy"

Task = Literal["classify", "multilabel", "regress", "features"]
"""One label of many, any number of labels, numbers, or features without a head."""

_LARGEST_HEADER = 100_000_000
_LONGEST_NAME_BYTES = 100
_NOT_IN_FILE_NAMES = '/\\:*?"<>|'
_PORTS = {f"{port}{number}" for port in ("com", "lpt") for number in range(1, 10)}
_DEVICES = {"con", "prn", "aux", "nul", *_PORTS}
"""Names that Windows keeps for itself, whatever follows a dot."""


@dataclass(frozen=True)
class SourceDescription:
    """A source model without its weights: enough to build, name and recognise it.

    `architecture` and `model_kwargs` are what the library's factory takes;
    `labels` name the columns of the output, and are empty for features.
    `weights_digest` is the sha256 of names, shapes and values of the state
    dict at the native resolution; it identifies the model across files.
    """

    name: str
    library: str
    architecture: str
    model_kwargs: dict[str, Any]
    native_resolution: tuple[int, int]
    in_chans: int
    labels: tuple[str, ...]
    weights_digest: str
    preprocessing: Preprocessing
    origin: str = ""
    training: dict[str, Any] = field(default_factory=dict)
    task: Task = "classify"

    def __post_init__(self) -> None:
        if min(*self.native_resolution, self.in_chans) < 1:
            raise InputError(
                f"native resolution is {self.native_resolution} with {self.in_chans} channels",
                hint="make the file again",
            )

    @property
    def num_classes(self) -> int:
        return len(self.labels)


def require_name(name: str) -> None:
    """Raise InputError unless files on every system, reports and terminals can carry the name."""
    problem = ""
    if not name.isprintable() or any(sign in _NOT_IN_FILE_NAMES for sign in name):
        problem = "holds characters that names of files do not"
    elif not 0 < len(name.encode()) <= _LONGEST_NAME_BYTES:
        problem = f"is {len(name.encode())} bytes long"
    elif name != name.strip(" .") or name.startswith("-"):
        problem = "begins or ends as names of files should not"
    elif name.partition(".")[0].rstrip().lower() in _DEVICES:
        problem = "is a device on Windows"
    if problem:
        raise InputError(
            f"the name {printable(repr(name[:_LONGEST_NAME_BYTES]))} {problem}",
            hint=f"use 1 to {_LONGEST_NAME_BYTES} letters, digits, '-' and '_', as in my-vit_1",
        )


def description_in(checkpoint: Path) -> SourceDescription | None:
    """The description inside a safetensors file; None where it carries none of ours.

    Reads the header alone (8 bytes of length, then JSON), without PyTorch.
    Raises InputError where the file is missing or no safetensors file.
    """
    require_file(checkpoint, what="checkpoint")
    with reading(checkpoint, "checkpoint"), checkpoint.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        header = stream.read(length) if length < _LARGEST_HEADER else b""
    try:
        # No key at all, or the texts by name that the format asks for.
        metadata = json.loads(header if len(header) == length else b"").get("__metadata__", {})
        text = metadata.get(CHECKPOINT_KEY)
        if not isinstance(text, str | None):
            raise TypeError(f"{CHECKPOINT_KEY} is no text")
    except (ValueError, RecursionError, AttributeError, TypeError) as error:
        raise InputError(
            f"checkpoint {checkpoint} is not a safetensors file, or is cut short",
            hint="copy it again",
        ) from error
    return None if text is None else from_json(text, SourceDescription, origin=str(checkpoint))
