"""`CalibrationSet`: which images the ranges come from."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from vitdeploy.artifacts.calibration import (
    CalibrationImage,
    CalibrationManifest,
    Finding,
    read_manifest,
    write_manifest,
)
from vitdeploy.artifacts.source import SourceDescription
from vitdeploy.calibration.drawing import Drawn, draw
from vitdeploy.calibration.findings import findings_of
from vitdeploy.errors import CalibrationError, InputError
from vitdeploy.images import ImageItem, ImageSet, image_digest
from vitdeploy.progress import SILENT, Progress

MINIMUM = 16
"""Fewer images give ranges that depend on which ones were drawn."""


@dataclass(frozen=True)
class CalibrationSet:
    """Distinct images with the digests of their bytes, drawn with a seed.

    `asked` is how many were to be drawn; `findings` is what the examination
    said of them and of those that were passed over. `drawn_from` is all that
    they were drawn from, where that is known (no manifest holds it).
    """

    images: ImageSet
    digests: tuple[str, ...]
    seed: int
    asked: int = 0
    findings: tuple[Finding, ...] = ()
    drawn_from: ImageSet | None = field(default=None, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.images)

    @property
    def digest(self) -> str:
        """sha256 over the images' digests, whatever their order."""
        return hashlib.sha256("".join(sorted(self.digests)).encode()).hexdigest()

    def counts(self) -> dict[str, int]:
        """How many images of each class; empty where there are no labels."""
        drawn = Counter(item.label for item in self.images.items)
        return {label: drawn[i] for i, label in enumerate(self.images.labels) if drawn[i]}

    def require_unchanged(self) -> None:
        """Raise CalibrationError unless every file still holds the bytes that were drawn."""
        changed = []
        for index, digest in enumerate(self.digests):
            path = self.images.items[index].path
            try:
                if image_digest(path) != digest:
                    changed.append(f"{self.images.name(index)} has changed")
            except InputError:
                # Named with the others; what is wrong with one hides none of them.
                state = "cannot be read" if path.exists() else "is missing"
                changed.append(f"{self.images.name(index)} {state}")
        if changed:
            raise CalibrationError(
                f"{len(changed)} of {len(self)} calibration images in {self.images.root} are not "
                f"those that were drawn: {_listing(changed)}",
                hint="put them back, or draw again: "
                f"vitdeploy calibrate {self.images.root} --seed {self.seed}",
            )


def choose(
    images: ImageSet,
    *,
    count: int = 512,
    seed: int = 0,
    source: SourceDescription | None = None,
    evaluation: ImageSet | None = None,
    progress: Progress = SILENT,
) -> CalibrationSet:
    """Draw `count` distinct readable images, balanced over the classes where there are labels.

    Copies of an image (same bytes) count once. An image that cannot be read is
    passed over and listed among the findings; the next of its class is drawn
    instead. Only as many files are read as it takes. Fewer are returned where
    the folder holds fewer. With `source` the classes are compared with the
    model's own, with `evaluation` the images with those of the evaluation.

    Raises InputError where `count` is below `MINIMUM`; CalibrationError where
    fewer than that are distinct and readable, where all show the same picture,
    and where one is among the evaluation images too.
    """
    if count < MINIMUM:
        raise InputError(
            f"{count} calibration images are too few", hint=f"give at least {MINIMUM}; 128 is good"
        )
    drawn = draw(images, count, seed, progress=progress)
    _require_enough(images, drawn)
    digests = tuple(picture.digest for picture in drawn.chosen.values())
    chosen = CalibrationSet(
        images.take(list(drawn.chosen)), digests, seed, count, drawn_from=images
    )
    if evaluation is not None:
        require_unseen(chosen, evaluation)
    return replace(chosen, findings=findings_of(images, drawn, count, source))


def require_unseen(calibration: CalibrationSet, evaluation: ImageSet) -> None:
    """Raise CalibrationError where an image is in both sets, by the bytes of the files.

    Of the evaluation images only those are read that are as long as a calibration image.
    """
    own = {digest: index for index, digest in enumerate(calibration.digests)}
    sizes = {_size(item.path) for item in calibration.images.items} - {None}
    shared = []
    for index, item in enumerate(evaluation.items):
        twin = own.get(image_digest(item.path)) if _size(item.path) in sizes else None
        if twin is not None:
            own_name, name = calibration.images.name(twin), evaluation.name(index)
            shared.append(own_name if own_name == name else f"{own_name} (there {name})")
    if shared:
        raise CalibrationError(
            f"{len(shared)} calibration images of {calibration.images.root} are among the "
            f"evaluation images of {evaluation.root}: {_listing(shared)}",
            hint="an engine must be judged on images it has not seen: take them out of one of the "
            "two folders, or calibrate with training images",
        )


def save_calibration_set(calibration: CalibrationSet, path: Path) -> None:
    """Write the set's manifest. Raises as `vitdeploy.artifacts.calibration.write_manifest`."""
    images = calibration.images
    root = images.root
    if not (root.is_absolute() or path.is_absolute()):
        root = Path(os.path.relpath(root, path.parent))
    manifest = CalibrationManifest(
        folder=root.as_posix(),
        images=tuple(
            CalibrationImage(
                item.path.relative_to(images.root).as_posix(),
                digest,
                None if item.label is None else images.labels[item.label],
            )
            for item, digest in zip(images.items, calibration.digests, strict=True)
        ),
        labels=images.labels,
        seed=calibration.seed,
        asked=calibration.asked,
        counts=calibration.counts(),
        findings=calibration.findings,
    )
    write_manifest(manifest, path)


def load_calibration_set(path: Path) -> CalibrationSet:
    """The set of a manifest, every image with the bytes that were drawn.

    Raises InputError where the manifest cannot be read, CalibrationError where
    an image is missing, has changed, or too few stand there.
    """
    manifest = read_manifest(path)
    root = path.parent / manifest.folder
    index = {label: i for i, label in enumerate(manifest.labels)}
    items = tuple(
        ImageItem(root / image.name, None if image.label is None else index[image.label])
        for image in manifest.images
    )
    loaded = CalibrationSet(
        ImageSet(root, items, manifest.labels),
        tuple(image.digest for image in manifest.images),
        manifest.seed,
        manifest.asked,
        manifest.findings,
    )
    if len(loaded) < MINIMUM:
        raise CalibrationError(
            f"{path} holds {len(loaded)} images, too few to calibrate with",
            hint=f"draw at least {MINIMUM}; 128 is a good number",
        )
    loaded.require_unchanged()
    return loaded


def _require_enough(images: ImageSet, drawn: Drawn) -> None:
    found = len(drawn.chosen)
    passed = []
    if drawn.broken:
        names = _listing([images.name(index) for index in drawn.broken], 3)
        passed.append(f"{len(drawn.broken)} cannot be read ({names})")
    if drawn.copies:
        passed.append(f"{len(drawn.copies)} are copies of others")
    if found < MINIMUM:
        more = f"; {' and '.join(passed)}" if passed else ""
        raise CalibrationError(
            f"{images.root} holds {found} distinct images, too few to calibrate with{more}",
            hint=f"give a folder with at least {MINIMUM}; 128 is a good number",
        )
    if len({picture.pixels_digest for picture in drawn.chosen.values()}) == 1:
        raise CalibrationError(
            f"all {found} images drawn from {images.root} show the same picture",
            hint="give images as different as those the model will see",
        )


def _size(path: Path) -> int | None:
    """Bytes; None where the file cannot be looked at, as nothing was drawn from it."""
    try:
        return path.stat().st_size
    except OSError:
        return None


def _listing(names: Sequence[str], most: int = 5) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
