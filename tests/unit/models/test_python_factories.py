"""Python factories: vit-pytorch's models, the user's own, and what is theirs when it fails."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir
import pytest
import torch
from lively import deviations, images, lively
from timm.layers.pos_embed import resample_abs_pos_embed
from vit_pytorch import ViT
from vit_pytorch.simple_vit import SimpleViT

from vitdeploy.errors import ExportError, InputError
from vitdeploy.export.export import ExportOptions, export
from vitdeploy.models import checkpoint
from vitdeploy.models.load import ModelRequest, load_source, seeded_random_source
from vitdeploy.models.source import SourceModel, weights_digest
from vitdeploy.preprocessing import Size

HALF = (0.5, 0.5, 0.5)
SHAPE: dict[str, Any] = {
    "image_size": 64,
    "patch_size": 8,
    "num_classes": 5,
    "dim": 32,
    "depth": 2,
    "heads": 4,
    "mlp_dim": 64,
    "dim_head": 8,
}
CLASSES: dict[str, Any] = {
    "vit_pytorch:ViT": ViT,
    "vit_pytorch.simple_vit:SimpleViT": SimpleViT,
}


def request_of(name: str, **given: Any) -> ModelRequest:
    given = {"random_weights": True, "mean": HALF, "std": HALF, **given}
    return ModelRequest(name=name, **given)


def source_of(name: str, **given: Any) -> SourceModel:
    return alive(seeded_random_source(request_of(name, **given), 0))


def alive(source: SourceModel) -> SourceModel:
    lively(source.module)
    digest = weights_digest(source.module.state_dict())
    return replace(source, description=replace(source.description, weights_digest=digest))


OWN = """
import torch
from torch import nn
from sibling import WIDTH

class Net(nn.Module):
    def __init__(self, img_size, num_labels, in_channels, answers):
        super().__init__()
        size = (img_size, img_size) if isinstance(img_size, int) else img_size
        self.conv = nn.Conv2d(in_channels, WIDTH, 8, 8)
        self.pos_embed = nn.Parameter(torch.randn(1, size[0] // 8 * (size[1] // 8), WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 64, batch_first=True, activation="gelu")
        self.blocks = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, num_labels)
        self.answers = answers

    def forward(self, x):
        tokens = self.blocks(self.conv(x).flatten(2).transpose(1, 2) + self.pos_embed)
        logits = self.head(tokens.mean(1))
        return {
            "tensor": logits,
            "tuple": (tokens, logits),
            "dict": {"tokens": tokens, "logits": logits},
            "two": (logits, logits),
            "keys": {"tokens": tokens},
            "tokens": tokens,
            "text": "logits",
        }[self.answers]

def make(img_size=64, num_labels=5, in_channels=3, answers="tensor"):
    return Net(img_size, num_labels, in_channels, answers)

def broken(image_size=64):
    raise RuntimeError("my own mistake\\nwith a second line")

def number(image_size=64):
    return 3

def sizeless():
    return nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, 3))

def fixed():
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 3))
    model.image_size = 8
    return model

def pooled():
    model = sizeless()
    model.image_size = (8, 16)
    return model

constant = 7
"""


@pytest.fixture
def own(tmp_path: Path) -> Iterator[str]:
    """The path of a user's file, which imports another beside it."""
    (tmp_path / "sibling.py").write_text("WIDTH = 32\n")
    (tmp_path / "mine.py").write_text(OWN)
    yield str(tmp_path / "mine.py")
    sys.modules.pop("sibling", None)


