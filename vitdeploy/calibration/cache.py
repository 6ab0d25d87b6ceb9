"""A store of statistics, so that the same graph is not run over the same images twice.

An entry is found by everything that decides it and by nothing else: no path,
no date. A stale one therefore cannot be found. An entry that is damaged, cut
short or not ours is a miss, and the statistics are gathered again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import struct
import time
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import PIL
from numpy.typing import NDArray

from vitdeploy.artifacts.files import atomic_path
from vitdeploy.artifacts.onnx_model import OnnxModel
from vitdeploy.calibration.image_set import CalibrationSet
from vitdeploy.errors import CalibrationError, OutputError

SCHEMA_VERSION = 1
"""Of the file, and of what the statistics in it mean: raised whenever their code changes that."""

KEPT = 32
"""Entries; what was written longest ago makes way."""

_HEADER = "header"
_KINDS = "fiub"
_ABANDONED_S = 86_400
"""After a day, what a killed process was writing is nobody's any more."""

_DAMAGED = (
    ValueError, LookupError, TypeError, OSError, EOFError, RuntimeError, MemoryError,
    OverflowError, SyntaxError, struct.error, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""What zipfile and numpy raise for files that are no .npz, or a damaged or encrypted one."""

_log = logging.getLogger(__name__)

Parameter = str | int | float | bool | None


@dataclass(frozen=True)
class CacheKey:
    """Everything that decides statistics.

    `graph_digest` covers the weights wherever they stand, `images_digest` the
    bytes of the images in any order; `method` names what is gathered, and
    `parameters` are its settings, by name. `decoder` is Pillow's version: its
    decoders and filters decide the pixels.
    """

    graph_digest: str
    preprocessing_digest: str
    images_digest: str
    resolution: tuple[int, int]
    method: str
    parameters: tuple[tuple[str, Parameter | tuple[Parameter, ...]], ...] = ()
    decoder: str = PIL.__version__
    schema_version: int = SCHEMA_VERSION

    @property
    def text(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def cache_key(
    model: OnnxModel,
    calibration: CalibrationSet,
    method: str,
    parameters: Mapping[str, Parameter | tuple[Parameter, ...]] | None = None,
) -> CacheKey:
    """The key of what `method` gathers from `model` on these images.

    A parameter that decides the outcome and is left out makes a stale entry
    possible: name them all (bins, tensors, tokens, the runtime's version). The
    images are known by the bytes that were drawn: let `CalibrationSet.require_unchanged`
    pass between the last batch and `put`.
    """
    return CacheKey(
        graph_digest=model.digest,
        preprocessing_digest=model.description.source.preprocessing.digest,
        images_digest=calibration.digest,
        resolution=model.description.resolution,
        method=method,
        parameters=tuple(sorted((parameters or {}).items())),
    )


class StatisticsCache:
    """Named arrays of numbers in a folder, one .npz file a key."""

    def __init__(self, folder: Path, *, kept: int = KEPT) -> None:
        self._folder = folder
        self._kept = kept

    def path(self, key: CacheKey) -> Path:
        return self._folder / f"statistics-{key.digest[:32]}.npz"

    def get(self, key: CacheKey) -> dict[str, NDArray] | None:
        """What was put under this very key, every array with its own bytes; None where there
        is nothing of the kind. Of a file that is there and cannot be used the log hears."""
        path = self.path(key)
        try:
            text, arrays = _read(path)
        except FileNotFoundError:
            return None
        except _DAMAGED as error:
            _log.warning("%s is damaged and not used: %s", path, error or type(error).__name__)
            return None
        if text != _header(key, arrays):
            _log.warning("%s does not hold what it should and is not used", path)
            return None
        return arrays

    def put(self, key: CacheKey, arrays: Mapping[str, NDArray]) -> bool:
        """Keep `arrays`, whole or not at all; False where the folder takes no more.

        Raises CalibrationError for arrays that are not numbers or not finite:
        what is wrong once must not be found again.
        """
        for name, array in arrays.items():
            if array.dtype.kind not in _KINDS or not np.isfinite(array).all():
                raise CalibrationError(
                    f"statistics {name!r} are not finite numbers",
                    hint="the model or an image gives values that are not finite; check both",
                )
        # Numbered: a tensor may be called what numpy takes for an option, or no file can be.
        content: dict[str, Any] = {f"array_{i}": array for i, array in enumerate(arrays.values())}
        content[_HEADER] = np.array(_header(key, arrays))
        path = self.path(key)
        try:
            with atomic_path(path) as temporary, temporary.open("wb") as stream:
                np.savez_compressed(stream, **content)
        except OutputError as error:
            _log.warning("statistics are not kept: %s", error)
            return False
        self._make_room()
        return True

    def _make_room(self) -> None:
        """Remove the oldest entries above the number kept, and what was never finished."""
        entries = _dated(self._folder.glob("statistics-*.npz"))
        unfinished = _dated(self._folder.glob(".statistics-*.partial.npz"))
        long_ago = time.time() - _ABANDONED_S
        abandoned = [entry for entry in unfinished if entry[0] < long_ago]
        for _, path in (*entries[: -self._kept], *abandoned):
            path.unlink(missing_ok=True)


def _dated(paths: Iterable[Path]) -> list[tuple[float, Path]]:
    """Files with the second they were written in, the oldest first."""
    found: list[tuple[float, Path]] = []
    for path in paths:
        with suppress(FileNotFoundError):  # another process made room at the same time
            found.append((path.stat().st_mtime, path))
    return sorted(found)


def _read(path: Path) -> tuple[str, dict[str, NDArray]]:
    """Header and arrays as they stand in the file, unjudged."""
    with path.open("rb") as stream, zipfile.ZipFile(stream):
        stream.seek(0)
        with np.load(stream, allow_pickle=False) as content:
            text = str(content[_HEADER])
            names = json.loads(text)["names"]
            return text, {name: content[f"array_{i}"] for i, name in enumerate(names)}


def _header(key: CacheKey, arrays: Mapping[str, NDArray]) -> str:
    return json.dumps({"key": key.text, "names": list(arrays), "content": _digest_of(arrays)})


def _digest_of(arrays: Mapping[str, NDArray]) -> str:
    """sha256 over names, types, shapes and values, in any order."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(repr((name, array.dtype.str, array.shape)).encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
