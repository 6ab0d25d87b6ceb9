"""Hugging Face datasets on disk: what `save_to_disk` wrote, or Parquet files with image bytes.

Their images are unpacked once into the user's cache folder, so that everything
that reads image files reads these too: digests, thumbnails, calibration.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitdeploy import environment
from vitdeploy.artifacts.files import file_digest, reading
from vitdeploy.artifacts.strict import printable
from vitdeploy.errors import InputError, MissingDependencyError, OutputError
from vitdeploy.images.image_set import ImageSet, LabelOrder, labelled

_MAGIC = {b"\x89PNG": ".png", b"\xff\xd8\xff": ".jpg", b"RIFF": ".webp", b"GIF8": ".gif",
          b"BM": ".bmp", b"II*\0": ".tif", b"MM\0*": ".tif"}  # fmt: skip
_DONE = "complete.json"
_TO_CACHE = "free some space, or set XDG_CACHE_HOME to a folder you may write to"


@dataclass(frozen=True)
class _Columns:
    """Which columns hold image and label, and the names of a class label's numbers."""

    image: str
    label: str | None
    names: tuple[str, ...]


def files_of(place: Path) -> tuple[Path, ...]:
    """The Arrow or Parquet files of a dataset; nothing where `place` is none.

    Raises InputError for a dictionary of splits: one of them must be named.
    """
    with reading(place, "dataset"):
        if place.is_file():
            return (place,) if place.suffix in (".parquet", ".arrow") else ()
        if not place.is_dir():
            return ()
        if (place / "dataset_dict.json").is_file():
            splits = sorted(p.name for p in place.iterdir() if (p / "state.json").is_file())
            raise InputError(
                f"{place} holds several splits: {', '.join(splits)}",
                hint=f"name one of them, as in {place / splits[-1] if splits else place}",
            )
        if (place / "state.json").is_file():
            state = json.loads((place / "state.json").read_text(encoding="utf-8"))
            named = [entry["filename"] for entry in state.get("_data_files", [])]
            return tuple(place / name for name in named) or tuple(sorted(place.glob("*.arrow")))
        return tuple(sorted(place.glob("*.parquet")) or sorted(place.glob("data/*.parquet")))


def scan_dataset(
    place: Path, files: Sequence[Path], *, labels: Sequence[str], order: LabelOrder
) -> ImageSet:
    """The images of a dataset, unpacked, with the labels of its own class names.

    Without `labels` a dataset's class names keep their own order. Raises
    MissingDependencyError without pyarrow, InputError where there is no column
    of images, and as `labelled`.
    """
    with _pyarrow(place):
        columns = _columns(_schema(files[0]), place)
        rows, names = _unpacked(files, columns)
    known = tuple(labels) or names
    return labelled(rows[0][0].parent, rows, known, order)


def _unpacked(
    files: Sequence[Path], columns: _Columns
) -> tuple[list[tuple[Path, tuple[str, ...]]], tuple[str, ...]]:
    digest = hashlib.sha256("".join(map(file_digest, files)).encode())
    digest.update(repr(columns).encode())
    folder = environment.cache_folder() / f"dataset-{digest.hexdigest()[:16]}"
    if not (folder / _DONE).is_file():
        _unpack(files, columns, folder)
    found = json.loads((folder / _DONE).read_text(encoding="utf-8"))
    rows = [(folder / "images" / name, tuple(own)) for name, own in found]
    return rows, columns.names


