"""A drawn set on disk: read back as it was, refused where its images are others."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vitdeploy.artifacts.calibration import read_manifest
from vitdeploy.calibration.image_set import (
    CalibrationSet,
    choose,
    load_calibration_set,
    save_calibration_set,
)
from vitdeploy.errors import CalibrationError, InputError
from vitdeploy.images import scan


@pytest.fixture
def drawn(tmp_path: Path) -> CalibrationSet:
    for i in range(24):
        folder = tmp_path / "images" / ("ant" if i % 2 else "bee")
        folder.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(i).integers(0, 256, (8, 9, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")
    (tmp_path / "images" / "ant" / "99.png").write_bytes(b"no image")
    return choose(scan(tmp_path / "images"), count=30, seed=4)


@pytest.fixture
def manifest(drawn: CalibrationSet, tmp_path: Path) -> Path:
    path = tmp_path / "set.json"
    save_calibration_set(drawn, path)
    return path


def test_a_set_is_read_back_as_it_was(drawn: CalibrationSet, manifest: Path) -> None:
    assert load_calibration_set(manifest) == drawn
    record = read_manifest(manifest)
    assert record.counts == {"ant": 12, "bee": 12}
    assert (record.seed, record.asked) == (4, 30)
    assert {finding.kind for finding in record.findings} == {"unreadable", "too_few"}


def test_a_relative_folder_moves_along(drawn: CalibrationSet, tmp_path: Path) -> None:
    here = Path.cwd()
    os.chdir(tmp_path)
    try:
        save_calibration_set(choose(scan(Path("images")), count=20), Path("sets/a.json"))
    finally:
        os.chdir(here)
    assert read_manifest(tmp_path / "sets/a.json").folder == "../images"
    (tmp_path / "moved").mkdir()
    for name in ("images", "sets"):
        shutil.move(tmp_path / name, tmp_path / "moved" / name)
    assert len(load_calibration_set(tmp_path / "moved/sets/a.json")) == 20


def test_changed_and_missing_images_are_refused(drawn: CalibrationSet, manifest: Path) -> None:
    first, second = (item.path for item in drawn.images.items[:2])
    first.write_bytes(first.read_bytes() + b"\0")
    with pytest.raises(CalibrationError, match=f"{first.name} has changed") as caught:
        load_calibration_set(manifest)
    assert "vitdeploy calibrate" in str(caught.value.hint)
    second.unlink()
    with pytest.raises(CalibrationError, match=f"{second.name} is missing"):
        load_calibration_set(manifest)


def test_another_image_under_the_same_name_is_refused(
    drawn: CalibrationSet, manifest: Path
) -> None:
    first, second = (item.path for item in drawn.images.items[:2])
    shutil.copy(first, second)
    with pytest.raises(CalibrationError, match=f"{second.name} has changed"):
        load_calibration_set(manifest)


def without(record: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name != key}


def with_image(record: dict[str, Any], **change: Any) -> dict[str, Any]:
    images = [{**record["images"][0], **change}, *record["images"][1:]]
    return {**record, "images": images}


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda record: without(record, "seed"), "seed"),
        (lambda record: {**record, "more": 1}, "more"),
        (lambda record: {**record, "schema_version": 2}, "schema_version"),
        (lambda record: {**record, "kind": "engine"}, "kind"),
        (lambda record: {**record, "seed": "4"}, r"expected int @ \$.seed"),
        (lambda record: with_image(record, name="/etc/passwd"), "not inside the folder"),
        (lambda record: with_image(record, name="../a.png"), "not inside the folder"),
        (lambda record: with_image(record, name=""), "not inside the folder"),
        (lambda record: with_image(record, label="cat"), "unknown label"),
        (lambda record: with_image(record, digest=record["images"][1]["digest"]), "twice"),
        (lambda record: {**record, "images": "abc"}, r"expected tuple @ \$.images"),
    ],
)
def test_manifests_that_are_none_are_refused(damage: Any, said: str, manifest: Path) -> None:
    manifest.write_text(json.dumps(damage(json.loads(manifest.read_text()))))
    with pytest.raises(InputError, match=said):
        load_calibration_set(manifest)


def test_too_few_images_are_refused(manifest: Path) -> None:
    record = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**record, "images": record["images"][:15]}))
    with pytest.raises(CalibrationError, match="15 images, too few"):
        load_calibration_set(manifest)


def test_nothing_else_is_ever_replaced(drawn: CalibrationSet, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text("{}")
    with pytest.raises(InputError, match="not replaced"):
        save_calibration_set(drawn, other)
    assert other.read_text() == "{}"
    with pytest.raises(InputError, match=r"no \.json file"):
        save_calibration_set(drawn, tmp_path / "set.txt")
    mine = tmp_path / "set.json"
    save_calibration_set(drawn, mine)
    save_calibration_set(choose(drawn.images, count=16), mine)
    assert len(load_calibration_set(mine)) == 16


def test_names_that_json_cannot_hold_are_refused(drawn: CalibrationSet, tmp_path: Path) -> None:
    folder = tmp_path / "images" / "ant"
    (folder / "1.png").rename(folder / os.fsdecode(b"caf\xe9.png"))
    with pytest.raises(InputError, match="UTF-8"):
        save_calibration_set(choose(scan(drawn.images.root), count=30), tmp_path / "set.json")
