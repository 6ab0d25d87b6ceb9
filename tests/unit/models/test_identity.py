"""Artifacts are known as a request's own whatever they are called, and others' are not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tiny_sources import NAME, TINY, tiny

from vitdeploy import api
from vitdeploy.artifacts.source import SourceDescription
from vitdeploy.models.identity import seems_from
from vitdeploy.models.request import ModelRequest

KWARGS = {"model_kwargs": TINY, "num_classes": 3}


def request_of(kind: str, folder: Path) -> ModelRequest:
    """A model of this kind, its files written into `folder`."""
    state = tiny().module.state_dict()
    if kind == "timm folder":
        config = {"architecture": NAME, "model_args": TINY, "num_classes": 3}
        folder = folder / "flowers"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        save_file(state, folder / "model.safetensors")
        return ModelRequest(name=str(folder))
    if kind == "safetensors":
        save_file(state, folder / "w.safetensors")
        return ModelRequest(name=NAME, checkpoint=folder / "w.safetensors", **KWARGS)
    torch.save({"state_dict": state}, folder / "w.pth")
    return ModelRequest(name=NAME, checkpoint=folder / "w.pth", **KWARGS)


@pytest.fixture(params=["pth", "safetensors", "timm folder"])
def loaded(
    request: pytest.FixtureRequest, tmp_path: Path
) -> tuple[ModelRequest, SourceDescription]:
    """A request, and what its artifacts say of the model under a name of their own."""
    asked = request_of(request.param, tmp_path)
    return asked, api.relabelled(api.load_model(asked), "my flowers").description


def test_an_artifact_of_another_name_is_still_known(
    loaded: tuple[ModelRequest, SourceDescription],
) -> None:
    asked, found = loaded
    assert found.name == "my flowers"
    assert seems_from(asked, found)


def test_other_weights_are_another_model_even_under_its_name(
    loaded: tuple[ModelRequest, SourceDescription],
) -> None:
    asked, found = loaded
    for origin in ("w.pth2", "other.pth", "pretrained weights", "flowers2/model.safetensors"):
        assert not seems_from(asked, replace(found, name=asked.name, origin=origin))


def test_another_architecture_is_another_model() -> None:
    asked = ModelRequest(name=NAME, checkpoint=Path("w.pth"))
    source = replace(tiny().description, name="x", origin="w.pth (its 'model')")
    assert seems_from(asked, source)
    assert not seems_from(asked, replace(source, architecture="vit_small_patch16_224"))
    assert not seems_from(asked, replace(source, library="torchvision"))


def test_pretrained_and_hub_models_go_by_where_weights_came_from() -> None:
    source = replace(tiny().description, name="x", origin="pretrained weights")
    assert seems_from(ModelRequest(name=NAME, pretrained=True), source)
    hub = ModelRequest(name="transformers:google/vit", pretrained=True)
    assert not seems_from(hub, source)
    assert seems_from(hub, replace(source, origin="google/vit/model.safetensors"))


def test_where_files_are_not_here_the_name_decides(tmp_path: Path) -> None:
    """A device that only runs engines has the recipe, and not the model."""
    asked = ModelRequest(name=str(tmp_path / "gone"))
    source = replace(tiny().description, name=asked.name)
    assert seems_from(asked, source)
    assert not seems_from(asked, replace(source, name="x"))
