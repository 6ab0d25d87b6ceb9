"""Sizes that patches do not tile are refused by the name alone, and only where that is true."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from tiny_sources import NAME, TINY, tiny

import vitdeploy
from vitdeploy.artifacts.files import to_json
from vitdeploy.artifacts.source import CHECKPOINT_KEY
from vitdeploy.errors import InputError
from vitdeploy.models.library import library
from vitdeploy.models.preflight import require_sizes
from vitdeploy.models.request import ModelRequest
from vitdeploy.models.size_step import step_told_by

OF_TIMM = (
    "vit_small_patch14_dinov2",
    "vit_base_patch16_clip_224.openai",
    "beit_base_patch16_224",
    "swin_tiny_patch4_window7_224",
    "naflexvit_base_patch16_gap",
    "tnt_s_patch16_224",
    "vit_tiny_r_s16_p8_224",
)


@pytest.mark.parametrize("name", OF_TIMM)
def test_what_timms_names_tell_is_so(name: str) -> None:
    told = step_told_by(ModelRequest(name=name))
    with torch.device("meta"):
        module = timm.create_model(name)
    assert told in (None, library("timm").size_step(module))
    assert (told is None) == name.startswith(("naflexvit", "tnt", "vit_tiny_r"))


@pytest.mark.parametrize("name", ["vit_b_16", "vit_h_14", "swin_t", "swin_v2_b", "maxvit_t"])
def test_what_torchvisions_names_tell_is_so(name: str) -> None:
    import torchvision

    with torch.device("meta"):
        module = getattr(torchvision.models, name)()
    told = step_told_by(ModelRequest(name=f"torchvision:{name}"))
    assert told == library("torchvision").size_step(module)


def folder_of(place: Path, config: dict[str, Any]) -> str:
    place.mkdir()
    (place / "config.json").write_text(json.dumps(config))
    return str(place)


def test_files_and_arguments_tell_it_too(tmp_path: Path) -> None:
    state, description = tiny().module.state_dict(), tiny().description
    described = tmp_path / "mine.safetensors"
    save_file(state, described, metadata={CHECKPOINT_KEY: to_json(description)})
    vit = {"model_type": "vit", "architectures": ["ViTModel"], "patch_size": 14}
    clip = {"model_type": "clip", "vision_config": {"patch_size": 32}}
    names = {
        str(described): (8, 8),
        folder_of(tmp_path / "a", {"architecture": NAME, "model_args": TINY}): (8, 8),
        folder_of(tmp_path / "b", vit): (14, 14),
        folder_of(tmp_path / "c", clip): (32, 32),
        folder_of(tmp_path / "d", {"model_type": "vit", "vision_config": ["?"]}): None,
        "models.py:make": None,
    }
    assert {name: step_told_by(ModelRequest(name=name)) for name in names} == names
    kwargs = {"patch_size": [16, 8]}
    assert step_told_by(ModelRequest(name=NAME, model_kwargs=kwargs)) == (16, 8)


def test_the_nearest_that_is_one_is_named() -> None:
    request = ModelRequest(name=NAME, random_weights=True)
    require_sizes(request, [(224, 384)])
    with pytest.raises(InputError, match=r"225x384 is not a multiple of the patch size") as caught:
        require_sizes(request, [(224, 224), (225, 384)], option="--dynamic-res")
    assert caught.value.hint == "the nearest that is: --dynamic-res 224x384"


HEAVY = ("torch", "timm", "onnxruntime", "scipy")
COMMANDS = (
    ["export", "vit_base_patch16_224", "--random-weights", "--res", "225"],
    ["export", "vit_base_patch16_224", "--random-weights", "--dynamic-res", "224:500"],
    ["export", "demo", "--res", "3"],
    ["demo", "--res", "3"],
    ["train", "--model", "vit_base_patch16_224", "--random-weights", "--mixed-res", "225",
     "--data", "images", "-o", "a.safetensors"],
)  # fmt: skip


def test_commands_refuse_before_anything_heavy_is_imported(tmp_path: Path) -> None:
    for name in ("coat", "dress"):
        (tmp_path / "images" / name).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "images" / name / "1.png")
    code = f"""
import sys
from vitdeploy.cli import cli
for arguments in {COMMANDS!r}:
    try:
        cli.main(arguments, standalone_mode=False)
    except Exception as error:
        print(type(error).__name__, error, *({{*{HEAVY!r}}} & {{*sys.modules}}))
"""
    root = str(Path(vitdeploy.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == len(COMMANDS), done.stderr
    for line in lines:
        assert line.startswith("InputError resolution ")
        assert "is not a multiple of the patch size" in line
        assert not line.endswith(HEAVY)
