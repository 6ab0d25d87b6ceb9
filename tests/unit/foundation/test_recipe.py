"""`vitdeploy.toml`, and what a working folder's commands take from it."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from vitdeploy.artifacts.source import SourceDescription
from vitdeploy.errors import InputError
from vitdeploy.models.load import ModelRequest
from vitdeploy.preprocessing import Preprocessing
from vitdeploy.recipe import DataSection, ModelSection, Recipe, read_recipe
from vitdeploy.workspace import open_workspace


def write(folder: Path, text: str) -> None:
    (folder / "vitdeploy.toml").write_text(text, encoding="utf-8")


def source(name: str) -> SourceDescription:
    return SourceDescription(
        name=name,
        library="timm",
        architecture=name,
        model_kwargs={},
        native_resolution=(32, 32),
        in_chans=3,
        labels=("a", "b"),
        weights_digest="w",
        preprocessing=Preprocessing(),
    )


def test_a_folder_without_one_has_an_empty_recipe(tmp_path: Path) -> None:
    assert read_recipe(tmp_path) == Recipe()


def test_every_key_is_read(tmp_path: Path) -> None:
    write(
        tmp_path,
        """
        output = "out"
        [model]
        name = "vit_tiny_patch16_224"
        checkpoint = "w.pth"
        num_classes = 3
        in_chans = 1
        model_kwargs = { depth = 2 }
        [data]
        calibration = "train"
        evaluation = "val"
        """,
    )
    model = ModelSection("vit_tiny_patch16_224", "w.pth", False, 3, 1, {"depth": 2})
    assert read_recipe(tmp_path) == Recipe(model, DataSection("train", "val"), "out")


def test_the_repository_has_one_for_the_demo() -> None:
    root = Path(__file__).parents[3]
    recipe = read_recipe(root)
    assert recipe.model is not None
    assert recipe.model.name == "demo"
    assert recipe.data == DataSection("demo", "demo")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('outptu = "x"', "outptu"),
        ('[model]\nname = "x"\nnumclasses = 3', "numclasses"),
        ('[data]\ncalib = "x"', "calib"),
        ("[model]\npretrained = true", "name"),
        ('[model]\nname = "x"\nnum_classes = "many"', "num_classes"),
        ('model = "x"', "model"),
        ('[model]\nname = "x"\npretrained = "false"', "pretrained"),
        ('[model]\nname = "x"\npretrained = 0', "pretrained"),
        ('[model]\nname = "x"\nnum_classes = 3.7', "num_classes"),
        ('[model]\nname = "x"\nnum_classes = true', "num_classes"),
        ('[model]\nname = "x"\nin_chans = "3"', "in_chans"),
        ('[model]\nname = "x"\nmean = "555"', "mean"),
        ('[model]\nname = "x"\ncrop_pct = "0.9"', "crop_pct"),
        ('[model]\nname = "x"\nmodel_kwargs = { drop_rate = nan }', "nan is not a finite"),
        ("output = 5", "output"),
        ("[data]\nevaluation = true", "evaluation"),
        (f"output = {'9' * 5000}", "not valid TOML"),
        (f"output = {'[' * 5000}", "not valid TOML"),
        ("output = ", "not valid TOML"),
    ],
)
def test_what_it_does_not_know_is_refused(tmp_path: Path, text: str, said: str) -> None:
    write(tmp_path, text)
    with pytest.raises(InputError, match=said) as caught:
        read_recipe(tmp_path)
    assert "vitdeploy.toml" in str(caught.value)
    assert caught.value.hint


def test_whole_numbers_may_stand_for_fractions(tmp_path: Path) -> None:
    write(tmp_path, '[model]\nname = "x"\ncrop_pct = 1\nmean = [0, 0.5, 1]\npretrained = true')
    model = read_recipe(tmp_path).model
    assert model is not None
    assert (model.crop_pct, model.mean, model.pretrained) == (1.0, (0.0, 0.5, 1.0), True)


def test_one_that_cannot_be_read_is_not_overlooked(tmp_path: Path, modes_bind: None) -> None:
    write(tmp_path, 'output = "x"')
    (tmp_path / "vitdeploy.toml").chmod(0)
    with pytest.raises(InputError, match=r"vitdeploy\.toml cannot be read: Permission denied"):
        read_recipe(tmp_path)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "vitdeploy.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not valid TOML"):
        read_recipe(tmp_path)


def test_data_belongs_to_the_model_the_file_names(tmp_path: Path) -> None:
    write(tmp_path, '[model]\nname = "mine"\n[data]\nevaluation = "val"')
    for label in ("a", "b"):
        (tmp_path / "val" / label).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "val" / label / "1.png")
    said: list[str] = []
    place = open_workspace(tmp_path, said.append)
    images = place.evaluation(None, source("mine"))
    assert images is not None
    assert len(images) == 2
    assert any("val" in line and "vitdeploy.toml" in line for line in said)
    assert place.evaluation(None, source("another")) is None
    assert place.calibration(None, source("mine")) is None


def test_without_a_recipe_a_model_must_be_named(tmp_path: Path) -> None:
    place = open_workspace(tmp_path, lambda line: None)
    with pytest.raises(InputError, match="no model was named"):
        place.model_request(None)
    asked = ModelRequest(name="vit_tiny_patch16_224", pretrained=True)
    assert place.model_request(asked) is asked
    assert place.graph(None) is None
    with pytest.raises(InputError, match=r"artifacts holds no engine$") as caught:
        place.engine(None)
    assert "build-engine" in str(caught.value.hint)


def test_the_recipes_model_is_announced_and_its_paths_start_at_its_folder(tmp_path: Path) -> None:
    write(tmp_path, '[model]\nname = "vit_tiny_patch16_224"\ncheckpoint = "w.pth"')
    (tmp_path / "w.pth").touch()
    said: list[str] = []
    request = open_workspace(tmp_path, said.append).model_request(None)
    assert request.checkpoint == tmp_path / "w.pth"
    assert said == ["model: vit_tiny_patch16_224 (from vitdeploy.toml)"]


def test_a_described_checkpoint_in_the_recipe_starts_at_its_folder_too(tmp_path: Path) -> None:
    write(tmp_path, '[model]\nname = "mine.safetensors"')
    (tmp_path / "mine.safetensors").touch()
    request = open_workspace(tmp_path, lambda line: None).model_request(None)
    assert Path(request.name) == tmp_path / "mine.safetensors"


def test_a_byte_order_mark_as_windows_editors_write_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "vitdeploy.toml").write_bytes(b'\xef\xbb\xbfoutput = "here"')
    assert read_recipe(tmp_path).output == "here"
