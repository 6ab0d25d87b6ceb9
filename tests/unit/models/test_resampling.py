"""Positions at another size: by timm's own method where it has one, by kind elsewhere."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np
import pytest
import timm
import torch
from lively import deviations, images, lively
from timm.models.convit import GPSA
from torch import nn
from torch.nn import functional

from vitdeploy.errors import ExportError, InputError
from vitdeploy.models.load import ModelRequest, seeded_random_source
from vitdeploy.models.resampling import Sizes, resample_state
from vitdeploy.models.source import SourceModel
from vitdeploy.models.timm_sizes import _convit_offsets
from vitdeploy.preprocessing import Size


def opened(name: str, **model_kwargs: Any) -> SourceModel:
    request = ModelRequest(
        name=name, random_weights=True, num_classes=10, model_kwargs=model_kwargs or None
    )
    source = seeded_random_source(request, 0)
    lively(source.module)
    return source


class TestTimmsOwn:
    """`create_model(img_size=...)` and timm's checkpoint filter are a second way to the size."""

    @pytest.mark.parametrize(
        ("name", "size"),
        [
            ("vit_tiny_patch16_224", (256, 320)),
            ("vit_tiny_r_s16_p8_224", (256, 320)),
            ("deit_tiny_distilled_patch16_224", (256, 320)),
            ("eva02_tiny_patch14_224", (252, 322)),
            ("beit_base_patch16_224", (240, 256)),
            ("vit_relpos_small_patch16_224", (256, 320)),
            ("swin_tiny_patch4_window7_224", (256, 320)),
            ("swinv2_tiny_window8_256", (256, 320)),
            ("maxvit_rmlp_pico_rw_256", (256, 320)),
            ("test_vit", (192, 224)),
        ],
    )
    def test_equals_a_model_created_at_the_size(self, name: str, size: Size) -> None:
        depth = {"depth": 2} if name.startswith(("beit", "vit_relpos", "eva02")) else {}
        source = opened(name, **depth)
        other = timm.create_model(name, num_classes=10, img_size=size, **depth).eval()
        state = {key: value.clone() for key, value in source.module.state_dict().items()}
        keep = getattr(sys.modules[type(other).__module__], "checkpoint_filter_fn", None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # raised in timm's own resampling
            other.load_state_dict(state if keep is None else keep(state, other))
        batch = images(2, size)
        with torch.inference_mode():
            expected = other(torch.from_numpy(batch)).numpy()
        assert deviations(source.at(size).logits(batch), expected) < 1e-5

    def test_swin_keeps_its_window_and_tables(self) -> None:
        source = opened("swin_tiny_patch4_window7_224")
        sized = source.at((288, 352))
        assert sized.module.layers[0].blocks[0].window_size == (7, 7)  # type: ignore[index,union-attr]
        own, other = source.module.state_dict(), sized.module.state_dict()
        tables = [name for name in own if "relative_position_bias_table" in name]
        assert tables
        assert all(torch.equal(own[name], other[name]) for name in tables)
        assert "7x7" in sized.positions


class TestByKind:
    """Families for which timm has no method: each kind against its definition."""

    @pytest.mark.parametrize(
        ("name", "size", "kind"),
        [
            ("pit_ti_224", (256, 320), "grid"),
            ("volo_d1_224", (256, 320), "grid"),
            ("convit_tiny", (256, 320), "tokens"),
            ("cait_xxs24_224", (256, 320), "tokens"),
            ("hiera_tiny_224", (256, 320), "tokens"),
            ("levit_128s", (256, 320), "offset biases"),
            ("gcvit_xxtiny", (256, 320), "relative bias tables"),
            ("samvit_base_patch16_224", (256, 320), "axis offsets"),
        ],
    )
    def test_is_named_and_everything_else_is_as_trained(
        self, name: str, size: Size, kind: str
    ) -> None:
        source = opened(name)
        sized = source.at(size)
        assert sized.positions.startswith(f"vitdeploy: {kind}")
        own, other = source.module.state_dict(), sized.module.state_dict()
        assert own.keys() == other.keys()
        changed = [key for key in own if own[key].shape != other[key].shape]
        assert changed
        for key in own.keys() - set(changed):
            assert torch.equal(own[key], other[key]), key
        assert sized.logits(images(1, size)).shape == (1, 10)

    def test_tokens_keep_their_prefix_and_their_orientation(self) -> None:
        """A ramp along the width stays one: rows and columns are not mixed up."""
        ramp = torch.arange(6.0).repeat(4, 1).reshape(1, 24, 1)
        prefix = torch.tensor([[[-7.0], [9.0]]])
        state = {"pos_embed": torch.cat([prefix, ramp], dim=1)}
        wanted = {"pos_embed": torch.zeros(1, 2 + 8 * 9, 1)}
        found, kinds = resample_state(state, wanted, Sizes((64, 96), (128, 144)))
        grid = found["pos_embed"][0, 2:, 0].reshape(8, 9)
        assert kinds == "tokens, bicubic with antialias"
        assert torch.equal(found["pos_embed"][:, :2], prefix)
        assert torch.allclose(grid, grid[:1].expand(8, 9), atol=1e-5)
        assert (grid[0, 1:] > grid[0, :-1]).all()

    def test_grids_are_antialiased_in_either_layout(self) -> None:
        table = torch.randn(1, 12, 10, 3, generator=torch.Generator().manual_seed(0))
        expected = functional.interpolate(
            table.permute(0, 3, 1, 2), size=(6, 7), mode="bicubic", antialias=True
        )
        sizes = Sizes((192, 160), (96, 112))
        last, _ = resample_state({"pos": table}, {"pos": torch.zeros(1, 6, 7, 3)}, sizes)
        first, _ = resample_state(
            {"pos": table.permute(0, 3, 1, 2)}, {"pos": torch.zeros(1, 3, 6, 7)}, sizes
        )
        assert torch.equal(last["pos"], expected.permute(0, 2, 3, 1))
        assert torch.equal(first["pos"], expected)

    def test_index_tables_are_the_new_sizes_own(self) -> None:
        wanted = {"attention_bias_idxs": torch.arange(4)}
        found, _ = resample_state(
            {"attention_bias_idxs": torch.arange(9)}, wanted, Sizes((32, 32), (64, 64))
        )
        assert torch.equal(found["attention_bias_idxs"], torch.arange(4))

    def test_a_weight_that_only_the_new_size_has_is_never_made_up(self) -> None:
        own = {"head.weight": torch.ones(2, 2)}
        wanted = {**own, "stage.4.norm.weight": torch.ones(2)}
        with pytest.raises(ExportError, match=r"stage.4.norm.weight is of that size only"):
            resample_state(own, wanted, Sizes((32, 32), (64, 64)))

    def test_what_is_no_position_is_refused_by_name(self) -> None:
        state = {"mlp_tokens.fc1.weight": torch.zeros(8, 4)}
        wanted = {"mlp_tokens.fc1.weight": torch.zeros(8, 9)}
        with pytest.raises(ExportError, match=r"mlp_tokens.fc1.weight \(8, 4\) to \(8, 9\)"):
            resample_state(state, wanted, Sizes((32, 32), (48, 48)))


def test_convit_offsets_equal_timms_on_squares_and_follow_rows_elsewhere() -> None:
    attention = GPSA(dim=8, num_heads=2)
    assert torch.equal(_convit_offsets((5, 5)), attention.get_rel_indices(25))
    oblong = _convit_offsets((2, 3))[0]
    # From token 0 (row 0, column 0) to token 5 (row 1, column 2).
    assert oblong[0, 5].tolist() == [2.0, 1.0, 5.0]


class TestAt:
    def test_always_resamples_from_the_native_size(self) -> None:
        source = opened("test_vit")
        batch = images(2, (192, 192))
        through = source.at((96, 224)).at((192, 192))
        np.testing.assert_array_equal(through.logits(batch), source.at((192, 192)).logits(batch))
        assert through.at(source.resolution).module is source.module

    def test_a_hybrid_counts_the_stride_of_its_stem(self) -> None:
        source = opened("vit_tiny_r_s16_p8_224")
        with pytest.raises(InputError, match="32x32"):
            source.at((240, 256))

    def test_hiera_counts_whole_mask_units(self) -> None:
        with pytest.raises(InputError, match="32x32") as caught:
            opened("hiera_tiny_224").at((240, 256))
        assert "--res 256x256" in str(caught.value.hint)

    def test_sizes_an_architecture_cannot_take_are_refused_before_tracing(self) -> None:
        with pytest.raises(ExportError, match="cannot run at 240x256"):
            opened("maxvit_rmlp_pico_rw_256").at((240, 256))


class TestTraceable:
    @pytest.mark.parametrize(
        ("name", "kwargs", "size"),
        [
            ("test_vit2", {"img_size": 96, "patch_size": 8}, (128, 160)),
            ("vit_tiny_patch16_224", {"dynamic_img_size": True, "depth": 2}, (256, 320)),
            ("naflexvit_base_patch16_gap", {"depth": 1}, (256, 320)),
            ("naflexvit_base_patch16_par_gap", {"depth": 1}, (256, 320)),
        ],
    )
    def test_computes_the_same_without_resampling(
        self, name: str, kwargs: dict[str, Any], size: Size, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sized = opened(name, **kwargs).at(size)
        batch = images(2, size)
        expected = sized.logits(batch)
        module = sized.traceable()

        def never(*_: Any, **__: Any) -> torch.Tensor:
            raise AssertionError("positions were resampled in the forward pass")

        monkeypatch.setattr(functional, "interpolate", never)
        with torch.inference_mode():
            found = module(torch.from_numpy(batch)).numpy()
        assert deviations(found, expected) < 1e-4

    def test_leaves_the_source_as_it_was(self) -> None:
        source = opened("test_vit2", img_size=96, patch_size=8)
        source.traceable()
        assert source.module.dynamic_img_size is True
        assert all(
            part.fused_attn for part in source.module.modules() if hasattr(part, "fused_attn")
        )


class TestOutputs:
    @pytest.mark.parametrize("name", ["test_vit", "swin_tiny_patch4_window7_224"])
    def test_features_and_tokens_are_what_the_head_is_put_on(self, name: str) -> None:
        source = opened(name)
        module: Any = source.module
        batch = images(2, source.resolution)
        features = source.library.features_of(module)
        tokens = source.library.tokens_of(module)
        with torch.inference_mode():
            logits = module(torch.from_numpy(batch))
            pooled = features(torch.from_numpy(batch))
            every = tokens(torch.from_numpy(batch))
            head: nn.Module = module.get_classifier()
            assert torch.allclose(head(pooled), logits, atol=1e-5)
        assert every.ndim == 3
        assert every.shape[-1] == pooled.shape[-1]
