"""Finding the newest artifact of a model in a folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from vitdeploy.artifacts.engine import read_manifest
from vitdeploy.artifacts.files import reading
from vitdeploy.artifacts.onnx_model import ModelDescription, read_description, read_sidecar
from vitdeploy.errors import InputError


def newest(
    folder: Path,
    kind: Literal["onnx", "engine"],
    *,
    name: str | None,
    weights_digest: str | None = None,
    precision: str | None = None,
    left_out: Callable[[str], None] = lambda reason: None,
) -> Path | None:
    """The file written last of those that `made_from` finds; None where there is none."""
    found = made_from(
        folder,
        kind,
        name=name,
        weights_digest=weights_digest,
        precision=precision,
        left_out=left_out,
    )
    with reading(folder, "folder"):
        return max(found, key=lambda file: file.stat().st_mtime_ns, default=None)


def made_from(
    folder: Path,
    kind: Literal["onnx", "engine"],
    *,
    name: str | None,
    weights_digest: str | None = None,
    precision: str | None = None,
    left_out: Callable[[str], None] = lambda reason: None,
) -> list[Path]:
    """The files made from this model, by name.

    Models are told apart by the digest of their weights where it is known,
    else by name; without a name every model will do. A graph whose sidecar is
    missing or damaged still says itself what it is. A file that nothing
    describes is passed over, and `left_out` hears of it.

    Raises InputError for a folder that cannot be read.
    """
    found = []
    for file in _files(folder, f".{kind}"):
        try:
            description = _of_engine(file) if kind == "engine" else _of_graph(file)
        except InputError as error:
            left_out(f"left out: {error}")
            continue
        source = description.source
        if weights_digest is not None:
            same = source.weights_digest == weights_digest
        else:
            same = name in (None, source.name)
        if same and precision in (None, description.precision):
            found.append(file)
    return found


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
