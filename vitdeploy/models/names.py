"""What a user's name for a model means, and which names are near an unknown one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path

from vitdeploy.artifacts.files import near_path, reading
from vitdeploy.errors import InputError
from vitdeploy.models.folders import is_model_folder
from vitdeploy.models.library import LIBRARIES

_WEIGHT_FILES = {".safetensors", ".pth", ".pt", ".bin", ".ckpt"}
_OTHER_FILES = {".onnx", ".engine", ".safetensor", ".h5", ".keras", ".npz", ".pkl", ".zip", ".tar"}
"""What ends a file's name, and no name of timm's, whose tags follow a dot."""

_OF_HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_TIMM_HUB = ("hf-hub:", "hf_hub:")
_WILD = "*?["
_FACTORIES = ("vit_pytorch:ViT", "vit_pytorch.simple_vit:SimpleViT")


@dataclass(frozen=True)
class Named:
    """A name, understood: at most one of the places is set.

    `architecture` is the library's own name, or a factory; `folder` a local
    model folder; `repository` one of the hub; `file` a checkpoint.
    """

    library: str
    architecture: str = ""
    folder: Path | None = None
    repository: str | None = None
    file: Path | None = None


def understood(name: str) -> Named:
    """Where the model called `name` is to be had.

    'vit_small_patch16_224' and 'timm:...' (timm), 'hf_hub:owner/name' (timm on
    the hub), 'torchvision:vit_b_16', 'transformers:owner/name', a model folder,
    'package.module:factory', 'file.py:factory', a checkpoint file.

    Raises InputError for a path that leads nowhere, and for names in none of these forms.
    """
    prefix, colon, rest = name.partition(":")
    if name.startswith(_TIMM_HUB):
        return Named("timm", repository=rest)
    if colon and prefix == "local-dir":
        return Named("timm", folder=_existing_folder(rest))
    if colon and prefix in LIBRARIES:
        return _in_library(prefix, rest)
    path = Path(name)
    if path.suffix in _WEIGHT_FILES or name.endswith(".index.json"):
        return Named("", file=path)
    if path.is_dir() and (is_model_folder(path) or "/" in name):
        return Named("", folder=_existing_folder(name))
    if path.suffix == ".py":
        raise InputError(
            f"{name} names a file of code, not a factory in it", hint=f"write {name}:factory"
        )
    if colon:
        return Named("python", name)
    if path.is_file() and ("/" in name or path.suffix):
        raise InputError(
            f"{name} is a file, and no kind of checkpoint that is read",
            hint="take a graph in with `vitdeploy adopt`"
            if path.suffix == ".onnx"
            else f"give a file ending in {', '.join(sorted(_WEIGHT_FILES))}",
        )
    if "/" in name or "\\" in name or path.suffix in _OTHER_FILES:
        raise _no_such_file(name)
    return Named("timm", name)


def _no_such_file(name: str) -> InputError:
    path = Path(name)
    with reading(path, "model"):
        hint = near_path(path) or "check the path"
        if not path.parent.is_dir() and _OF_HUB.fullmatch(name):
            hint += f"; on the hub: transformers:{name} or hf_hub:{name}, with --pretrained"
    return InputError(f"{name} does not exist: no such file or folder is there", hint=hint)


def _in_library(library: str, rest: str) -> Named:
    if library == "timm" and rest.startswith(_TIMM_HUB):
        return Named("timm", repository=rest.partition(":")[2])
    if library == "transformers":
        if Path(rest).is_dir():
            return Named("transformers", folder=_existing_folder(rest))
        return Named("transformers", repository=rest)
    return Named(library, rest)


def _existing_folder(name: str) -> Path:
    path = Path(name)
    if not is_model_folder(path):
        raise InputError(
            f"{name} is no model folder: it holds no config.json",
            hint="name the folder that save_pretrained wrote, or a checkpoint file in it",
        )
    return path


def split_name(name: str) -> tuple[str, str]:
    """'torchvision:vit_b_16' to its library and architecture; timm where none is named."""
    prefix, colon, rest = name.partition(":")
    if colon and prefix in LIBRARIES:
        return prefix, rest
    return "timm", name


def expand(name: str) -> tuple[str, ...]:
    """The names a wildcard stands for ('vit_tiny*', 'torchvision:swin_*'), or the name itself.

    Raises InputError where nothing matches.
    """
    if not any(sign in name for sign in _WILD) or Path(name).exists():
        return (name,)
    library, pattern = split_name(name)
    if library == "torchvision":
        from vitdeploy.models import torchvision_

        found = tuple(
            f"torchvision:{known}" for known in torchvision_.names() if fnmatchcase(known, pattern)
        )
    elif library == "timm":
        from vitdeploy.models import timm_

        return timm_.matching(pattern)
    else:
        found = ()
    if not found:
        raise InputError(
            f"no model matches {name!r}",
            hint="wildcards stand for timm's names and torchvision's, as in 'vit_tiny*' "
            "or 'torchvision:vit_*'",
        )
    return found


def require_known_to_timm(name: str) -> None:
    """Raise InputError, suggesting near names of every library, unless timm has the model."""
    from vitdeploy.models import timm_

    try:
        timm_.require_known(name)
    except InputError as error:
        near = near_elsewhere(name)
        if near and near[0].rpartition(":")[2] == name:
            raise InputError(str(error), hint=f"did you mean {near[0]}?") from error
        hint = f"{error.hint or ''}; in other libraries: {', '.join(near)}" if near else error.hint
        raise InputError(str(error), hint=hint) from error


def near_elsewhere(name: str) -> tuple[str, ...]:
    """Names like `name` that are not timm's, nearest first: 'torchvision:vit_b_16'."""
    from vitdeploy.models import torchvision_

    known = {known: f"torchvision:{known}" for known in torchvision_.names()}
    known |= {full.rpartition(":")[2].lower(): full for full in _FACTORIES}
    matches = get_close_matches(name.lower(), known, n=3, cutoff=0.75)
    return tuple(known[match] for match in matches)
