"""Where calibration images come from: a folder, a drawn set, or the recipe."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitdeploy.artifacts.onnx_model import read_onnx_model
from vitdeploy.artifacts.source import SourceDescription
from vitdeploy.calibration.image_set import save_calibration_set
from vitdeploy.demo import assets
from vitdeploy.errors import CalibrationError, InputError
from vitdeploy.progress import SILENT
from vitdeploy.workspace import Draw, Workspace, open_workspace

RECIPE = """
[model]
name = "demo"
[data]
calibration = "{}"
evaluation = "val"
"""
DRAW = Draw(count=20, seed=3)


@pytest.fixture(scope="module")
def source() -> SourceDescription:
    return read_onnx_model(assets.GRAPH).description.source


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for part, first in (("train", 0), ("val", 100)):
        (tmp_path / part).mkdir()
        for i in range(24):
            pixels = np.random.default_rng(first + i).integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / part / f"{i}.png")
    return tmp_path


def opened(folder: Path, calibration: str | None) -> tuple[Workspace, list[str]]:
    if calibration is not None:
        (folder / "vitdeploy.toml").write_text(RECIPE.format(calibration))
    said: list[str] = []
    return open_workspace(folder, said.append), said


def test_a_recipe_may_name_a_drawn_set(folder: Path, source: SourceDescription) -> None:
    place, _ = opened(folder, "train")
    drawn = place.draw_calibration_set(None, source, DRAW, SILENT)
    save_calibration_set(drawn, folder / "set.json")
    place, said = opened(folder, "set.json")
    assert place.calibration_set(None, source, Draw(count=16, seed=0), SILENT) == drawn
    assert said[0] == "calibration images: set.json (from vitdeploy.toml)"
    assert said[1].startswith("calibration images: 20 of ")
    assert place.calibration(None, source) == drawn.images
    with pytest.raises(InputError, match=r"set\.json is no folder"):
        place.draw_calibration_set(None, source, DRAW, SILENT)


def test_the_recipes_evaluation_images_are_kept_apart(
    folder: Path, source: SourceDescription
) -> None:
    place, _ = opened(folder, "train")
    shutil.copy(folder / "train" / "5.png", folder / "val" / "other.png")
    with pytest.raises(CalibrationError, match=r"5\.png \(there other\.png\)"):
        place.calibration_set(None, source, Draw(count=24, seed=0), SILENT)


def test_evaluation_images_that_are_elsewhere_are_announced(
    folder: Path, source: SourceDescription
) -> None:
    """But those named for this very command must be there."""
    shutil.rmtree(folder / "val")
    place, said = opened(folder, "train")
    drawn = place.calibration_set(None, source, DRAW, SILENT)
    assert drawn is not None
    assert len(drawn) == 20
    assert "val is not here, so overlap is not looked for" in said[-1]
    with pytest.raises(InputError, match="none does not exist"):
        place.calibration_set(None, source, Draw(20, 3, Path("none")), SILENT)


def test_without_any_there_is_none(folder: Path, source: SourceDescription) -> None:
    place, said = opened(folder, None)
    assert place.calibration_set(None, source, DRAW, SILENT) is None
    with pytest.raises(InputError, match="no calibration images were named"):
        place.draw_calibration_set(None, None, DRAW, SILENT)
    assert said == []


def test_another_models_recipe_gives_nothing(folder: Path, source: SourceDescription) -> None:
    place, _ = opened(folder, "train")
    other = replace(source, weights_digest="other")
    assert place.calibration_set(None, other, DRAW, SILENT) is None
    shutil.copy(folder / "train" / "5.png", folder / "val" / "5.png")
    drawn = place.calibration_set(Path("train"), other, Draw(count=24, seed=0), SILENT)
    assert drawn is not None  # nor are another model's evaluation images kept apart


def test_the_seed_and_the_count_are_the_draws(folder: Path, source: SourceDescription) -> None:
    place, _ = opened(folder, "train")
    drawn = [
        place.draw_calibration_set(None, None, Draw(count, seed), SILENT)
        for count, seed in ((20, 3), (20, 3), (20, 4), (16, 3))
    ]
    assert drawn[0] == drawn[1]
    assert drawn[0].digest != drawn[2].digest
    assert [len(each) for each in drawn] == [20, 20, 20, 16]
