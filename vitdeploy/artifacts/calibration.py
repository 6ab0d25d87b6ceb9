"""`CalibrationManifest`: which images ranges come from, and what was found in them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal

from vitdeploy.artifacts.files import from_json, read_text, reading, to_json, write_text
from vitdeploy.artifacts.strict import printable
from vitdeploy.errors import InputError

SCHEMA_VERSION = 1
ANOTHER_FILE = "give a file you may write to with -o"
_AGAIN = "draw the set again with `vitdeploy calibrate FOLDER`"

FindingKind = Literal[
    "unreadable", "truncated", "exact_duplicates", "near_duplicates", "too_few",
    "missing_classes", "unknown_classes", "classes_not_drawn",
    "exif_rotated", "cmyk", "16_bit", "palette", "alpha", "grayscale",
]  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """One thing to know about a calibration set.

    `about` holds what it is about: images by their names in the folder (classes, where it speaks
    of classes), each with its own detail: the reason, the original, the orientation. Images that
    are `unreadable`, `truncated` or `exact_duplicates` were passed over; all others are used.
    """

    kind: FindingKind
    about: dict[str, str]
    meaning: str
    remedy: str


@dataclass(frozen=True)
class CalibrationImage:
    """A file by its name in the folder, the sha256 of its bytes, and its class where it has one."""

    name: str
    digest: str
    label: str | None = None


@dataclass(frozen=True)
class CalibrationManifest:
    """A drawn calibration set, as it stands in its JSON file.

    `folder` is absolute, or relative to the manifest; `labels` are the class folders in their
    order, `asked` the number of images that was to be drawn, `counts` how many of each class were.
    """

    folder: str
    images: tuple[CalibrationImage, ...]
    labels: tuple[str, ...]
    seed: int
    asked: int
    counts: dict[str, int] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    schema_version: int = SCHEMA_VERSION
    kind: str = "calibration-set"

    def __post_init__(self) -> None:
        for image in self.images:
            name = PurePosixPath(image.name)
            if name.is_absolute() or ".." in name.parts or not name.parts:
                raise InputError(f"image {image.name!r} is not inside the folder", hint=_AGAIN)
            if image.label is not None and image.label not in self.labels:
                raise InputError(f"image {image.name!r} has an unknown label", hint=_AGAIN)
        if len({image.digest for image in self.images}) < len(self.images):
            raise InputError("images stand there twice", hint=_AGAIN)


def read_manifest(path: Path) -> CalibrationManifest:
    """Read a manifest; its images are not looked at.

    Raises InputError where it is missing, no manifest, or of another version.
    """
    text = read_text(path, what="calibration manifest")
    return from_json(text, CalibrationManifest, origin=str(path))


def require_destination(path: Path) -> None:
    """Raise InputError unless `path` may be written: a .json file, new or of a calibration set."""
    if path.suffix != ".json":
        raise InputError(f"{path} is no .json file", hint="give a name that ends in .json")
    with reading(path, "calibration manifest"):
        there = path.exists() or path.is_symlink()
    if there:
        try:
            read_manifest(path)
        except InputError as error:
            raise InputError(
                f"{path} holds something else and is not replaced",
                hint="give another name with -o, or delete it first",
            ) from error


def write_manifest(manifest: CalibrationManifest, path: Path) -> None:
    """Write a manifest, whole or not at all. Raises as `require_destination`.

    InputError also where a file's name is not UTF-8, which no JSON file can hold.
    """
    for image in manifest.images:
        if printable(image.name) != image.name:
            raise InputError(
                f"the name of {printable(image.name)} is not UTF-8", hint="rename the file"
            )
    require_destination(path)
    write_text(path, to_json(manifest), remedy=ANOTHER_FILE)
