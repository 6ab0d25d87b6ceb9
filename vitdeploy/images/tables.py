"""Tables of images: one row an image, its path and its label."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from pathlib import Path

from vitdeploy.artifacts.files import read_text, reading
from vitdeploy.artifacts.strict import printable
from vitdeploy.errors import InputError, counted
from vitdeploy.images import folders
from vitdeploy.images.image_set import ImageSet, LabelOrder, labelled

SUFFIXES = (".csv", ".tsv", ".txt")
SEPARATOR = "|"
"""Between several labels of one image."""
_PATHS = ("path", "file", "filename", "file_name", "filepath", "image", "image_path", "img")
_LABELS = ("label", "labels", "class", "class_name", "category", "target", "synset")


def scan_table(
    table: Path, *, labels: Sequence[str] = (), order: LabelOrder = "natural"
) -> ImageSet:
    """The images that a table lists, in its order; paths are relative to the table's folder.

    Columns are separated by commas, tabs or semicolons. Where the first row
    names no image it is a header: path and label are found by their usual
    names ('path', 'file_name', 'label', 'class', ...), else they are the first
    two columns. 'cat|dog' is an image with two labels, an empty label one with none.

    Raises InputError for images that are not there or listed twice, rows
    without a path, and as `labelled`.
    """
    rows = read_rows(table)
    header = rows[0] if _is_header(rows[0], table.parent) else None
    path_column, label_column = _columns(header)
    found: dict[Path, tuple[str, ...]] = {}
    missing, twice = [], []
    for row in rows[1:] if header else rows:
        entry = row[path_column].strip() if path_column < len(row) else ""
        if not entry:
            raise InputError(
                f"{table} has a row without a path: {row}", hint="fill it or remove it"
            )
        path = Path(os.path.normpath(table.parent / entry))
        twice += [entry] if path in found else []
        with reading(path, "image"):
            missing += [] if path.is_file() else [entry]
        text = row[label_column] if label_column < len(row) else ""
        own = (printable(name.strip()) for name in text.split(SEPARATOR))
        found[path] = tuple(name for name in own if name)
    for entries, what in ((missing, "of which there is no file"), (twice, "more than once")):
        if entries:
            raise InputError(
                f"{table} lists {counted(len(entries), 'image')} {what} (first: {entries[0]})",
                hint="paths are relative to the table's folder; each image counts once",
            )
    if not found:
        raise InputError(f"{table} lists no images", hint="write a row of path,label an image")
    return labelled(_common_folder(found), list(found.items()), labels, order)


def read_rows(table: Path) -> list[list[str]]:
    """The rows that are not empty. Raises InputError where there are none."""
    text = read_text(table, what="table")
    first = text.split("\n", 1)[0]
    delimiter = max(",\t;", key=first.count)
    rows = [row for row in csv.reader(io.StringIO(text), delimiter=delimiter) if any(row)]
    if not rows:
        raise InputError(f"{table} is empty", hint="write a row of path,label an image")
    return rows


def _is_header(row: Sequence[str], folder: Path) -> bool:
    """Whether no cell names an image: a header may stand above any column."""
    return not any(
        Path(cell.strip()).suffix.lower() in folders.SUFFIXES
        or (cell and (folder / cell).is_file())
        for cell in row
    )


def _columns(header: Sequence[str] | None) -> tuple[int, int]:
    """Of path and label; a label column that is not there is beyond every row."""
    if header is None:
        return 0, 1
    names = [cell.strip().lower() for cell in header]
    path = next((names.index(name) for name in _PATHS if name in names), 0)
    others = [i for i in range(len(names)) if i != path]
    fallback = others[0] if len(others) == 1 else 1 if path == 0 else 0
    return path, next((names.index(name) for name in _LABELS if name in names), fallback)


def _common_folder(paths: Sequence[Path] | dict[Path, tuple[str, ...]]) -> Path:
    """The deepest folder that holds all images: names are relative to it."""
    folders_of = {str(path.parent) for path in paths}
    return Path(os.path.commonpath(folders_of))
