"""Arguments of timm's models: what makes no sense is the user's, and none of them loads a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from vitdeploy.errors import InputError
from vitdeploy.models import timm_

VIT, SWIN = "vit_tiny_patch16_224", "swin_tiny_patch4_window7_224"


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        (VIT, {"num_heads": 0}, "ZeroDivisionError"),
        (VIT, {"patch_size": 0}, "ZeroDivisionError"),
        (VIT, {"act_layer": "zzz"}, "KeyError: 'zzz'"),
        (VIT, {"norm_layer": "zzz"}, "KeyError"),
        (VIT, {"img_size": [1]}, "IndexError"),
        (VIT, {"img_size": [32, 32, 32]}, ""),
        (VIT, {"img_size": "abc"}, ""),
        (VIT, {"img_size": -32}, ""),
        (VIT, {"patch_size": [16]}, "IndexError"),
        (VIT, {"depth": "a"}, "TypeError"),
        (VIT, {"num_heads": 5}, ""),
        (VIT, {"dept": 3}, "dept"),
        (SWIN, {"num_heads": [0, 0, 0, 0]}, "ZeroDivisionError"),
        ("levit_128s", {"key_dim": 0}, "ZeroDivisionError"),
    ],
    ids=str,
)
def test_without_sense(name: str, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=f"timm cannot create {name}") as caught:
        timm_.build(name, model_kwargs=arguments)
    assert said in str(caught.value)
    assert "--model-kwargs" in str(caught.value.hint)


@pytest.mark.parametrize(
    "argument",
    ["pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "pretrained_strict", "model_name",
     "pretrained_filter_fn", "checkpoint_path", "cache_dir", "features_only", "out_indices",
     "scriptable", "device", "dtype"],
)  # fmt: skip
def test_timms_own_machinery_is_out_of_reach(argument: str) -> None:
    with pytest.raises(InputError, match=f"^{argument} is no argument of {VIT} itself") as caught:
        timm_.build(VIT, model_kwargs={"depth": 1, argument: "a"})
    assert "--checkpoint" in str(caught.value.hint)


def test_no_argument_loads_weights(tmp_path: Path) -> None:
    """A checkpoint of the right shapes, which timm itself would load from this argument."""
    arguments = {"depth": 1, "embed_dim": 48, "num_heads": 3}
    module = timm_.build(VIT, model_kwargs=arguments)
    torch.save(module.state_dict(), tmp_path / "other.pth")
    with pytest.raises(InputError, match="checkpoint_path"):
        timm_.build(VIT, model_kwargs={**arguments, "checkpoint_path": str(tmp_path / "other.pth")})


def test_arguments_with_sense_are_passed_on() -> None:
    arguments = {"img_size": [48, 32], "patch_size": 8, "depth": 1, "act_layer": "relu"}
    module = timm_.build(VIT, model_kwargs=arguments)
    assert timm_.native_resolution(module) == (48, 32)
    assert len(module.get_submodule("blocks").state_dict()) == 12  # one block
    assert isinstance(module.get_submodule("blocks.0.mlp.act"), torch.nn.ReLU)
    assert not module.training
