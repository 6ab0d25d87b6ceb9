"""Class maps: the label of each image of a flat folder, as ImageNet's validation images need."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vitdeploy.artifacts.files import read_text
from vitdeploy.artifacts.strict import printable
from vitdeploy.errors import InputError
from vitdeploy.images.image_set import ImageSet, LabelOrder, labelled


def with_class_map(
    images: ImageSet, class_map: Path, *, labels: Sequence[str], order: LabelOrder
) -> ImageSet:
    """A flat folder's images with the labels of `class_map`.

    Raises InputError where the images have labels already, where one is not in
    the map, and as `labelled`. Entries without an image are passed over.
    """
    if images.is_labelled:
        raise InputError(
            f"{images.root} has class folders, and {class_map.name} would label its images anew",
            hint="leave --class-map out, or give the flat folder it belongs to",
        )
    known = read_class_map(class_map)
    missing = [item.path.name for item in images.items if item.path.stem not in known]
    if missing:
        raise InputError(
            f"{class_map} lacks {len(missing)} of {len(images)} images (first: {missing[0]})",
            hint="give the map that belongs to this folder",
        )
    pairs = [(item.path, (known[item.path.stem],)) for item in images.items]
    return labelled(images.root, pairs, labels, order)


def read_class_map(path: Path) -> dict[str, str]:
    """{image name without suffix: label} of a class map.

    Two forms are read: 'LOC_val_solution.csv' of ImageNet (a header
    'ImageId,PredictionString'; the label is the first word of the prediction,
    'n03995372 85 1 499 272'), and two columns of file and label, separated by
    blanks, a tab or a comma ('ILSVRC2012_val_00000001.JPEG n01751748').

    Raises InputError for rows of another form and images with two labels.
    """
    lines = [line.strip() for line in read_text(path, what="class map").splitlines()]
    lines = [line for line in lines if line]
    if lines and lines[0].lower().replace(" ", "").startswith("imageid,"):
        lines = lines[1:]
    found: dict[str, str] = {}
    for line in lines:
        words = line.replace(",", " ", 1).split()
        if len(words) < 2:
            raise InputError(
                f"{path} has a line that is no file and label: {line[:60]!r}",
                hint="write 'ILSVRC2012_val_00000001.JPEG n01751748', one image a line",
            )
        image, label = Path(words[0]).stem, printable(words[1])
        if found.setdefault(image, label) != label:
            raise InputError(
                f"{path} gives {image} two labels, {found[image]} and {label}",
                hint="a classifier is judged on one label an image",
            )
    if not found:
        raise InputError(f"{path} is empty", hint="write a file and its label, one image a line")
    return found
