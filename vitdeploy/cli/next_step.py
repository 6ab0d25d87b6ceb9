"""The command that is likely to come next, ready to be pasted where every value in it is known."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitdeploy.artifacts.engine import Engine
    from vitdeploy.artifacts.onnx_model import OnnxModel
    from vitdeploy.artifacts.source import SourceDescription
    from vitdeploy.workspace import Workspace

MODEL, FOLDER = "MODEL", "FOLDER"
"""Stand for what cannot be known."""


def command_line(*parts: object) -> str:
    """A line for the shell, with quotes where names need them."""
    words = ["vitdeploy", *map(str, parts)]
    return subprocess.list2cmdline(words) if sys.platform == "win32" else shlex.join(words)


def building_of(graph: OnnxModel, *, calibrated: bool, images: Path | None) -> str:
    """'next: vitdeploy build-engine ...' for a graph just written.

    A float32 one in INT8 where `images` are known, or the recipe's are
    (`calibrated`); else it is said what that takes.
    """
    words: list[object] = ["build-engine", graph.path]
    is_plain = graph.description.precision == "fp32"
    if is_plain and (calibrated or images is not None):
        words += ["--int8", *([] if images is None else ["--calib", images])]
    told = " (INT8: with --int8 --calib FOLDER)" if is_plain and "--int8" not in words else ""
    return f"next: {command_line(*words)}{told}"


def evaluation_of(
    engine: Engine, place: Workspace, *, named: bool, graph: Path, images: Path | None
) -> str:
    """'next: vitdeploy evaluate ...' for an engine just built from `graph`.

    What the recipe says is left out; `named` False leaves out the engine too,
    which is then the newest. `images` are known to be fit for judging.
    """
    from vitdeploy.backends import registry

    source = engine.manifest.model.source
    words: list[object] = ["evaluate", *([engine.path] if named else [])]
    placeholders = []
    if not place.is_own(source):
        found = source_arguments(place, source, graph)
        words += ["--model", MODEL] if found is None else found
        placeholders += [f"{MODEL}: what it was exported from"] if found is None else []
    if not place.knows(source) or images is not None:
        embedded = _is_demo(source)
        words += ["--data", images or ("demo" if embedded else FOLDER)]
        known = images is not None or embedded
        placeholders += [] if known else [f"{FOLDER}: images it was not calibrated with"]
    here = registry.probe(engine.manifest.backend).can_execute
    told = f" ({'; '.join(placeholders)})" if placeholders else ""
    return f"next{'' if here else ', on the device'}: {command_line(*words)}{told}"


def source_arguments(
    place: Workspace, source: SourceDescription, graph: Path
) -> list[object] | None:
    """Options that name this very source; None where nothing here tells what it was.

    A checkpoint in the working folder is known by its digest. Where a source
    was loaded from is not kept: files are passed on, and paths are private.
    """
    from vitdeploy.artifacts.source import description_in
    from vitdeploy.errors import InputError

    if source.library == "onnx":
        return ["--model", graph]
    if _is_demo(source):
        return ["--model", "demo"]
    for path in sorted(place.folder.glob("*.safetensors")):
        try:
            found = description_in(path)
        except InputError:
            continue
        if found is not None and found.weights_digest == source.weights_digest:
            return ["--model", path]
    if source.library == "timm" and source.origin == "pretrained weights":
        return None if source.model_kwargs else ["--model", source.architecture, "--pretrained"]
    return None


def _is_demo(source: SourceDescription) -> bool:
    from vitdeploy.artifacts.source import description_in
    from vitdeploy.demo import assets

    embedded = description_in(assets.CHECKPOINT)
    return embedded is not None and embedded.weights_digest == source.weights_digest
