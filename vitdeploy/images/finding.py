"""One way to images, whatever they are kept in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vitdeploy.artifacts.files import reading
from vitdeploy.errors import InputError
from vitdeploy.images import datasets
from vitdeploy.images.class_map import with_class_map
from vitdeploy.images.folders import scan_folder
from vitdeploy.images.image_set import ImageSet, LabelOrder
from vitdeploy.images.tables import SUFFIXES as TABLES
from vitdeploy.images.tables import scan_table


def scan(
    place: Path,
    *,
    labels: Sequence[str] = (),
    class_map: Path | None = None,
    order: LabelOrder = "natural",
) -> ImageSet:
    """The images of a folder, a table of paths and labels, or a Hugging Face dataset on disk.

    A folder is flat (unlabelled, or labelled by `class_map`) or holds one
    sub-folder a class; a table is a .csv, .tsv or .txt file; a dataset is what
    `save_to_disk` wrote, or Parquet files with image bytes (unpacked once into
    the user's cache folder). With `labels` (a model's own) classes are matched
    to them, so that one missing on disk shifts nothing; without, they are
    sorted by `order` (a dataset's own order stands).

    Raises InputError for what holds no images, cannot be read, or has labels
    that are none of `labels`; MissingDependencyError for a dataset where
    pyarrow is not installed.
    """
    with reading(place, "images"):
        is_file = place.is_file()
    if class_map is not None:
        return with_class_map(scan_folder(place), class_map, labels=labels, order=order)
    if is_file and place.suffix.lower() in TABLES:
        return scan_table(place, labels=labels, order=order)
    files = datasets.files_of(place)
    if files:
        return datasets.scan_dataset(place, files, labels=labels, order=order)
    if is_file:
        raise InputError(
            f"{place} is a file that lists no images",
            hint="give a folder of images, a .csv of path,label, or a dataset's folder",
        )
    return scan_folder(place, labels=labels, order=order)