def _unpack(files: Sequence[Path], columns: _Columns, folder: Path) -> None:
    """Renamed when whole, so that a half unpacked dataset is never taken for one."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            whole = Path(temporary) / "whole"
            (whole / "images").mkdir(parents=True)
            found = []
            for number, (content, label) in enumerate(_rows(files, columns)):
                name = f"{number:08d}{_suffix(content)}"
                (whole / "images" / name).write_bytes(content)
                found.append((name, label))
            if not found:
                raise InputError(f"{files[0]} holds no rows", hint="give another split")
            (whole / _DONE).write_text(json.dumps(found), encoding="utf-8")
            if not (folder / _DONE).is_file():  # another process may have been faster
                shutil.rmtree(folder, ignore_errors=True)
                whole.rename(folder)
    except OSError as error:
        raise OutputError(
            f"cannot unpack images into {folder}: {error.strerror or error}", hint=_TO_CACHE
        ) from error


def _suffix(content: bytes) -> str:
    return next((suffix for magic, suffix in _MAGIC.items() if content.startswith(magic)), ".png")


def _rows(files: Sequence[Path], columns: _Columns) -> Iterator[tuple[bytes, list[str]]]:
    for path in files:
        for batch in _batches(path):
            values = batch.column(columns.image).to_pylist()
            given = (
                batch.column(columns.label).to_pylist() if columns.label else [None] * len(values)
            )
            for image, label in zip(values, given, strict=True):
                yield _content(image, path), _names(label, columns.names)


def _content(image: Any, origin: Path) -> bytes:
    """The bytes of an image; what it is without any is an unreadable image, never another."""
    if isinstance(image, bytes):
        return image
    entry = image or {}
    if entry.get("bytes"):
        return entry["bytes"]
    beside = origin.parent / str(entry.get("path"))
    return beside.read_bytes() if entry.get("path") and beside.is_file() else b""


def _names(label: Any, names: tuple[str, ...]) -> list[str]:
    if label is None or label == -1:  # datasets write -1 where a test split has no labels
        return []
    each = label if isinstance(label, list) else [label]
    return [names[one] if names and isinstance(one, int) else printable(str(one)) for one in each]


def _columns(schema: Any, place: Path) -> _Columns:
    """By the features that `datasets` wrote into the schema, else by types and usual names."""
    metadata = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    features = metadata.get("info", {}).get("features", {})
    images = [name for name, kind in features.items() if _type(kind) == "Image"]
    images += [name for name in ("image", "img", "bytes") if name in schema.names]
    if not images:
        raise InputError(
            f"{place} has no column of images, only {', '.join(schema.names)}",
            hint="cast the column with datasets.Image() and save it again",
        )
    classes = [name for name, kind in features.items() if _class_names(kind)]
    usual = [n for n in ("label", "labels", "fine_label", "class", "target") if n in schema.names]
    label = next((name for name in usual if name in classes), next(iter([*classes, *usual]), None))
    names = _class_names(features.get(label)) if label else ()
    return _Columns(images[0], label, tuple(map(printable, names)))


def _type(feature: Any) -> str:
    return str(feature.get("_type", "")) if isinstance(feature, dict) else ""


def _class_names(feature: Any) -> tuple[str, ...]:
    """Of a ClassLabel, or of a list of them."""
    if isinstance(feature, list):
        return _class_names(feature[0]) if feature else ()
    if _type(feature) == "ClassLabel":
        return tuple(feature.get("names") or ())
    inner = feature.get("feature") if isinstance(feature, dict) else None
    return _class_names(inner) if inner else ()


def _schema(path: Path) -> Any:
    if path.suffix == ".parquet":
        import pyarrow.parquet as parquet

        return parquet.read_schema(path)
    with _arrow_reader(path) as reader:
        return reader.schema


def _batches(path: Path) -> Iterator[Any]:
    if path.suffix == ".parquet":
        import pyarrow.parquet as parquet

        with parquet.ParquetFile(path) as file:
            yield from file.iter_batches(batch_size=64)
        return
    with _arrow_reader(path) as reader:
        yield from reader


@contextmanager
def _arrow_reader(path: Path) -> Iterator[Any]:
    """`save_to_disk` writes Arrow streams."""
    import pyarrow

    with pyarrow.memory_map(str(path)) as source, pyarrow.ipc.open_stream(source) as reader:
        yield reader


@contextmanager
def _pyarrow(place: Path) -> Iterator[None]:
    """Turn what pyarrow says, or that it is not here, into errors with a remedy."""
    try:
        import pyarrow
    except ImportError as error:
        raise MissingDependencyError(
            f"{place} is a dataset in Arrow or Parquet files, and pyarrow is not installed",
            hint="pip install 'vitdeploy[data]'",
        ) from error
    try:
        yield
    except pyarrow.ArrowException as error:
        raise InputError(
            f"{place} cannot be read as a dataset: {str(error).splitlines()[0]}",
            hint="save it again with datasets' save_to_disk, or to_parquet",
        ) from error
