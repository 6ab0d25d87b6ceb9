"""Reading checkpoint files safely: pickled code, damage, wrappers, keys that do not fit."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tiny_sources import NAME, TINY, batch_at, tiny

from vitdeploy.errors import InputError
from vitdeploy.models import checkpoint
from vitdeploy.models.load import ModelRequest, load_source


class _Planted:
    """Unpickling this writes a file: what a hostile checkpoint would do, harmlessly."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self._path),))


class TestCheckpoints:
    @pytest.mark.parametrize(
        "save",
        [torch.save, lambda content, path: path.write_bytes(pickle.dumps(content, protocol=2))],
        ids=["torch", "pickle"],
    )
    def test_pickled_code_is_refused_and_never_run(self, tmp_path: Path, save: Any) -> None:
        trap, path = tmp_path / "executed", tmp_path / "hostile.pth"
        save({"state_dict": {"weight": torch.zeros(1)}, "extra": _Planted(trap)}, path)
        with pytest.raises(InputError, match=r"hostile\.pth") as caught:
            checkpoint.read_state(path)
        assert not trap.exists()
        assert "never run" in str(caught.value.hint)
        with path.open("rb") as stream:  # the trap itself works
            torch.load(stream, weights_only=False) if save is torch.save else pickle.load(stream)
        assert trap.exists()

    @pytest.mark.parametrize("prefix", ["", "module.", "model.", "_orig_mod.", "module.model."])
    @pytest.mark.parametrize("key", [None, "state_dict", "model", "model_ema", "state_dict_ema"])
    def test_wrappers_are_unwrapped(self, tmp_path: Path, prefix: str, key: str | None) -> None:
        source = tiny()
        state = {prefix + name: value for name, value in source.module.state_dict().items()}
        path = tmp_path / "w.pth"
        torch.save(state if key is None else {key: state, "epoch": 3}, path)
        loaded = load_source(
            ModelRequest(name=NAME, checkpoint=path, num_classes=3, model_kwargs=TINY)
        )
        assert loaded.description.weights_digest == source.description.weights_digest
        np.testing.assert_array_equal(
            loaded.logits(batch_at((64, 64))), source.logits(batch_at((64, 64)))
        )

    def test_plain_safetensors(self, tmp_path: Path) -> None:
        source = tiny()
        save_file(source.module.state_dict(), tmp_path / "w.safetensors")
        loaded = load_source(
            ModelRequest(
                name=NAME,
                checkpoint=tmp_path / "w.safetensors",
                num_classes=3,
                model_kwargs=TINY,
            )
        )
        assert loaded.description.weights_digest == source.description.weights_digest

    def test_a_wrong_head_names_the_option(self, tmp_path: Path) -> None:
        torch.save(tiny().module.state_dict(), tmp_path / "w.pth")
        request = ModelRequest(
            name=NAME, checkpoint=tmp_path / "w.pth", num_classes=7, model_kwargs=TINY
        )
        with pytest.raises(InputError, match=r"head\.weight is \(3, 32\)") as caught:
            load_source(request)
        assert "--num-classes" in str(caught.value.hint)

    def test_keys_that_do_not_fit_are_listed(self, tmp_path: Path) -> None:
        state = tiny().module.state_dict()
        state["stray.weight"] = state.pop("norm.weight")
        torch.save(state, tmp_path / "w.pth")
        request = ModelRequest(
            name=NAME, checkpoint=tmp_path / "w.pth", num_classes=3, model_kwargs=TINY
        )
        with pytest.raises(InputError, match=r"norm\.weight.*unexpected: stray") as caught:
            load_source(request)
        assert "--model-kwargs" in str(caught.value.hint)

    @pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
    @pytest.mark.parametrize("length", [0, 3, 100, -10])
    def test_a_file_cut_short(self, tmp_path: Path, suffix: str, length: int) -> None:
        path = tmp_path / f"w{suffix}"
        state = tiny().module.state_dict()
        save_file(state, path) if suffix == ".safetensors" else torch.save(state, path)
        path.write_bytes(path.read_bytes()[:length])
        with pytest.raises(InputError, match=path.name) as caught:
            checkpoint.read_state(path)
        assert caught.value.hint

    @pytest.mark.filterwarnings("ignore:.*pickle protocol:UserWarning")
    @pytest.mark.parametrize("zipped", [True, False])
    def test_damaged_pickles_are_named_whatever_is_damaged(
        self, tmp_path: Path, zipped: bool
    ) -> None:
        path = tmp_path / "w.pth"
        state = {"a.weight": torch.ones(4, 4), "b": torch.zeros(3)}
        torch.save(state, path, _use_new_zipfile_serialization=zipped)
        whole = path.read_bytes()
        generator = np.random.default_rng(0)
        refused: list[InputError] = []
        for _ in range(300):
            content = bytearray(whole)
            for place in generator.integers(0, min(len(whole), 400), 3):
                content[int(place)] = int(generator.integers(0, 256))
            path.write_bytes(content)
            try:
                assert checkpoint.read_state(path)[0]
            except InputError as error:
                refused.append(error)
        assert len(refused) > 100
        assert all("w.pth" in str(error) and error.hint for error in refused)

    @pytest.mark.parametrize("content", [[1, 2], {}, {"lr": 0.1}, {"state_dict": {}}, 3], ids=str)
    def test_what_holds_no_tensors(self, tmp_path: Path, content: object) -> None:
        torch.save(content, tmp_path / "w.pth")
        with pytest.raises(InputError, match=r"w\.pth holds no") as caught:
            checkpoint.read_state(tmp_path / "w.pth")
        assert caught.value.hint

    def test_a_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="does not exist"):
            load_source(ModelRequest(name=str(tmp_path / "none.safetensors")))