class TestResolution:
    @pytest.mark.parametrize("size", [(64, 64), (96, 128), (32, 48)], ids=str)
    @pytest.mark.parametrize("name", CLASSES)
    def test_vit_pytorch_at_that_size_with_timms_resampling(self, name: str, size: Size) -> None:
        source = source_of(name, model_kwargs=SHAPE)
        other = CLASSES[name](**{**SHAPE, "image_size": size}).eval()
        state = dict(source.module.wrapped.state_dict())  # type: ignore[operator, union-attr]
        if name == "vit_pytorch:ViT":
            new = [side // 8 for side in size]
            table = resample_abs_pos_embed(state["pos_embedding"][None], new, [8, 8])
            state["pos_embedding"] = table[0]
        other.load_state_dict(state)
        with torch.inference_mode():
            expected = other(torch.from_numpy(images(4, size))).numpy()
        assert deviations(source.at(size).logits(images(4, size)), expected) <= 1e-5

    def test_another_resampling_is_seen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        source, size = source_of("vit_pytorch:ViT", model_kwargs=SHAPE), (32, 48)
        right = source.at(size).logits(images(4, size))
        interpolate = torch.nn.functional.interpolate
        monkeypatch.setattr(
            torch.nn.functional,
            "interpolate",
            lambda *given, **how: interpolate(*given, **{**how, "antialias": False}),
        )
        assert deviations(source.at(size).logits(images(4, size)), right) > 1e-3

    def test_what_is_said_of_the_positions(self) -> None:
        size = (96, 128)
        learned = source_of("vit_pytorch:ViT", model_kwargs=SHAPE).at(size)
        assert learned.positions == "vitdeploy: tokens, bicubic with antialias"
        simple = source_of("vit_pytorch.simple_vit:SimpleViT", model_kwargs=SHAPE).at(size)
        assert simple.positions == "made by the factory for the resolution"

    def test_a_factory_without_a_size(self, own: str) -> None:
        pooled = source_of(f"{own}:pooled")
        assert pooled.resolution == (8, 16)
        assert pooled.at((32, 32)).logits(images(2, (32, 32))).shape == (2, 3)
        with pytest.raises(ExportError, match="cannot run at 16x16"):
            source_of(f"{own}:fixed").at((16, 16))
        with pytest.raises(InputError, match=r"image size .* is not known") as caught:
            source_of(f"{own}:sizeless")
        assert "image_size" in str(caught.value.hint)


class TestExport:
    @pytest.mark.parametrize("name", [*CLASSES, "own"])
    def test_the_graph_equals_pytorch_at_a_size_that_is_not_square(
        self, tmp_path: Path, own: str, name: str
    ) -> None:
        source = source_of(f"{own}:make") if name == "own" else source_of(name, model_kwargs=SHAPE)
        written = export(source, ExportOptions(resolution=(96, 64)), tmp_path)
        assert written.description.verification is not None
        assert written.description.verification.max_error <= 1e-4
        graph = onnx_ir.load(written.path).graph
        assert not {"Resize", "If", "Loop", "Range"} & {node.op_type for node in graph}


class TestFactories:
    def test_options_reach_it_under_its_own_names(self, own: str) -> None:
        source = source_of(
            f"{own}:make", num_classes=7, in_chans=1, mean=(0.5,), std=(0.5,),
            model_kwargs={"img_size": [32, 48]},
        )  # fmt: skip
        assert source.resolution == (32, 48)
        assert source.description.in_chans == 1
        assert source.description.num_classes == 7
        assert source.logits(images(2, (32, 48), channels=1)).shape == (2, 7)
        assert source.at((64, 64)).logits(images(2, (64, 64), channels=1)).shape == (2, 7)

    @pytest.mark.parametrize(
        ("answers", "said"),
        [("tensor", "random weights"), ("tuple", "output 1"), ("dict", "output 'logits'")],
    )
    def test_which_part_of_the_answer_is_taken(self, own: str, answers: str, said: str) -> None:
        source = source_of(f"{own}:make", model_kwargs={"answers": answers})
        plain = source_of(f"{own}:make")
        np.testing.assert_array_equal(
            source.logits(images(2, (64, 64))), plain.logits(images(2, (64, 64)))
        )
        assert said in source.description.origin

    @pytest.mark.parametrize(
        ("answers", "words"),
        [
            ("two", "answers 2 tensors"),
            ("keys", "dict with tokens, in which there are no logits"),
            ("tokens", r"answers \(2, 64, 32\) for two images"),
            ("text", "answers a str"),
        ],
    )
    def test_answers_that_cannot_be_taken(self, own: str, answers: str, words: str) -> None:
        with pytest.raises(InputError, match=words) as caught:
            source_of(f"{own}:make", model_kwargs={"answers": answers})
        assert "wrap the model" in str(caught.value.hint)

    def test_the_users_errors_are_the_users(self, own: str) -> None:
        with pytest.raises(InputError, match=r"RuntimeError: my own mistake$") as caught:
            source_of(f"{own}:broken")
        assert f"{own}:" in str(caught.value.hint)
        with pytest.raises(InputError, match=r"missing .* required") as caught:
            source_of("vit_pytorch:ViT", model_kwargs={"image_size": 64})
        assert "--model-kwargs" in str(caught.value.hint)

    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("{own}:nothing", "no callable 'nothing'"),
            ("{own}:constant", "no callable 'constant'"),
            ("{own}:number", "returned a int"),
            ("{own}", "not a factory"),
            ("no_such_package.models:make", "no module is called 'no_such_package'"),
            ("none.py:make", "does not exist"),
        ],
    )
    def test_names_that_lead_nowhere(self, own: str, name: str, words: str) -> None:
        with pytest.raises(InputError, match=words) as caught:
            source_of(name.format(own=own))
        assert caught.value.hint

    def test_a_file_that_fails_to_import(self, tmp_path: Path) -> None:
        path = tmp_path / "half.py"
        path.write_text("import absent_dependency\n")
        with pytest.raises(InputError, match="ModuleNotFoundError: No module named") as caught:
            source_of(f"{path}:make")
        assert "half.py:1" in str(caught.value.hint)

    def test_a_module_of_the_working_folder(
        self, own: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = list(sys.path)
        monkeypatch.chdir(Path(own).parent)
        try:
            assert source_of("mine:make").description.num_classes == 5
        finally:
            sys.modules.pop("mine", None)
        assert sys.path == before

    def test_weights_are_asked_for(self, own: str) -> None:
        with pytest.raises(InputError, match="no weights"):
            source_of(f"{own}:make", random_weights=False)
        trained = source_of(f"{own}:make", random_weights=False, pretrained=True)
        assert trained.description.origin == "pretrained weights"

    def test_preprocessing_is_asked_for(self, own: str) -> None:
        with pytest.raises(InputError, match="how its images are prepared") as caught:
            source_of(f"{own}:make", mean=None)
        assert "--mean" in str(caught.value.hint)

    def test_outputs(self, own: str) -> None:
        source = source_of(f"{own}:make")
        features = replace(source, output="features").logits(images(2, (64, 64)))
        head = source.module.wrapped.head  # type: ignore[union-attr]
        with torch.inference_mode():
            again = head(torch.from_numpy(features)).numpy()  # type: ignore[operator]
        np.testing.assert_allclose(again, source.logits(images(2, (64, 64))), atol=1e-5)
        with pytest.raises(InputError, match="tokens cannot be told"):
            replace(source, output="tokens").logits(images(1, (64, 64)))

    def test_a_feature_tower_keeps_its_last_layer(self, own: str) -> None:
        tower = source_of(f"{own}:make", task="features")
        assert tower.description.labels == ()
        assert tower.logits(images(2, (64, 64))).shape == (2, 5)
        assert tower.at((32, 32)).logits(images(2, (32, 32))).shape == (2, 5)


class TestDescribedCheckpoints:
    def test_no_file_chooses_the_code_that_runs(self, own: str, tmp_path: Path) -> None:
        source = source_of(f"{own}:make", labels=("a", "b", "c", "d", "e"))
        path = tmp_path / "mine.safetensors"
        checkpoint.save(path, source.module.state_dict(), source.description)
        trap = tmp_path / "ran"
        Path(own).write_text(f"from pathlib import Path\nPath({str(trap)!r}).touch()\n{OWN}")
        for name in [name for name in sys.modules if name.startswith("_vitdeploy_factory_")]:
            del sys.modules[name]
        with pytest.raises(InputError, match="no file may choose which code") as caught:
            load_source(ModelRequest(name=str(path)))
        assert f"--model {own}:make --checkpoint {path}" in str(caught.value.hint)
        assert not trap.exists()
        again = load_source(ModelRequest(name=f"{own}:make", checkpoint=path))
        assert trap.exists()
        assert again.description == source.description
        np.testing.assert_array_equal(
            again.logits(images(2, (64, 64))), source.logits(images(2, (64, 64)))
        )

    def test_it_belongs_to_the_factory_named_only(self, own: str, tmp_path: Path) -> None:
        source = source_of(f"{own}:make")
        path = tmp_path / "mine.safetensors"
        checkpoint.save(path, source.module.state_dict(), source.description)
        with pytest.raises(InputError, match="does not fit"):
            load_source(
                request_of(
                    "vit_pytorch:ViT", random_weights=False, checkpoint=path, model_kwargs=SHAPE
                )
            )
