"""`vitdeploy export --name`: what artifacts of a checkpoint without a name are called."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from click.testing import CliRunner

from vitdeploy.artifacts.onnx_model import read_onnx_model
from vitdeploy.cli import cli

ARCHITECTURE = "vit_tiny_patch16_224"
SMALL: dict[str, Any] = {
    "img_size": 32,
    "patch_size": 8,
    "embed_dim": 192,
    "depth": 1,
    "num_heads": 3,
}


def test_files_and_descriptions_carry_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    module = timm.create_model(ARCHITECTURE, num_classes=4, **SMALL)
    torch.save(module.state_dict(), "w.pth")
    arguments = ["export", ARCHITECTURE, "--checkpoint", "w.pth", "--num-classes", "4", "--json"]
    arguments += ["--model-kwargs", json.dumps(SMALL)]
    named = CliRunner().invoke(cli, [*arguments, "--name", "flowers"], catch_exceptions=False)
    path = Path(json.loads(named.stdout)["path"])
    assert path.name.startswith("flowers_32x32_fp32-")
    source = read_onnx_model(path).description.source
    assert (source.name, source.architecture) == ("flowers", ARCHITECTURE)
    unnamed = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert Path(json.loads(unnamed.stdout)["path"]).name.startswith(f"{ARCHITECTURE}_32x32")


def test_one_name_is_for_one_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(
        cli, ["export", "torchvision:vit_b_*", "--random-weights", "--name", "flowers"]
    )
    assert done.exit_code == 2
    assert "--name is for one model" in done.output
