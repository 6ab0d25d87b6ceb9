"""`CalibrationSet`: which images the ranges come from."""

from __future__ import annotations

import hashlib
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from vitdeploy.errors import CalibrationError, InputError
from vitdeploy.images import ImageSet, image_digest

MINIMUM = 16
"""Fewer images give ranges that depend on which ones were drawn."""


@dataclass(frozen=True)
class CalibrationSet:
    """Distinct images with the digests of their bytes, drawn with a seed."""

    images: ImageSet
    digests: tuple[str, ...]
    seed: int

    def __len__(self) -> int:
        return len(self.images)

    @property
    def digest(self) -> str:
        """sha256 over the images' digests, whatever their order."""
        return hashlib.sha256("".join(sorted(self.digests)).encode()).hexdigest()


def choose(images: ImageSet, *, count: int = 512, seed: int = 0) -> CalibrationSet:
    """Draw `count` distinct images, balanced over the classes where there are labels.

    Copies of an image (same bytes) count once. Fewer are returned where the
    folder holds fewer. Raises CalibrationError below `MINIMUM`.
    """
    if count < MINIMUM:
        raise InputError(
            f"{count} calibration images are too few", hint=f"give at least {MINIMUM}; 128 is good"
        )
    order = _balanced_order(images, random.Random(seed))
    chosen: dict[str, int] = {}
    for index in order:
        if len(chosen) == count:
            break
        chosen.setdefault(image_digest(images.items[index].path), index)
    if len(chosen) < MINIMUM:
        raise CalibrationError(
            f"{images.root} holds {len(chosen)} distinct images, too few to calibrate with",
            hint=f"give a folder with at least {MINIMUM}; 128 is a good number",
        )
    return CalibrationSet(images.take(list(chosen.values())), tuple(chosen), seed)


def _balanced_order(images: ImageSet, generator: random.Random) -> list[int]:
    """All indices, shuffled, taking one of each class in turn."""
    by_class: defaultdict[int | None, list[int]] = defaultdict(list)
    for index, item in enumerate(images.items):
        by_class[item.label].append(index)
    for members in by_class.values():
        generator.shuffle(members)
    order: list[int] = []
    for turn in range(max(map(len, by_class.values()), default=0)):
        order.extend(members[turn] for members in by_class.values() if turn < len(members))
    return order
