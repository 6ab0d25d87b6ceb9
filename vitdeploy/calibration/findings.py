"""What a draw of calibration images says about them, in words."""

from __future__ import annotations

from collections.abc import Sequence

from vitdeploy.artifacts.calibration import Finding
from vitdeploy.artifacts.source import SourceDescription
from vitdeploy.calibration.drawing import Drawn
from vitdeploy.calibration.examination import near_duplicates, trait_findings
from vitdeploy.images import ImageSet

_GOOD = 128
"""Images from which ranges hardly depend on which ones were drawn."""


def findings_of(
    images: ImageSet, drawn: Drawn, asked: int, source: SourceDescription | None
) -> tuple[Finding, ...]:
    """All that is worth knowing and stops nothing, the gravest first."""
    names = {index: images.name(index) for index in (*drawn.chosen, *drawn.broken, *drawn.copies)}
    pictures = {names[index]: picture for index, picture in drawn.chosen.items()}
    return (
        *_passed_over(drawn, names),
        *_too_few(len(drawn.chosen), asked),
        *_classes(images, drawn, source),
        *_alike(drawn, names),
        *trait_findings(pictures, channels=3 if source is None else source.in_chans),
    )


def _passed_over(drawn: Drawn, names: dict[int, str]) -> list[Finding]:
    reasons = {
        kind: {names[i]: broken.reason for i, broken in drawn.broken.items() if broken.kind == kind}
        for kind in ("unreadable", "truncated")
    }
    copies = {names[copy]: f"as {names[first]}" for copy, first in drawn.copies.items()}
    drawn_instead = "passed over; another of the class is drawn where there is one"
    found = [
        Finding("unreadable", reasons["unreadable"], drawn_instead, "repair or remove them"),
        Finding(
            "truncated",
            reasons["truncated"],
            f"cut short or damaged within the pixels: {drawn_instead}",
            "copy them again or remove them",
        ),
        Finding("exact_duplicates", copies, "passed over: the same bytes count once", "none"),
    ]
    return [finding for finding in found if finding.about]


def _too_few(chosen: int, asked: int) -> list[Finding]:
    if chosen >= asked:
        return []
    meaning = f"the folder gives {chosen} of the {asked} images asked for"
    enough = "none, if they are as varied as what the model will see"
    return [Finding("too_few", {}, meaning, enough if chosen >= _GOOD else f"give {_GOOD} or more")]


def _alike(drawn: Drawn, names: dict[int, str]) -> list[Finding]:
    indices = list(drawn.chosen)
    near = near_duplicates([picture.thumbnail for picture in drawn.chosen.values()])
    if not near:
        return []
    about = {names[indices[copy]]: f"like {names[indices[first]]}" for copy, first in near.items()}
    meaning = (
        f"used; {len(indices)} images show about {len(indices) - len(near)} different pictures"
    )
    remedy = "give more varied images; of a video, frames that lie seconds apart"
    return [Finding("near_duplicates", about, meaning, remedy)]


def _classes(images: ImageSet, drawn: Drawn, source: SourceDescription | None) -> list[Finding]:
    """Classes of which the folder has no image, and classes of which none was drawn."""
    if not images.is_labelled:
        return []
    labels = [images.labels[item.label] for item in images.items if item.label is not None]
    held = tuple(dict.fromkeys(labels))
    found = _missing(images, held, () if source is None else source.labels)
    drawn_labels = {images.items[index].label for index in drawn.chosen}
    present = {images.labels.index(name): name for name in held}
    left = [name for label, name in present.items() if label not in drawn_labels]
    if left:
        meaning = f"{len(drawn.chosen)} images for {len(held)} classes leave these without one"
        remedy = f"draw {len(held)} or more with --count"
        found.append(Finding("classes_not_drawn", _named(left), meaning, remedy))
    return found


def _missing(images: ImageSet, held: Sequence[str], wanted: Sequence[str]) -> list[Finding]:
    known = set(wanted)
    unknown = [name for name in held if wanted and name not in known]
    if wanted and len(unknown) == len(held):
        numbered = tuple(wanted) == tuple(map(str, range(len(wanted))))
        if numbered and len(held) == len(wanted):
            return []
        meaning = f"none of {len(held)} class folders is named as one of {len(wanted)} labels"
        remedy = "name the folders as the model's labels, so that they can be compared"
        return [Finding("missing_classes", {}, meaning, remedy)]
    found = []
    missing = [name for name in wanted or images.empty_classes if name not in held]
    if missing:
        meaning = "no image of these classes is in the folder"
        remedy = "add some: what only they show may lie outside the ranges"
        found.append(Finding("missing_classes", _named(missing), meaning, remedy))
    if unknown:
        meaning = "used, though no label of the model is named so"
        renamed = "name the folders as the labels, or take out what the model does not know"
        found.append(Finding("unknown_classes", _named(unknown), meaning, renamed))
    return found


def _named(classes: Sequence[str]) -> dict[str, str]:
    return dict.fromkeys(classes, "")
