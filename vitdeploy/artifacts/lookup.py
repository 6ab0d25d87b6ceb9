"""Finding the artifacts of a model in a folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from vitdeploy.artifacts.engine import read_manifest
from vitdeploy.artifacts.files import reading
from vitdeploy.artifacts.onnx_model import ModelDescription, read_description, read_sidecar
from vitdeploy.errors import InputError


def made_from(
    folder: Path,
    kind: Literal["onnx", "engine"],
    wanted: Callable[[ModelDescription], bool],
    *,
    left_out: Callable[[str], None] = lambda reason: None,
) -> list[Path]:
    """The graphs or engines whose description is `wanted`, the one written last first.

    A graph whose sidecar is missing or damaged still says itself what it is. A
    file that nothing describes is passed over, and `left_out` hears of it.

    Raises InputError for a folder that cannot be read.
    """
    found = []
    for file in _files(folder, f".{kind}"):
        try:
            description = _of_engine(file) if kind == "engine" else _of_graph(file)
        except InputError as error:
            left_out(f"left out: {error}")
            continue
        if wanted(description):
            found.append(file)
    with reading(folder, "folder"):
        return sorted(found, key=lambda file: file.stat().st_mtime_ns, reverse=True)


def _files(folder: Path, suffix: str) -> list[Path]:
    """Whole files; unfinished ones begin with a dot."""
    with reading(folder, "folder"):
        if not folder.is_dir():
            return []
        found = [path for path in folder.iterdir() if path.suffix == suffix and path.is_file()]
    return sorted(path for path in found if not path.name.startswith("."))


def _of_engine(file: Path) -> ModelDescription:
    return read_manifest(file).model


def _of_graph(file: Path) -> ModelDescription:
    """From the sidecar, which is quick to read, else from the graph itself."""
    try:
        return read_sidecar(file)
    except InputError:
        return read_description(file)
