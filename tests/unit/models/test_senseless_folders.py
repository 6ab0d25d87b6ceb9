"""Settings of model folders that make no sense: named as the user's, never our own failure."""

from __future__ import annotations

import collections
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import transformers as hf
from timm.models import save_for_hf

from vitdeploy.errors import InputError
from vitdeploy.models.image_processor import preprocessing_in
from vitdeploy.models.load import ModelRequest, load_source

VALUES: tuple[Any, ...] = (None, "x", 0, 1.5, [1], {}, True)
TINY = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 2}

pytestmark = pytest.mark.filterwarnings("ignore")  # the libraries warn of some values


def tried(path: Path, content: dict[str, Any], load: Callable[[], object]) -> collections.Counter:
    """Load with each setting replaced by each value; anything but InputError escapes."""
    found: collections.Counter = collections.Counter()
    for key in content:
        for value in VALUES:
            path.write_text(json.dumps({**content, key: value}))
            try:
                load()
                found["loaded"] += 1
            except InputError:
                found["refused"] += 1
    return found


def test_configurations_of_transformers(tmp_path: Path) -> None:
    config = hf.ViTConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64,
        image_size=32, patch_size=8,
    )  # fmt: skip
    hf.ViTForImageClassification(config).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    request = ModelRequest(name=str(tmp_path), mean=(0.5,) * 3, std=(0.5,) * 3)
    found = tried(path, json.loads(path.read_text()), lambda: load_source(request))
    assert min(found["refused"], found["loaded"]) > 20


def test_image_processors_of_transformers(tmp_path: Path) -> None:
    sides = {"height": 73, "width": 73}, {"height": 64, "width": 64}
    hf.DeiTImageProcessor(size=sides[0], crop_size=sides[1]).save_pretrained(tmp_path)
    path = tmp_path / "preprocessor_config.json"
    found = tried(path, json.loads(path.read_text()), lambda: preprocessing_in(tmp_path, (64, 64)))
    assert min(found["refused"], found["loaded"]) > 15


@pytest.mark.parametrize("part", [None, "pretrained_cfg", "model_args"])
def test_configurations_of_timm(tmp_path: Path, part: str | None) -> None:
    module = timm.create_model("vit_tiny_patch16_224", num_classes=3, **TINY)
    save_for_hf(module, str(tmp_path), model_args=dict(TINY), safe_serialization=True)
    path = tmp_path / "config.json"
    whole = json.loads(path.read_text())
    settings = whole if part is None else whole[part]

    def load() -> None:
        changed = json.loads(path.read_text())
        if part is not None:
            path.write_text(json.dumps({**whole, part: changed}))
        load_source(ModelRequest(name=str(tmp_path)))

    assert tried(path, settings, load)["refused"] > 10
