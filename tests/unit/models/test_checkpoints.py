"""Weights of other people's training: wrappers, averages, shards, half precision, old names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import transformers as hf
from lively import deviations, images, lively
from safetensors.torch import load_file, save_file
from torch import nn

from vitdeploy.errors import InputError
from vitdeploy.models import checkpoint
from vitdeploy.models.load import ModelRequest, load_source
from vitdeploy.models.weight_names import as_in_module

NAME = "vit_tiny_patch16_224"
TINY = {"img_size": 64, "patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 2}
State = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def module() -> nn.Module:
    return lively(timm.create_model(NAME, num_classes=3, **TINY))


@pytest.fixture
def state(module: nn.Module) -> State:
    return dict(module.state_dict())


def loaded(path: Path, **given: Any) -> Any:
    given = {"num_classes": 3, "model_kwargs": TINY, **given}
    return load_source(ModelRequest(name=NAME, checkpoint=path, **given))


def assert_same(path: Path, module: nn.Module, **given: Any) -> Any:
    source = loaded(path, **given)
    with torch.inference_mode():
        expected = module(torch.from_numpy(images(2, (64, 64)))).numpy()
    np.testing.assert_array_equal(source.logits(images(2, (64, 64))), expected)
    return source


def prefixed(state: State, prefix: str) -> State:
    return {prefix + name: value for name, value in state.items()}


def scrambled(state: State) -> State:
    return {name: value + 1 for name, value in state.items()}


class TestNames:
    @pytest.mark.parametrize(
        "prefix",
        [
            "_orig_mod.module.",
            "module._orig_mod.model.",
            "model.net._orig_mod.",
            "lightning_thing.encoder.",
        ],
    )
    def test_wrappers_in_any_nesting(
        self, tmp_path: Path, module: nn.Module, state: State, prefix: str
    ) -> None:
        torch.save({"state_dict": prefixed(state, prefix)}, tmp_path / "w.pth")
        assert_same(tmp_path / "w.pth", module)

    def test_wrappers_on_part_of_the_names(
        self, tmp_path: Path, module: nn.Module, state: State
    ) -> None:
        prefixes = ("module.", "", "model._orig_mod.", "_orig_mod.module.")
        mixed = {
            prefixes[i % 4] + name.replace("blocks.0", "blocks._orig_mod.0"): value
            for i, (name, value) in enumerate(state.items())
        }
        save_file(mixed, tmp_path / "w.safetensors")
        assert_same(tmp_path / "w.safetensors", module)

    @pytest.mark.parametrize(
        "saved",
        [
            lambda good, bad: {"state_dict": bad, "state_dict_ema": good},
            lambda good, bad: {"model": bad, "model_ema": {"module": good, "decay": 0.99}},
            lambda good, bad: {"student": bad, "teacher": prefixed(good, "backbone.")},
            lambda good, bad: {**prefixed(bad, "model."), **prefixed(good, "ema.module.")},
            lambda good, bad: {"n_averaged": torch.tensor(3), **prefixed(good, "module.")},
            lambda good, bad: {"ema": {"decay": 0.99}, "model": good},
        ],
        ids=["timm", "nested", "dino", "flat", "swa", "an average without weights"],
    )
    def test_averaged_weights_come_first(
        self,
        tmp_path: Path,
        module: nn.Module,
        state: State,
        saved: Callable[[State, State], dict[str, Any]],
    ) -> None:
        torch.save(saved(state, scrambled(state)), tmp_path / "w.pth")
        source = assert_same(tmp_path / "w.pth", module)
        assert source.description.origin.startswith("w.pth (")

    def test_two_models_none_of_them_an_average(self, state: State) -> None:
        both = {**prefixed(state, "first."), **prefixed(state, "second.")}
        with pytest.raises(InputError, match=r"'first\.', 'second\.'"):
            as_in_module(both, set(state))

    def test_tensors_beside_the_model_are_left_and_named(
        self, tmp_path: Path, module: nn.Module, state: State
    ) -> None:
        saved = {**prefixed(state, "net."), "criterion.weight": torch.ones(3)}
        torch.save({"state_dict": saved, "hyper_parameters": {"lr": 0.1}}, tmp_path / "w.ckpt")
        source = assert_same(tmp_path / "w.ckpt", module)
        assert "1 tensors beside the model left aside" in source.description.origin

    def test_a_whole_model_is_found_by_all_its_names(self, state: State) -> None:
        """A block that ends as the model does is no model."""
        with_decoy = {**prefixed(state, "model."), "other.norm.weight": torch.ones(1)}
        renamed, note = as_in_module(with_decoy, set(state))
        assert renamed.keys() == state.keys()
        assert note == "1 tensors beside the model left aside"


class TestOriginalNames:
    def test_of_swin_before_timm_renamed_its_stages(self, tmp_path: Path) -> None:
        shape: dict[str, Any] = {
            "img_size": 64, "patch_size": 4, "window_size": 4, "embed_dim": 16,
            "depths": (1, 1), "num_heads": (2, 2),
        }  # fmt: skip
        name = "swin_tiny_patch4_window7_224"
        module = lively(timm.create_model(name, num_classes=3, **shape))
        original = {
            key.replace("layers.1.downsample", "layers.0.downsample").replace("head.fc", "head"): v
            for key, v in module.state_dict().items()
        }
        assert original.keys() != module.state_dict().keys()
        torch.save({"model": original}, tmp_path / "w.pth")
        source = load_source(
            ModelRequest(
                name=name, checkpoint=tmp_path / "w.pth", num_classes=3, model_kwargs=shape
            )
        )
        with torch.inference_mode():
            expected = module(torch.from_numpy(images(2, (64, 64)))).numpy()
        np.testing.assert_array_equal(source.logits(images(2, (64, 64))), expected)
        assert "names converted by timm" in source.description.origin

    def test_positions_are_not_resampled_on_the_way(self, tmp_path: Path, state: State) -> None:
        larger = {**TINY, "img_size": 96}
        torch.save(state, tmp_path / "w.pth")
        with pytest.raises(InputError, match=r"pos_embed is \(1, 65, 32\)") as caught:
            loaded(tmp_path / "w.pth", model_kwargs=larger)
        assert "--res" in str(caught.value.hint)


class TestFits:
    def test_the_number_of_classes_in_the_file_is_named(self, tmp_path: Path, state: State) -> None:
        torch.save(state, tmp_path / "w.pth")
        with pytest.raises(InputError, match=r"head\.weight is \(3, 32\)") as caught:
            loaded(tmp_path / "w.pth", num_classes=11)
        assert str(caught.value.hint).endswith("--num-classes 3")

    def test_the_first_convolution_names_in_chans(self, tmp_path: Path, state: State) -> None:
        torch.save(state, tmp_path / "w.pth")
        with pytest.raises(InputError, match=r"patch_embed\.proj\.weight") as caught:
            loaded(tmp_path / "w.pth", in_chans=1, mean=(0.5,), std=(0.5,))
        assert "--in-chans" in str(caught.value.hint)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
    def test_half_precision_becomes_float32(
        self, tmp_path: Path, module: nn.Module, state: State, dtype: torch.dtype
    ) -> None:
        half = {name: value.to(dtype) for name, value in state.items()}
        save_file(half, tmp_path / "w.safetensors")
        source = loaded(tmp_path / "w.safetensors")
        own = source.module.state_dict()
        assert all(torch.equal(own[name], half[name].float()) for name in half)
        with torch.inference_mode():
            expected = module(torch.from_numpy(images(4, (64, 64)))).numpy()
        assert 0 < deviations(source.logits(images(4, (64, 64))), expected) < 0.1


class TestShards:
    def shards(self, folder: Path, state: State) -> Path:
        names = sorted(state)
        parts = {"one.safetensors": names[:5], "two.safetensors": names[5:]}
        weight_map = {}
        for file, members in parts.items():
            save_file({name: state[name] for name in members}, folder / file)
            weight_map |= dict.fromkeys(members, file)
        index = folder / "model.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": weight_map}))
        return index

    def test_index_and_folder(self, tmp_path: Path, module: nn.Module, state: State) -> None:
        assert_same(self.shards(tmp_path, state), module)
        assert_same(tmp_path, module)

    def test_a_shard_is_missing(self, tmp_path: Path, state: State) -> None:
        index = self.shards(tmp_path, state)
        (tmp_path / "two.safetensors").unlink()
        with pytest.raises(InputError, match=r"lacks 1 of 2 shards: two\.safetensors"):
            loaded(index)

    def test_a_shard_holds_too_little(self, tmp_path: Path, state: State) -> None:
        index = self.shards(tmp_path, state)
        save_file({"norm.weight": state["norm.weight"]}, tmp_path / "two.safetensors")
        with pytest.raises(InputError, match=r"lack \d+ weights"):
            loaded(index)

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            ('{"weight_map": {"a": "../secret.safetensors"}}', "outside its folder"),
            ('{"weight_map": ["a"]}', "no index"),
            ("{", "no index"),
        ],
    )
    def test_an_index_that_cannot_be(self, tmp_path: Path, content: str, words: str) -> None:
        path = tmp_path / "model.safetensors.index.json"
        path.write_text(content)
        with pytest.raises(InputError, match=words):
            checkpoint.read_state(path)

    def test_a_folder_without_weights(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="holds no weights") as caught:
            loaded(tmp_path)
        assert "model.safetensors" in str(caught.value.hint)


PACKAGE = """
from torch import nn
class Settings:
    lr = 0.1
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 2)
"""


def run_script(hint: str, folder: Path) -> None:
    """What the user would do: paste the script of the hint."""
    script = hint[hint.index("python - <<'EOF'") :]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(folder)}
    subprocess.run(["bash", "-ec", script], env=environment, check=True, timeout=300)


class TestScripts:
    @pytest.mark.filterwarnings("ignore:.torch.jit:FutureWarning")
    @pytest.mark.parametrize("kind", ["module", "lightning", "torchscript"])
    def test_what_is_refused_can_be_saved_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
    ) -> None:
        (tmp_path / "their_code.py").write_text(PACKAGE)
        monkeypatch.syspath_prepend(tmp_path)
        import their_code  # type: ignore[import-not-found]

        net = their_code.Net()
        path = tmp_path / "it's theirs.pt"
        if kind == "module":
            torch.save(net, path)
        elif kind == "lightning":
            content = {"state_dict": net.state_dict(), "hyper_parameters": their_code.Settings()}
            torch.save(content, path)
        else:
            buffer = torch.jit.trace(nn.Linear(3, 2), torch.zeros(1, 3), check_trace=False)
            net = nn.ModuleDict({"body": buffer})
            torch.jit.save(buffer, path)
        with pytest.raises(InputError, match="cannot be read") as caught:
            checkpoint.read_state(path)
        run_script(str(caught.value.hint), tmp_path)
        saved = load_file(path.with_suffix(".safetensors"))
        expected = {n.removeprefix("body."): v for n, v in net.state_dict().items()}
        assert {n.removeprefix("body.") for n in saved} == expected.keys()
        assert all(torch.equal(saved[n], expected[n.removeprefix("body.")]) for n in saved)
        del sys.modules["their_code"]

    @pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
    def test_an_adapter_is_merged(self, tmp_path: Path) -> None:
        import peft

        base, adapter = tmp_path / "base", tmp_path / "adapter"
        config = hf.ViTConfig(
            hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
            image_size=32, patch_size=8, num_labels=3,
        )  # fmt: skip
        lively(hf.ViTForImageClassification(config)).save_pretrained(base)
        hf.ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(base)
        model = hf.ViTForImageClassification.from_pretrained(base)
        tuned = peft.get_peft_model(
            model, peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"])
        )
        for name, parameter in tuned.named_parameters():
            if "lora_" in name:
                nn.init.normal_(parameter, generator=torch.Generator().manual_seed(len(name)))
        tuned.save_pretrained(adapter)
        for named in (adapter, adapter / "adapter_model.safetensors"):
            with pytest.raises(InputError, match="LoRA adapter") as caught:
                load_source(ModelRequest(name=NAME, checkpoint=named))
            assert str(base) in str(caught.value.hint)
        with pytest.raises(InputError, match="LoRA adapter"):
            load_source(ModelRequest(name=str(adapter)))
        run_script(str(caught.value.hint), tmp_path)
        merged = load_source(ModelRequest(name=str(tmp_path / "adapter-merged")))
        with torch.inference_mode():
            expected = tuned.eval()(torch.from_numpy(images(4, (32, 32)))).logits.numpy()
        assert deviations(merged.logits(images(4, (32, 32))), expected) <= 1e-5


class TestTimmFolders:
    def test_what_push_to_the_hub_writes(self, tmp_path: Path, module: nn.Module) -> None:
        from timm.models import save_for_hf

        save_for_hf(
            module,
            str(tmp_path),
            model_config={"label_names": ["a", "b", "c"]},
            model_args={**TINY},
            safe_serialization=True,
        )
        source = load_source(ModelRequest(name=str(tmp_path)))
        assert source.description.library == "timm"
        assert source.description.architecture == NAME
        assert source.description.labels == ("a", "b", "c")
        with torch.inference_mode():
            expected = module(torch.from_numpy(images(2, (64, 64)))).numpy()
        np.testing.assert_array_equal(source.logits(images(2, (64, 64))), expected)
        assert source.at((96, 128)).logits(images(2, (96, 128))).shape == (2, 3)
        assert (
            load_source(ModelRequest(name=f"local-dir:{tmp_path}")).description.weights_digest
            == source.description.weights_digest
        )
