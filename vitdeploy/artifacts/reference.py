"""`ReferenceOutputs`: the source's logits, so that a device without PyTorch can compare."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitdeploy.artifacts.files import (
    atomic_path,
    from_json,
    reading,
    require_file,
    require_writable,
    to_json,
)
from vitdeploy.artifacts.onnx_model import Output
from vitdeploy.errors import InputError, counted

SCHEMA_VERSION = 1
_ANOTHER_FILE = "give a file you may write with --save-reference"
_DAMAGED = (
    ValueError, LookupError, TypeError, OSError, EOFError, RuntimeError, MemoryError,
    OverflowError, SyntaxError, struct.error, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""What zipfile and numpy raise for files that are no .npz, or a damaged or encrypted one."""


@dataclass(frozen=True)
class ReferenceOutputs:
    """What the source answered at one resolution, image by image.

    `logits` is (images, numbers) float32, in the order of `image_digests`:
    classes, or whatever `output` the source was asked for, in one row an image.
    """

    logits: NDArray[np.float32]
    image_digests: tuple[str, ...]
    weights_digest: str
    preprocessing_digest: str
    resolution: tuple[int, int]
    output: Output = "logits"

    def for_images(self, digests: Sequence[str]) -> NDArray[np.float32]:
        """The logits of these images, in this order. Raises InputError where one is missing."""
        rows = {digest: row for row, digest in enumerate(self.image_digests)}
        missing = [digest for digest in digests if digest not in rows]
        if missing:
            raise InputError(
                f"the reference outputs lack {len(missing)} of {counted(len(digests), 'image')}",
                hint="they were made from other images; make them again with "
                "`vitdeploy evaluate --save-reference`",
            )
        return self.logits[[rows[digest] for digest in digests]]

    def require_source(
        self,
        weights_digest: str,
        preprocessing_digest: str,
        resolution: tuple[int, int],
        output: Output = "logits",
    ) -> None:
        """Raise InputError unless the outputs are of this source, preprocessed this way."""
        own = (self.weights_digest, self.preprocessing_digest, self.resolution, self.output)
        asked = (weights_digest, preprocessing_digest, resolution, output)
        names = ("weights", "preprocessing", "resolution", "output")
        different = [n for n, a, b in zip(names, own, asked, strict=True) if a != b]
        if different:
            raise InputError(
                f"the reference outputs were made with other {' and '.join(different)}",
                hint="make them again with `vitdeploy evaluate --save-reference`",
            )


@dataclass(frozen=True)
class _Header:
    image_digests: tuple[str, ...]
    weights_digest: str
    preprocessing_digest: str
    resolution: tuple[int, int]
    output: Output = "logits"
    schema_version: int = SCHEMA_VERSION


def require_destination(path: Path) -> None:
    """Raise InputError unless `path` may be written: an .npz file, new or of reference outputs.

    OutputError where its folder cannot be written. Nothing else is ever replaced.
    """
    if path.suffix != ".npz":
        raise InputError(f"{path} is no .npz file", hint="give a name that ends in .npz")
    with reading(path, "reference file"):
        there = path.exists() or path.is_symlink()
    if there:
        try:
            load(path)
        except InputError as error:
            raise InputError(
                f"{path} holds something else and is not replaced",
                hint="give another name with --save-reference, or delete it first",
            ) from error
    require_writable(path, remedy=_ANOTHER_FILE)


def save(outputs: ReferenceOutputs, path: Path) -> None:
    """Write an .npz file, whole or not at all. Raises as `require_destination`."""
    require_destination(path)
    header = _Header(
        outputs.image_digests,
        outputs.weights_digest,
        outputs.preprocessing_digest,
        outputs.resolution,
        outputs.output,
    )
    with atomic_path(path, remedy=_ANOTHER_FILE) as temporary, temporary.open("wb") as stream:
        np.savez_compressed(stream, logits=outputs.logits, header=np.array(to_json(header)))


def load(path: Path) -> ReferenceOutputs:
    """Read reference outputs. Raises InputError for anything that is not such a file."""
    require_file(path, what="reference file")
    with reading(path, "reference file"):
        path.open("rb").close()
    try:
        with zipfile.ZipFile(path), np.load(path, allow_pickle=False) as content:
            text, logits = str(content["header"]), content["logits"]
    except _DAMAGED as error:
        raise InputError(
            f"{path} does not hold reference outputs",
            hint="make it with `vitdeploy evaluate --save-reference`",
        ) from error
    header = from_json(text, _Header, origin=str(path))
    rows, kind = len(header.image_digests), logits.dtype
    if logits.ndim != 2 or len(logits) != rows or logits.shape[1] == 0 or kind != np.float32:
        raise InputError(
            f"{path} is inconsistent: logits {logits.shape} {kind} for {rows} images",
            hint="make it again with `vitdeploy evaluate --save-reference`",
        )
    return ReferenceOutputs(
        logits,
        header.image_digests,
        header.weights_digest,
        header.preprocessing_digest,
        header.resolution,
        header.output,
    )
