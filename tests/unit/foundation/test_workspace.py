"""What a working folder fills in, and what it says about it."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitdeploy.artifacts.files import atomic_path, to_json, write_text
from vitdeploy.artifacts.onnx_model import OnnxModel, read_onnx_model, write_sidecar
from vitdeploy.demo import assets
from vitdeploy.errors import InputError
from vitdeploy.workspace import Workspace, open_workspace


def opened(folder: Path) -> tuple[Workspace, list[str]]:
    said: list[str] = []
    return open_workspace(folder, said.append), said


def class_folders(folder: Path, names: list[str]) -> Path:
    for i, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        pixels = np.full((8, 8, 3), 40 * i, dtype=np.uint8)
        Image.fromarray(pixels).save(folder / name / "0.png")
    return folder


@pytest.fixture
def graph(tmp_path: Path) -> OnnxModel:
    """The demo's graph, in the working folder's 'artifacts'."""
    path = tmp_path / "artifacts" / assets.GRAPH.name
    path.parent.mkdir()
    path.write_bytes(assets.GRAPH.read_bytes())
    model = read_onnx_model(path)
    write_sidecar(model)
    return model


class TestNewest:
    def test_without_a_recipe_the_newest_of_all_is_taken_and_named(
        self, tmp_path: Path, graph: OnnxModel
    ) -> None:
        place, said = opened(tmp_path)
        found = place.graph(None)
        assert found == graph
        assert said == [f"graph: {graph.path} (the newest here)"]

    def test_a_recipe_of_another_model_finds_nothing(
        self, tmp_path: Path, graph: OnnxModel
    ) -> None:
        (tmp_path / "vitdeploy.toml").write_text('[model]\nname = "vit_small_patch16_224"\n')
        place, said = opened(tmp_path)
        assert place.graph(None) is None
        assert said == []

    def test_a_recipes_checkpoint_is_known_under_another_name(
        self, tmp_path: Path, graph: OnnxModel
    ) -> None:
        """`export --name flowers` of a file that does not describe itself."""
        source = graph.description.source
        made = replace(source, name="flowers", origin="flowers.pth (its 'model')")
        write_sidecar(replace(graph, description=replace(graph.description, source=made)))
        recipe = f'[model]\nname = "{source.architecture}"\ncheckpoint = "%s"\n'
        for file, found in (("w/flowers.pth", True), ("w/roses.pth", False)):
            (tmp_path / "vitdeploy.toml").write_text(recipe % file)
            place, _ = opened(tmp_path)
            assert (place.graph(None) is not None) == found
            assert place.knows(made) is False  # no images to judge it on

    def test_a_checkpoint_that_describes_itself_is_known_by_its_weights(
        self, tmp_path: Path, graph: OnnxModel
    ) -> None:
        source = graph.description.source
        (tmp_path / "mine.safetensors").write_bytes(assets.CHECKPOINT.read_bytes())
        (tmp_path / "vitdeploy.toml").write_text(
            f'[model]\nname = "{source.architecture}"\ncheckpoint = "mine.safetensors"\n'
        )
        assert opened(tmp_path)[0].graph(None) == graph
        retrained = replace(source, weights_digest="0" * 64)
        write_sidecar(replace(graph, description=replace(graph.description, source=retrained)))
        assert opened(tmp_path)[0].graph(None) is None

    def test_what_nothing_describes_is_left_out_aloud(
        self, tmp_path: Path, graph: OnnxModel
    ) -> None:
        (graph.path.parent / "lost.engine").write_bytes(b"engine")
        place, said = opened(tmp_path)
        with pytest.raises(InputError, match="holds no engine"):
            place.engine(None)
        assert len(said) == 1
        assert said[0].startswith("left out: ")
        assert "lost.json is not beside it" in said[0]

    def test_a_graph_without_its_sidecar_is_found(self, tmp_path: Path, graph: OnnxModel) -> None:
        graph.path.with_suffix(".json").unlink()
        assert opened(tmp_path)[0].graph(None) == graph

    def test_no_engine_is_said_without_blaming_a_model(self, tmp_path: Path) -> None:
        place, _ = opened(tmp_path)
        with pytest.raises(InputError, match=r"artifacts holds no engine$"):
            place.engine(None)


class TestLabels:
    def test_numbered_classes_take_the_names_of_as_many_folders(
        self, tmp_path: Path, graph: OnnxModel
    ) -> None:
        folder = class_folders(tmp_path / "images", ["brick", "grass", "sky"])
        source = replace(graph.description.source, labels=("0", "1", "2"))
        place, said = opened(tmp_path)
        images = place.evaluation(folder, source)
        assert images is not None
        assert images.labels == ("brick", "grass", "sky")
        assert [item.label for item in images.items] == [0, 1, 2]
        assert len(said) == 1
        assert "brick, grass, sky" in said[0]

    @pytest.mark.parametrize("labels", [("0", "1", "2", "3"), ("brick", "grass", "water")])
    def test_other_counts_and_other_names_are_refused(
        self, tmp_path: Path, graph: OnnxModel, labels: tuple[str, ...]
    ) -> None:
        folder = class_folders(tmp_path / "images", ["brick", "grass", "sky"])
        source = replace(graph.description.source, labels=labels)
        place, said = opened(tmp_path)
        with pytest.raises(InputError, match="no label of the model"):
            place.evaluation(folder, source)
        assert said == []

    def test_numbered_folders_are_matched_by_number(self, tmp_path: Path, graph: OnnxModel) -> None:
        folder = class_folders(tmp_path / "images", ["2", "10"])
        source = replace(graph.description.source, labels=tuple(map(str, range(11))))
        images = opened(tmp_path)[0].evaluation(folder, source)
        assert images is not None
        assert [item.label for item in images.items] == [2, 10]

    @pytest.mark.parametrize("part", ["calibration", "evaluation"])
    def test_folders_without_images_are_announced(
        self, tmp_path: Path, graph: OnnxModel, part: str
    ) -> None:
        folder = class_folders(tmp_path / "images", ["brick", "grass", "sky"])
        (folder / "sky" / "0.png").unlink()
        source = replace(graph.description.source, labels=("brick", "grass", "sky"))
        place, said = opened(tmp_path)
        images = getattr(place, part)(folder, source)
        assert images.empty_classes == ("sky",)
        assert said == [f"{part} images: {folder} has folders without images: sky"]

    def test_calibration_asks_for_images_only(self, tmp_path: Path, graph: OnnxModel) -> None:
        folder = class_folders(tmp_path / "images", ["brick", "grass"])
        images = opened(tmp_path)[0].calibration(folder, graph.description.source)
        assert images is not None
        assert len(images) == 2


def test_files_are_as_readable_as_any_other(tmp_path: Path) -> None:
    """Some writers make their files readable to their owner alone."""
    plain = tmp_path / "plain"
    write_text(plain, to_json({}))
    with atomic_path(tmp_path / "private") as temporary:
        temporary.unlink()
        os.close(os.open(temporary, os.O_CREAT | os.O_WRONLY, 0o600))
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (plain, tmp_path / "private")}
    previous = os.umask(0)
    os.umask(previous)
    assert modes == {0o666 & ~previous}
