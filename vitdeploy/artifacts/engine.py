"""`Engine`: what a runtime loads, with a manifest that says where it may be loaded."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vitdeploy.artifacts.files import (
    file_digest,
    from_json,
    read_text,
    reading,
    require_file,
    require_writable,
    to_json,
    write_text,
)
from vitdeploy.artifacts.onnx_model import ModelDescription
from vitdeploy.errors import EngineError, InputError

SCHEMA_VERSION = 1
COPY_FIRST = "copy the engine and its .json to a folder you may write to, and name it there"
"""Findings lie beside their engine, so that is what to do where its folder is read-only."""
_BUILD_AGAIN = "build the engine again"


@dataclass(frozen=True)
class EngineManifest:
    """Everything needed to refuse an engine before loading it, and to repeat the build.

    `batch` is (smallest, optimal, largest); `targets` are the names the
    engine was built for ('cpu', 'sm89'); `device` is the machine it was built
    on, in words; `settings` are the runtime's own options.
    """

    backend: str
    backend_version: str
    model: ModelDescription
    model_digest: str
    engine_digest: str
    targets: tuple[str, ...]
    device: str
    batch: tuple[int, int, int]
    build_seconds: float
    settings: dict[str, Any] = field(default_factory=dict)
    build_log: tuple[str, ...] = ()
    schema_version: int = SCHEMA_VERSION
    kind: str = "engine"

    def __post_init__(self) -> None:
        smallest, best, largest = self.batch
        if not 1 <= smallest <= best <= largest:
            raise InputError(f"batch is {self.batch}", hint=_BUILD_AGAIN)
        features = self.settings.get("cpu_features", [])
        if not isinstance(features, list | tuple) or not all(isinstance(f, str) for f in features):
            raise InputError(f"cpu_features is {features!r}", hint=_BUILD_AGAIN)


@dataclass(frozen=True)
class Engine:
    """An engine file and its manifest."""

    path: Path
    manifest: EngineManifest

    def at(self, size: tuple[int, int] | None) -> Engine:
        """As `ModelDescription.at`: it is run at this size, whatever file and manifest say."""
        return replace(self, manifest=replace(self.manifest, model=self.manifest.model.at(size)))

    @property
    def size_bytes(self) -> int:
        return self.path.stat().st_size


def beside(engine: Path, name: str) -> Path:
    """Where a finding about an engine is written. Raises OutputError where that cannot be.

    Look before the work: an hour's finding that finds no place is lost.
    """
    path = engine.with_name(name)
    require_writable(path, remedy=COPY_FIRST)
    return path


def write_manifest(engine: Engine) -> None:
    """Write '<same>.json' beside the engine file."""
    write_text(manifest_path(engine.path), to_json(engine.manifest))


def manifest_path(engine: Path) -> Path:
    return engine.with_suffix(".json")


def read_engine(path: Path) -> Engine:
    """Read an engine's manifest and check that the file is the one it describes.

    Raises InputError where file or manifest are missing or unreadable,
    EngineError where the engine's bytes are not the manifest's.
    """
    manifest = read_manifest(path)
    if file_digest(path) != manifest.engine_digest:
        raise EngineError(
            f"{path} is not the file that {manifest_path(path).name} describes",
            hint="copy both again, or build the engine again",
        )
    return Engine(path, manifest)


def read_manifest(path: Path) -> EngineManifest:
    """The manifest of the engine file `path`, which is not looked into.

    Raises InputError where one of both is missing or the manifest is unreadable.
    """
    require_file(path, what="engine")
    if path.suffix != ".engine":
        raise InputError(
            f"{path} is not an engine of vitdeploy",
            hint="give the .engine file that `vitdeploy build-engine` wrote",
        )
    manifest = manifest_path(path)
    with reading(manifest, "engine manifest"):
        if not manifest.exists():
            raise InputError(
                f"the engine {path} has no manifest: {manifest.name} is not beside it",
                hint="copy it along with the engine, or run `vitdeploy build-engine` again",
            )
    text = read_text(manifest, what="engine manifest")
    return from_json(text, EngineManifest, origin=str(manifest))
