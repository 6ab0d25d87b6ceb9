"""Fashion-MNIST as image folders: the four idx files become ordinary PNG files.

Data: Zalando SE, MIT licence (Xiao, Rasul, Vollgraf 2017, arXiv:1708.07747);
Debian's package dataset-fashion-mnist brings the files.
"""

from __future__ import annotations

import gzip
import os
import shutil
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitdeploy.artifacts.files import reading
from vitdeploy.errors import InputError, OutputError
from vitdeploy.progress import SILENT, Progress

DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")
LABELS = (
    "t-shirt", "trouser", "pullover", "dress", "coat",
    "sandal", "shirt", "sneaker", "bag", "ankle-boot",
)  # fmt: skip
_PREFIXES = {"train": "train", "test": "t10k"}


def unpack(idx_folder: Path, destination: Path, *, progress: Progress = SILENT) -> Path:
    """Write `destination`/{train,test}/<label>/<index>.png, 60,000 and 10,000 images.

    A finished folder is left as it is; an unfinished one, and one that lost or
    gained images since, is written again. Raises InputError where an idx file
    is missing or broken, OutputError where `destination` cannot be written.
    """
    for split in _PREFIXES:
        try:
            if not _is_whole(destination, split):
                _unpack_split(idx_folder, destination, split, progress)
        except OSError as error:
            raise OutputError(
                f"the images cannot be unpacked to {destination}: {error.strerror or error}",
                hint="free some space, or set XDG_CACHE_HOME to a folder you may write to",
            ) from error
    return destination


def _is_whole(destination: Path, split: str) -> bool:
    """Whether as many images lie there as were written to the end."""
    done = destination / f".{split}.complete"
    if not done.is_file():
        return False
    count = sum(len(names) for _, _, names in os.walk(destination / split))
    return done.read_text(encoding="utf-8") == str(count)


def _unpack_split(idx_folder: Path, destination: Path, split: str, progress: Progress) -> None:
    pixels, labels = read_split(idx_folder, split)
    shutil.rmtree(destination / split, ignore_errors=True)
    for label in LABELS:
        (destination / split / label).mkdir(parents=True)
    with progress.task(f"unpacking {split}", len(labels)) as task:
        for index, (image, label) in enumerate(zip(pixels, labels, strict=True)):
            path = destination / split / LABELS[label] / f"{index:05d}.png"
            Image.fromarray(image).save(path)
            task.advance()
    # Last, and with the number, so that an interrupted or damaged folder is noticed.
    (destination / f".{split}.complete").write_text(str(len(labels)), encoding="utf-8")


def read_split(idx_folder: Path, split: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """(images, 28, 28) pixels and (images,) class indices of 'train' or 'test'."""
    prefix = _PREFIXES[split]
    pixels = _read_idx(idx_folder / f"{prefix}-images-idx3-ubyte.gz", dimensions=3)
    labels = _read_idx(idx_folder / f"{prefix}-labels-idx1-ubyte.gz", dimensions=1)
    if len(pixels) != len(labels) or labels.max(initial=0) >= len(LABELS):
        raise InputError(
            f"images and labels of {split} in {idx_folder} do not belong together",
            hint="install the data again",
        )
    return pixels, labels


def _read_idx(path: Path, *, dimensions: int) -> NDArray[np.uint8]:
    if not path.is_file():
        raise InputError(
            f"{path} does not exist",
            hint="apt-get install dataset-fashion-mnist, or give the folder of the four idx files",
        )
    with reading(path, "idx file"):
        compressed = path.read_bytes()
    try:
        content = gzip.decompress(compressed)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} is not a gzip file", hint="install the data again") from error
    header = 4 + 4 * dimensions
    if len(content) < header or content[:4] != bytes((0, 0, 8, dimensions)):
        raise InputError(f"{path} is not an idx file of bytes", hint="install the data again")
    shape = struct.unpack(f">{dimensions}I", content[4:header])
    values = np.frombuffer(content, dtype=np.uint8, offset=header)
    if values.size != int(np.prod(shape)):
        raise InputError(f"{path} is cut short", hint="install the data again")
    return values.reshape(shape)
