"""`ImageSet`: images in a fixed order, with their labels."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vitdeploy.artifacts.strict import printable
from vitdeploy.errors import InputError

LabelOrder = Literal["natural", "string"]
"""How class names without a model's own order are numbered: 1, 2, 10 or 1, 10, 2."""


@dataclass(frozen=True)
class ImageItem:
    """One image file; `label` indexes the set's labels (None: unlabelled).

    `more` are the further labels of an image that has several.
    """

    path: Path
    label: int | None = None
    more: tuple[int, ...] = ()


@dataclass(frozen=True)
class ImageSet:
    """Images in a fixed order. `labels` is empty where the folder is flat.

    `empty_classes` are sub-folders without any image: classes that were lost, or none at all.
    """

    root: Path
    items: tuple[ImageItem, ...]
    labels: tuple[str, ...] = ()
    empty_classes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.items)

    @property
    def is_labelled(self) -> bool:
        return bool(self.labels)

    def label_indices(self) -> NDArray[np.int64]:
        """(images,) class indices. InputError unless every image has exactly one label."""
        if not self.is_labelled:
            raise InputError(
                f"{self.root} holds images without labels",
                hint="put them into one sub-folder per class, named as the model's labels",
            )
        indices = [item.label for item in self.items if item.label is not None and not item.more]
        if len(indices) < len(self.items):
            other = next(i for i in self.items if i.label is None or i.more)
            raise InputError(
                f"{len(self.items) - len(indices)} images have no label or several (first: "
                f"{other.path.name})",
                hint="a classifier is judged on one label an image; a multi-label model is "
                "described with --task multilabel",
            )
        return np.array(indices, dtype=np.int64)

    def truth(self, classes: int) -> NDArray[np.bool_]:
        """(images, classes), true where an image has the label; an image may have none.

        Raises InputError where a label is beyond the last class.
        """
        marked = np.zeros((len(self.items), classes), dtype=bool)
        for row, item in enumerate(self.items):
            own = () if item.label is None else (item.label, *item.more)
            if own and max(own) >= classes:
                raise InputError(
                    f"{item.path.name} has label {max(own)}, the model has {classes} classes",
                    hint="check that the labels are the model's own classes",
                )
            marked[row, list(own)] = True
        return marked

    def name(self, index: int) -> str:
        """The image's name in the folder, 'cat/12.png'; its path where it lies elsewhere."""
        path = self.items[index].path
        inside = path.is_relative_to(self.root)
        return printable((path.relative_to(self.root) if inside else path).as_posix())

    def take(self, indices: Sequence[int]) -> ImageSet:
        """The images at `indices`, in that order."""
        return replace(self, items=tuple(self.items[i] for i in indices))


def sorting_key(order: LabelOrder) -> Callable[[str], Any]:
    """The sort key behind an order of class names."""
    return natural_key if order == "natural" else str


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """Sort key under which '2' comes before '10', and no two names are equal ('1', '01')."""
    parts = [part for part in re.split(r"(\d+)", name) if part]
    key = [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts]
    return [*key, (-1, 0, name)]


def labelled(
    root: Path,
    names: Sequence[tuple[Path, tuple[str, ...]]],
    labels: Sequence[str],
    order: LabelOrder,
) -> ImageSet:
    """A set from images and the names of their labels, none or several each.

    With `labels` (a model's own) names are matched to them; numbers that are
    no label's name are taken as class indices. Without, the names found are
    sorted by `order`. All unlabelled images make an unlabelled set.

    Raises InputError for names that are none of `labels`, and for one class only.
    """
    found = {name for _, own in names for name in own}
    if not found:
        return ImageSet(root, tuple(ImageItem(path) for path, _ in names))
    if len(found) == 1:
        raise InputError(
            f"{root} holds one class only ({found.pop()})",
            hint="one class proves nothing about a classifier; add images of the others, or give "
            "them without labels",
        )
    known = tuple(labels) or tuple(sorted(found, key=sorting_key(order)))
    index = {name: i for i, name in enumerate(known)}
    unknown = sorted(found - index.keys(), key=natural_key)
    if unknown and all(name.isdecimal() and int(name) < len(known) for name in found):
        index, unknown = {name: int(name) for name in found}, []
    if unknown:
        raise InputError(
            f"{root} has labels that are none of the model: {listing(unknown)}",
            hint=f"write them as the model's labels, or as their numbers: {listing(known)}",
        )
    items = []
    for path, own in names:
        indices = tuple(dict.fromkeys(index[name] for name in own))
        items.append(ImageItem(path, indices[0] if indices else None, indices[1:]))
    return ImageSet(root, tuple(items), known)


def listing(names: Sequence[str], most: int = 8) -> str:
    """The first names of many."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
