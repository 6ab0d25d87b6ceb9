"""Loading source models, and giving them another resolution."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import numpy as np
import pytest
import timm
import timm.data
import torch
from safetensors.torch import load_file, save_file
from timm.layers.pos_embed import resample_abs_pos_embed
from tiny_sources import NAME, TINY, batch_at, tiny
from torch.nn import functional

from vitdeploy.artifacts.source import description_in
from vitdeploy.errors import ExportError, InputError, MissingDependencyError
from vitdeploy.models import checkpoint
from vitdeploy.models.load import ModelRequest, load_source
from vitdeploy.models.source import SourceModel, weights_digest
from vitdeploy.preprocessing import Preprocessing


def with_wide_positions(source: SourceModel) -> SourceModel:
    """Positions of unit deviation, so that a wrong resampling cannot hide."""
    positions = source.module.get_parameter("pos_embed")
    with torch.no_grad():
        positions.copy_(torch.randn(positions.shape, generator=torch.Generator().manual_seed(1)))
    return source


def saved(path: Path, source: SourceModel) -> Path:
    checkpoint.save(path, source.module.state_dict(), source.description)
    return path


class TestNames:
    @pytest.mark.parametrize("name", ["vit_tiny_patch61_224", "vit_tiny_patch16_244.augreg"])
    def test_near_names_are_suggested(self, name: str) -> None:
        with pytest.raises(InputError, match=name) as caught:
            load_source(ModelRequest(name=name, random_weights=True))
        assert NAME in str(caught.value.hint)

    def test_a_file_that_is_no_checkpoint(self, tmp_path: Path) -> None:
        path = tmp_path / "notes.txt"
        path.write_text("no weights")
        with pytest.raises(InputError, match="no kind of checkpoint") as caught:
            load_source(ModelRequest(name=str(path)))
        assert ".safetensors" in str(caught.value.hint)

    def test_a_name_near_nothing(self) -> None:
        with pytest.raises(InputError, match="zzzz") as caught:
            load_source(ModelRequest(name="zzzz", random_weights=True))
        assert "checkpoint" in str(caught.value.hint)

    def test_an_argument_the_model_does_not_take(self) -> None:
        with pytest.raises(InputError, match="deepness") as caught:
            tiny(deepness=3)
        assert "--model-kwargs" in str(caught.value.hint)


class TestWeights:
    def test_none_named_is_an_error(self) -> None:
        with pytest.raises(InputError, match="no weights") as caught:
            load_source(ModelRequest(name=NAME))
        for option in ("--checkpoint", "--pretrained", "--random-weights"):
            assert option in str(caught.value.hint)

    def test_two_named_are_an_error(self) -> None:
        with pytest.raises(InputError, match="more than one"):
            load_source(ModelRequest(name=NAME, pretrained=True, random_weights=True))

    @pytest.mark.parametrize("offline", [True, False])
    def test_a_hub_out_of_reach(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offline: bool
    ) -> None:
        constants = huggingface_hub.constants
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
        monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", "http://127.0.0.1:9/{repo_id}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
        monkeypatch.setattr("time.sleep", lambda seconds: None)  # the hub's client tries again
        with pytest.raises(MissingDependencyError, match="cannot be fetched") as caught:
            load_source(ModelRequest(name=NAME, pretrained=True))
        assert caught.value.exit_code == 3
        assert "--checkpoint" in str(caught.value.hint)

    def test_seeded_random_weights_repeat_and_leave_the_generator_alone(self) -> None:
        torch.manual_seed(5)
        before = torch.random.get_rng_state()
        first, second = tiny(), tiny()
        assert first.description.weights_digest == second.description.weights_digest
        assert torch.equal(before, torch.random.get_rng_state())

    def test_the_digest_sees_names_shapes_types_and_values(self) -> None:
        one = torch.arange(4.0)
        states = [
            {"a": one},
            {"b": one},
            {"a": one.reshape(2, 2)},
            {"a": one.half()},
            {"a": one + 1},
            {"a": one, "b": one},
        ]
        assert len({weights_digest(state) for state in states}) == len(states)
        assert weights_digest({"a": one, "b": one}) == weights_digest({"b": one, "a": one})
        strided = torch.arange(8.0)[::2]
        assert weights_digest({"a": strided}) == weights_digest({"a": strided.clone()})


class TestDescribedCheckpoints:
    def test_round_trip(self, tmp_path: Path) -> None:
        source = tiny()
        path = saved(tmp_path / "mine.safetensors", source)
        loaded = load_source(ModelRequest(name=str(path)))
        assert loaded.description == source.description == description_in(path)
        assert loaded.resolution == (64, 64)
        assert not loaded.module.training
        np.testing.assert_array_equal(
            loaded.logits(batch_at((64, 64))), source.logits(batch_at((64, 64)))
        )

    def test_weights_changed_behind_the_description(self, tmp_path: Path) -> None:
        source = tiny()
        state = {name: value.clone() for name, value in source.module.state_dict().items()}
        state["head.bias"][0] += 1e-3
        checkpoint.save(tmp_path / "a.safetensors", state, source.description)
        with pytest.raises(InputError, match="not those its description"):
            load_source(ModelRequest(name=str(tmp_path / "a.safetensors")))

    @pytest.mark.parametrize(
        ("change", "option"),
        [
            ({"num_classes": 4}, "--num-classes"),
            ({"in_chans": 1}, "--in-chans"),
            ({"model_kwargs": {"depth": 2}}, "--model-kwargs"),
            ({"random_weights": True}, "--random-weights"),
            ({"pretrained": True}, "--pretrained"),
            ({"checkpoint": Path("b.pth")}, "--checkpoint"),
        ],
    )
    def test_options_that_contradict_it(
        self, tmp_path: Path, change: dict[str, Any], option: str
    ) -> None:
        path = saved(tmp_path / "a.safetensors", tiny())
        with pytest.raises(InputError) as caught:
            load_source(ModelRequest(name=str(path), **change))
        assert f"leave {option} out" in str(caught.value.hint)
        load_source(ModelRequest(name=str(path), num_classes=3, model_kwargs={"depth": 1}))

    def test_a_file_without_one_needs_the_architecture(self, tmp_path: Path) -> None:
        save_file(tiny().module.state_dict(), tmp_path / "plain.safetensors")
        torch.save(tiny().module.state_dict(), tmp_path / "plain.pth")
        for name in ("plain.safetensors", "plain.pth"):
            with pytest.raises(InputError, match="which architecture") as caught:
                load_source(ModelRequest(name=str(tmp_path / name)))
            assert "--checkpoint" in str(caught.value.hint)

    def test_another_library(self, tmp_path: Path) -> None:
        source = tiny()
        foreign = replace(source.description, library="keras")
        path = saved(tmp_path / "a.safetensors", replace(source, description=foreign))
        with pytest.raises(InputError, match="keras"):
            load_source(ModelRequest(name=str(path)))

    def test_saving_holds_every_tensor(self, tmp_path: Path) -> None:
        source = tiny()
        own = source.module.state_dict()
        read = load_file(saved(tmp_path / "a.safetensors", source))
        assert read.keys() == own.keys()
        assert all(torch.equal(read[name], own[name]) for name in own)


class TestDescription:
    def test_it_says_what_timm_says(self) -> None:
        source = load_source(ModelRequest(name=NAME, random_weights=True))
        config = timm.data.resolve_data_config({}, model=source.module)
        recipe = source.description.preprocessing
        assert recipe == Preprocessing(
            config["mean"], config["std"], "bicubic", config["crop_pct"], "center"
        )
        assert source.resolution == (224, 224)
        assert source.description.num_classes == 1000
        assert source.description.labels[0] == "n01440764"
        assert source.parameter_count() == sum(p.numel() for p in source.module.parameters())

    def test_a_channel_count_the_preprocessing_does_not_know(self) -> None:
        request = ModelRequest(
            name=NAME, random_weights=True, num_classes=3, in_chans=1, model_kwargs=TINY
        )
        with pytest.raises(InputError, match=r"1 channels.* 3") as caught:
            load_source(request)
        assert "--mean" in str(caught.value.hint)
        gray = load_source(replace(request, preprocessing=Preprocessing((0.5,), (0.5,))))
        assert gray.logits(batch_at((64, 64), 1)).shape == (2, 3)

    def test_labels_must_be_one_per_class(self) -> None:
        request = ModelRequest(
            name=NAME, random_weights=True, num_classes=3, labels=("a", "b"), model_kwargs=TINY
        )
        with pytest.raises(InputError, match=r"2 labels.*3 classes"):
            load_source(request)

    def test_a_model_without_a_head(self) -> None:
        request = ModelRequest(
            name=NAME, random_weights=True, model_kwargs={**TINY, "num_classes": 0}
        )
        with pytest.raises(InputError, match="no classifier head"):
            load_source(request)


def grid_of(source: SourceModel, size: tuple[int, int]) -> tuple[list[int], list[int]]:
    native = [side // 8 for side in source.resolution]
    return native, [side // 8 for side in size]


def resampled(
    positions: torch.Tensor, old: list[int], new: list[int], prefix: int, **how: Any
) -> torch.Tensor:
    """An independent resampling, whose method can be planted wrong."""
    first, grid = positions[:, :prefix], positions[:, prefix:]
    image = grid.reshape(1, *old, -1).permute(0, 3, 1, 2)
    image = functional.interpolate(image, size=new, **how)
    return torch.cat([first, image.permute(0, 2, 3, 1).reshape(1, math.prod(new), -1)], dim=1)


SIZES = [(96, 128), (128, 96), (96, 96), (32, 48), (64, 96)]


class TestResolution:
    @pytest.mark.parametrize("size", SIZES)
    @pytest.mark.parametrize(
        "kwargs", [{}, {"reg_tokens": 4}, {"class_token": False, "global_pool": "avg"}], ids=str
    )
    def test_positions_equal_timms_own_resampling(
        self, size: tuple[int, int], kwargs: dict[str, Any]
    ) -> None:
        source = with_wide_positions(tiny(**kwargs))
        native = source.module.state_dict()["pos_embed"].clone()
        old, new = grid_of(source, size)
        prefix = native.shape[1] - math.prod(old)
        expected = resample_abs_pos_embed(native, new, old, num_prefix_tokens=prefix)
        torch.testing.assert_close(
            source.at(size).module.get_parameter("pos_embed").data, expected, rtol=0, atol=0
        )

    @pytest.mark.parametrize("size", SIZES)
    def test_the_logits_are_those_of_timm_built_at_that_size(self, size: tuple[int, int]) -> None:
        source = with_wide_positions(tiny())
        kwargs = {**TINY, "img_size": size}
        other = timm.create_model(NAME, num_classes=3, **kwargs).eval()
        state = dict(source.module.state_dict())
        old, new = grid_of(source, size)
        state["pos_embed"] = resampled(
            state["pos_embed"], old, new, 1, mode="bicubic", antialias=True
        )
        other.load_state_dict(state)
        with torch.inference_mode():
            expected = other(torch.from_numpy(batch_at(size))).numpy()
        np.testing.assert_allclose(source.at(size).logits(batch_at(size)), expected, atol=2e-6)

    @pytest.mark.parametrize(
        "how",
        [
            {"mode": "nearest"},
            {"mode": "bilinear", "antialias": True},
            {"mode": "bicubic", "align_corners": True},
            {"mode": "bicubic"},
        ],
        ids=str,
    )
    def test_a_planted_resampling_is_seen(self, how: dict[str, Any]) -> None:
        source = with_wide_positions(tiny())
        size = (32, 48)  # smaller: antialiasing changes nothing when enlarging
        old, new = grid_of(source, size)
        wrong = resampled(source.module.state_dict()["pos_embed"], old, new, 1, **how)
        right = source.at(size).module.get_parameter("pos_embed").data
        assert (right - wrong).abs().max() > 0.05

    def test_a_transposed_grid_is_seen(self) -> None:
        source = with_wide_positions(tiny())
        wide, tall = source.at((96, 128)), source.at((128, 96))
        assert (
            wide.module.get_parameter("pos_embed").shape
            == tall.module.get_parameter("pos_embed").shape
        )
        assert (
            wide.module.get_parameter("pos_embed") - tall.module.get_parameter("pos_embed")
        ).abs().max() > 0.5
        old, new = grid_of(source, (96, 128))
        right = resampled(
            source.module.state_dict()["pos_embed"], old, new, 1, mode="bicubic", antialias=True
        )
        torch.testing.assert_close(
            wide.module.get_parameter("pos_embed").data, right, rtol=0, atol=1e-6
        )
        assert (tall.module.get_parameter("pos_embed") - right).abs().max() > 0.5

    def test_the_original_stays_as_it_is(self) -> None:
        source = with_wide_positions(tiny())
        before = weights_digest(source.module.state_dict())
        answers = source.logits(batch_at((64, 64)))
        other = source.at((96, 128))
        with torch.no_grad():
            for parameter in other.module.parameters():
                parameter.zero_()
        assert weights_digest(source.module.state_dict()) == before
        np.testing.assert_array_equal(source.logits(batch_at((64, 64))), answers)
        assert source.resolution == (64, 64)
        assert other.resolution == (96, 128)
        assert other.description is source.description
        assert source.at((64, 64)) is source

    @pytest.mark.parametrize(
        ("size", "near"),
        [((100, 100), "96x96"), ((64, 61), "64x64"), ((3, 64), "8x64"), ((383, 513), "384x512")],
    )
    def test_no_multiple_of_the_patch_names_the_nearest(
        self, size: tuple[int, int], near: str
    ) -> None:
        with pytest.raises(InputError, match="multiple of the patch size 8x8") as caught:
            tiny().at(size)
        assert f"--res {near}" in str(caught.value.hint)

    def test_a_model_that_cannot_change_its_size(self) -> None:
        source = load_source(
            ModelRequest(
                name="mixer_s32_224",
                random_weights=True,
                num_classes=3,
                model_kwargs={"img_size": 64},
            )
        )
        with pytest.raises(ExportError, match=r"mlp_tokens.fc1.weight \(256, 4\)") as caught:
            source.at((96, 96))
        assert "64x64" in str(caught.value.hint)
        assert caught.value.exit_code == 4
