"""torchvision: at every size what the library's own code answers there."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import nano_torchvision
import numpy as np
import onnx_ir
import pytest
import torch
import torchvision
from lively import deviations, images, lively
from PIL import Image
from torch.nn import functional
from torchvision.models.vision_transformer import interpolate_embeddings

from vitdeploy.errors import ExportError, InputError, MissingDependencyError
from vitdeploy.export.export import ExportOptions, export
from vitdeploy.models import checkpoint, torchvision_
from vitdeploy.models.load import ModelRequest, expand, load_source, seeded_random_source
from vitdeploy.models.plain_attention import use_plain_attention
from vitdeploy.models.source import SourceModel, weights_digest
from vitdeploy.preprocessing import Size

NAMES = ("vit_nano", "swin_nano", "swin_v2_nano", "maxvit_nano")


@pytest.fixture(autouse=True, scope="module")
def _nano_models() -> None:
    nano_torchvision.register()


def source_of(name: str, **request: Any) -> SourceModel:
    if name == "maxvit_nano":
        request.setdefault("model_kwargs", {"input_size": [64, 64]})
    asked = ModelRequest(name=f"torchvision:{name}", random_weights=True, num_classes=5, **request)
    source = seeded_random_source(asked, 0)
    lively(source.module)
    return source


def library_vit(source: SourceModel, size: Size) -> torch.nn.Module:
    """torchvision's ViT at `size`: by its own function where it is square."""
    state = dict(source.module.state_dict())
    if size[0] == size[1]:
        state = dict(interpolate_embeddings(size[0], 8, state))  # type: ignore[arg-type]
        other = torchvision.models.get_model("vit_nano", num_classes=5, image_size=size[0])
        other.load_state_dict(state)
        return other.eval()
    table = state["encoder.pos_embedding"]
    grid = table[:, 1:].reshape(1, 8, 8, -1).permute(0, 3, 1, 2)
    new = (size[0] // 8, size[1] // 8)
    grid = functional.interpolate(grid, size=new, mode="bicubic", align_corners=True)
    cells = [grid[0, :, row, column] for row in range(new[0]) for column in range(new[1])]
    other = copy.deepcopy(source.module)
    other.encoder.pos_embedding.data = torch.stack([table[0, 0], *cells])[None]  # type: ignore[union-attr]
    return other


def answer(module: torch.nn.Module, size: Size, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Its own forward, whose assertion that images are square is silenced."""
    monkeypatch.setattr(torch, "_assert", lambda *_: None)
    with torch.inference_mode():
        answered = module(torch.from_numpy(images(4, size))).numpy()
    monkeypatch.undo()
    return answered


class TestResolution:
    @pytest.mark.parametrize("size", [(64, 64), (96, 96), (32, 32), (96, 128), (32, 48)], ids=str)
    def test_vit_answers_as_the_library_does(
        self, monkeypatch: pytest.MonkeyPatch, size: Size
    ) -> None:
        source = source_of("vit_nano")
        expected = answer(library_vit(source, size), size, monkeypatch)
        assert deviations(source.at(size).logits(images(4, size)), expected) <= 1e-5

    @pytest.mark.parametrize("planted", ["open corners", "antialias", "nearest", "transposed"])
    def test_another_resampling_is_seen(
        self, monkeypatch: pytest.MonkeyPatch, planted: str
    ) -> None:
        source, size = source_of("vit_nano"), (32, 48)
        expected = answer(library_vit(source, size), size, monkeypatch)
        monkeypatch.setattr(
            functional, "interpolate", partial(wrongly, functional.interpolate, planted)
        )
        wrong = source.at(size)
        monkeypatch.undo()
        assert deviations(wrong.logits(images(4, size)), expected) > 1e-3

    @pytest.mark.parametrize("name", ["swin_nano", "swin_v2_nano"])
    def test_swin_serves_every_size_as_it_is(self, name: str) -> None:
        source, size = source_of(name), (96, 128)
        with torch.inference_mode():
            expected = source.module(torch.from_numpy(images(3, size))).numpy()
        np.testing.assert_array_equal(source.at(size).logits(images(3, size)), expected)
        assert source.at(size).positions == "none depend on the resolution"

    def test_maxvit_where_its_windows_divide_every_stage(self) -> None:
        source, size = source_of("maxvit_nano"), (128, 128)
        other = torchvision.models.get_model("maxvit_nano", num_classes=5, input_size=size)
        other.load_state_dict(source.module.state_dict())
        with torch.inference_mode():
            expected = other.eval()(torch.from_numpy(images(3, size))).numpy()
        np.testing.assert_array_equal(source.at(size).logits(images(3, size)), expected)

    @pytest.mark.parametrize("size", [(48, 48), (96, 64), (64, 128)], ids=str)
    def test_maxvit_where_they_do_not(self, size: Size) -> None:
        """Not square, its grid attention has more tokens one way than its table."""
        with pytest.raises(ExportError, match=f"cannot run at {size[0]}x{size[1]}") as caught:
            source_of("maxvit_nano").at(size)
        assert "64x64" in str(caught.value.hint)


def wrongly(right: Any, planted: str, *given: Any, **how: Any) -> Any:
    """An interpolation that differs from torchvision's in one thing."""
    if planted == "open corners":
        how["align_corners"] = False
    elif planted == "antialias":
        how = {**how, "align_corners": False, "antialias": True}
    elif planted == "nearest":
        how = {"size": how["size"], "mode": "nearest"}
    else:
        turned = right(*given, **{**how, "size": how["size"][::-1]})
        return turned.transpose(2, 3)
    return right(*given, **how)


class TestPlainAttention:
    @pytest.mark.parametrize(
        "options",
        [{}, {"batch_first": True}, {"bias": False}, {"kdim": 24, "vdim": 40}, {"masked": True}],
        ids=str,
    )
    def test_it_equals_pytorchs(self, options: dict[str, Any]) -> None:
        options = dict(options)
        masked = options.pop("masked", False)
        theirs = lively(torch.nn.MultiheadAttention(32, 4, **options))
        ours = use_plain_attention(copy.deepcopy(theirs))
        generator = torch.Generator().manual_seed(0)
        widths = (32, options.get("kdim", 32), options.get("vdim", 32))
        query, key, value = (torch.randn(6, 6, width, generator=generator) for width in widths)
        mask = torch.rand(6, 6, generator=generator) > 0.7 if masked else None
        for given in ((query, key, value), (query, query, query)):
            if given[1].shape[-1] != widths[1] or given[2].shape[-1] != widths[2]:
                continue
            expected, weights = theirs(*given, attn_mask=mask)
            found, own_weights = ours(*given, attn_mask=mask)
            torch.testing.assert_close(found, expected)
            torch.testing.assert_close(own_weights, weights)
        assert ours.state_dict().keys() == theirs.state_dict().keys()

    def test_an_encoder_layer_takes_no_fused_path(self) -> None:
        layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        theirs = lively(torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
        ours = use_plain_attention(copy.deepcopy(theirs)).eval()
        tokens = torch.randn(3, 7, 32, generator=torch.Generator().manual_seed(0))
        with torch.inference_mode():
            torch.testing.assert_close(ours(tokens), theirs(tokens), atol=1e-5, rtol=1e-5)
            ours.layers[0].self_attn.in_proj_weight.zero_()  # type: ignore[index, union-attr]
            assert not torch.equal(ours(tokens), theirs(tokens))


class TestExport:
    @pytest.mark.parametrize("name", NAMES)
    def test_the_graph_equals_pytorch_at_another_size(self, tmp_path: Path, name: str) -> None:
        size = (128, 128) if name == "maxvit_nano" else (96, 64)
        written = export(source_of(name), ExportOptions(resolution=size), tmp_path)
        assert written.description.verification is not None
        assert written.description.verification.max_error <= 1e-4
        graph = onnx_ir.load(written.path).graph
        assert not {"Resize", "If", "Loop", "Range"} & {node.op_type for node in graph}
        if name == "vit_nano":
            softmax = next(node for node in graph if node.op_type == "Softmax")
            product = softmax.inputs[0].producer()  # type: ignore[union-attr]
            assert product is not None
            assert product.op_type == "MatMul"


class TestNames:
    @pytest.mark.parametrize(
        ("name", "near"),
        [
            ("vit_b_16", "torchvision:vit_b_16"),
            ("torchvision:vit_b_17", "torchvision:vit_b_16"),
            ("vitt", "vit_pytorch:ViT"),
        ],
    )
    def test_near_names_of_every_library(self, name: str, near: str) -> None:
        with pytest.raises(InputError, match=name.rpartition(":")[2]) as caught:
            load_source(ModelRequest(name=name, random_weights=True))
        assert near in str(caught.value.hint)

    def test_wildcards(self) -> None:
        assert expand("torchvision:vit_?_16") == ("torchvision:vit_b_16", "torchvision:vit_l_16")
        assert expand("vit_tiny_patch16_224") == ("vit_tiny_patch16_224",)
        tiny = expand("vit_tiny*")
        assert "vit_tiny_patch16_224" in tiny
        assert all(name.startswith("vit_tiny") for name in tiny)
        for nothing in ("zzz*", "torchvision:zzz*", "transformers:vit*"):
            with pytest.raises(InputError, match="matches"):
                expand(nothing)


class TestDescription:
    def test_preprocessing_and_labels_are_those_of_the_weights(self) -> None:
        request = ModelRequest(name="torchvision:swin_nano", random_weights=True)
        described = load_source(request).description
        entry = torchvision.models.Swin_T_Weights.DEFAULT
        image = np.random.default_rng(0).integers(0, 255, (300, 410, 3)).astype(np.uint8)
        photograph = Image.fromarray(image)
        expected = entry.transforms()(photograph).numpy()
        found = described.preprocessing.apply(photograph, described.native_resolution)
        np.testing.assert_allclose(found, expected, atol=1e-5)
        assert described.labels == tuple(entry.meta["categories"])

    def test_outputs(self) -> None:
        for name, tokens in (("vit_nano", 65), ("swin_nano", 784), ("maxvit_nano", 64)):
            source = source_of(name)
            batch = images(2, source.resolution)
            features = replace(source, output="features").logits(batch)
            head = source.module.get_submodule(torchvision_._head(source.module))
            with torch.inference_mode():
                again = head(torch.from_numpy(features)).numpy()
            np.testing.assert_allclose(again, source.logits(batch), atol=1e-5)
            assert replace(source, output="tokens").logits(batch).shape[:2] == (2, tokens)

    def test_a_described_checkpoint(self, tmp_path: Path) -> None:
        source = source_of("vit_nano")
        path = tmp_path / "mine.safetensors"
        digest = weights_digest(source.module.state_dict())
        described = replace(source.description, weights_digest=digest)
        checkpoint.save(path, source.module.state_dict(), described)
        again = load_source(ModelRequest(name=str(path)))
        np.testing.assert_array_equal(
            again.at((96, 64)).logits(images(2, (96, 64))),
            source.at((96, 64)).logits(images(2, (96, 64))),
        )


class TestPretrained:
    def test_out_of_reach(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        def offline(*_: Any, **__: Any) -> None:
            raise OSError("no route to host")

        monkeypatch.setattr("vitdeploy.models.hub.is_answered", lambda url: True)
        monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", offline)
        with pytest.raises(MissingDependencyError, match="no route to host") as caught:
            load_source(ModelRequest(name="torchvision:vit_nano", pretrained=True))
        assert "--checkpoint" in str(caught.value.hint)

    def test_another_head_is_new_and_the_rest_the_weights(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fetched = torchvision.models.get_model("vit_nano", image_size=224).state_dict()
        monkeypatch.setattr("vitdeploy.models.hub.is_answered", lambda url: True)
        monkeypatch.setattr(
            "torchvision.models._api.load_state_dict_from_url", lambda *_, **__: fetched
        )
        source = load_source(
            ModelRequest(name="torchvision:vit_nano", pretrained=True, num_classes=3)
        )
        state = source.module.state_dict()
        assert source.resolution == (224, 224)
        assert state["heads.head.weight"].shape == (3, 32)
        assert torch.equal(state["class_token"], fetched["class_token"])

    @pytest.mark.parametrize(
        ("request_", "words"),
        [
            ({"name": "torchvision:vit_nano.NONE"}, "no weights 'NONE'"),
            ({"name": "torchvision:vit_nano", "in_chans": 1}, "three channels"),
            ({"name": "torchvision:vit_nano", "model_kwargs": {"deep": 1}}, "deep"),
        ],
        ids=str,
    )
    def test_what_it_does_not_take(self, request_: dict[str, Any], words: str) -> None:
        with pytest.raises(InputError, match=words) as caught:
            load_source(ModelRequest(random_weights=True, **request_))
        assert caught.value.hint
