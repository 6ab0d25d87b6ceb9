"""transformers: at every size what the library's own forward answers there."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import numpy as np
import onnx_ir
import pytest
import torch
import transformers as hf
from lively import deviations, images, lively
from numpy.typing import NDArray
from torch.nn import functional

from vitdeploy.artifacts.source import Task
from vitdeploy.errors import ExportError, InputError, MissingDependencyError
from vitdeploy.export.export import ExportOptions, export
from vitdeploy.models import checkpoint
from vitdeploy.models.load import ModelRequest, load_source
from vitdeploy.models.source import SourceModel
from vitdeploy.preprocessing import Size

NATIVE: Size = (64, 64)
HALF: tuple[float, ...] = (0.5, 0.5, 0.5)

VIT: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 64,
    "patch_size": 8,
    "num_labels": 5,
}
MLP: dict[str, Any] = {**VIT, "intermediate_size": 64}
SWIN: dict[str, Any] = {
    "embed_dim": 16,
    "depths": [2, 2],
    "num_heads": [2, 4],
    "window_size": 4,
    "image_size": 64,
    "patch_size": 4,
    "num_labels": 5,
}

FAMILIES: dict[str, Callable[[], Any]] = {
    "vit": lambda: hf.ViTForImageClassification(hf.ViTConfig(**MLP)),
    "vit-tower": lambda: hf.ViTModel(hf.ViTConfig(**MLP)),
    "deit": lambda: hf.DeiTForImageClassification(hf.DeiTConfig(**MLP)),
    "deit-distilled": lambda: hf.DeiTForImageClassificationWithTeacher(hf.DeiTConfig(**MLP)),
    "beit-absolute": lambda: hf.BeitForImageClassification(
        hf.BeitConfig(**MLP, use_absolute_position_embeddings=True)
    ),
    "beit-relative": lambda: hf.BeitForImageClassification(
        hf.BeitConfig(**MLP, use_relative_position_bias=True)
    ),
    "beit-shared": lambda: hf.BeitForImageClassification(
        hf.BeitConfig(**MLP, use_shared_relative_position_bias=True, use_mean_pooling=False)
    ),
    "dinov2": lambda: hf.Dinov2ForImageClassification(hf.Dinov2Config(**VIT)),
    "dinov2-tower": lambda: hf.Dinov2Model(hf.Dinov2Config(**VIT)),
    "dinov2-registers": lambda: hf.Dinov2WithRegistersForImageClassification(
        hf.Dinov2WithRegistersConfig(**VIT)
    ),
    "swin": lambda: hf.SwinForImageClassification(hf.SwinConfig(**SWIN)),
    "swin-absolute": lambda: hf.SwinForImageClassification(
        hf.SwinConfig(**SWIN, use_absolute_embeddings=True)
    ),
    "swinv2": lambda: hf.Swinv2ForImageClassification(hf.Swinv2Config(**SWIN)),
    "clip": lambda: hf.CLIPVisionModel(hf.CLIPVisionConfig(**MLP)),
    "clip-projected": lambda: hf.CLIPVisionModelWithProjection(
        hf.CLIPVisionConfig(**MLP, projection_dim=16)
    ),
    "siglip": lambda: hf.SiglipVisionModel(hf.SiglipVisionConfig(**MLP)),
    "dinov3-tower": lambda: hf.DINOv3ViTModel(hf.DINOv3ViTConfig(**MLP)),
}
RESAMPLED = sorted(FAMILIES.keys() - {"swin", "swinv2", "dinov3-tower"})
EXPORTED = (
    "vit", "deit-distilled", "beit-relative", "beit-shared", "dinov2-registers", "swin",
    "swinv2", "clip-projected", "siglip", "dinov3-tower",
)  # fmt: skip
"""One of each kind: the others trace the same modules."""


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder save_pretrained wrote of a family's model."""
    root = tmp_path_factory.mktemp("families")

    def folder(name: str) -> Path:
        path = root / name
        if not path.is_dir():
            lively(FAMILIES[name]()).save_pretrained(path)
        return path

    return folder


def task_of(name: str) -> Task | None:
    return "features" if name.startswith(("clip", "siglip")) or name.endswith("tower") else None


def opened(folder: Path, task: Task | None = None, **request: Any) -> SourceModel:
    return load_source(ModelRequest(name=str(folder), mean=HALF, std=HALF, task=task, **request))


def library_answer(folder: Path, batch: NDArray[np.float32]) -> NDArray[np.float32]:
    """The library's own model, freshly loaded, with its own resampling while it runs."""
    name = json.loads((folder / "config.json").read_text())["architectures"][0]
    module = getattr(hf, name).from_pretrained(folder, attn_implementation="eager").eval()
    # These resample without being asked, and hand what they do not know to their layers.
    asked = {} if "Dino" in name or "DINO" in name else {"interpolate_pos_encoding": True}
    with torch.inference_mode():
        output = module(pixel_values=torch.from_numpy(batch), **asked)
    for part in ("logits", "image_embeds", "pooler_output"):
        if getattr(output, part, None) is not None:
            return getattr(output, part).numpy()
    raise AssertionError(f"{name} answers {output.keys()}")


class TestResolution:
    @pytest.mark.parametrize("size", [NATIVE, (96, 128), (32, 48), (128, 128)], ids=str)
    @pytest.mark.parametrize("name", FAMILIES)
    def test_it_answers_as_the_library_does(
        self, folder_of: Callable[[str], Path], name: str, size: Size
    ) -> None:
        source = opened(folder_of(name), task_of(name)).at(size)
        expected = library_answer(folder_of(name), images(4, size))
        assert deviations(source.logits(images(4, size)), expected) <= 1e-5

    @pytest.mark.parametrize("planted", ["antialias", "corners", "nearest", "transposed"])
    @pytest.mark.parametrize("name", RESAMPLED)
    def test_another_resampling_is_seen(
        self,
        folder_of: Callable[[str], Path],
        monkeypatch: pytest.MonkeyPatch,
        name: str,
        planted: str,
    ) -> None:
        folder, size = folder_of(name), (32, 48)
        expected = library_answer(folder, images(4, size))
        source = opened(folder, task_of(name))
        monkeypatch.setattr(
            torch.nn.functional, "interpolate", partial(wrongly, functional.interpolate, planted)
        )
        wrong = source.at(size)
        monkeypatch.undo()
        assert deviations(wrong.logits(images(4, size)), expected) > 1e-3

    def test_windows_do_not_depend_on_what_was_run_before(self, tmp_path: Path) -> None:
        """Swin's layers forget their shift on the first image that is one window wide."""
        config = hf.SwinConfig(**{**SWIN, "window_size": 8})
        lively(hf.SwinForImageClassification(config)).save_pretrained(tmp_path)
        source, size = opened(tmp_path), (128, 128)
        source.logits(images(2, NATIVE))
        expected = library_answer(tmp_path, images(4, size))
        assert deviations(source.at(size).logits(images(4, size)), expected) <= 1e-5
        forgetful = replace(source.at(size), module=source.module)
        assert deviations(forgetful.logits(images(4, size)), expected) > 1e-3

    def test_the_file_says_whose_method_it_was(self, folder_of: Callable[[str], Path]) -> None:
        assert opened(folder_of("vit")).at((96, 64)).positions == (
            f"transformers {hf.__version__}: ViTEmbeddings.interpolate_pos_encoding"
        )
        assert (
            "BeitRelativePositionBias" in opened(folder_of("beit-relative")).at((96, 64)).positions
        )
        assert opened(folder_of("swin")).at((96, 64)).positions == "none depend on the resolution"

    def test_the_native_model_stays_as_it_is(self, folder_of: Callable[[str], Path]) -> None:
        source = opened(folder_of("dinov2"))
        before = source.logits(images(2, NATIVE))
        source.at((96, 128)).traceable()
        source.traceable()
        np.testing.assert_array_equal(source.logits(images(2, NATIVE)), before)

    def test_tables_that_are_not_square_are_refused_before_tracing(self, tmp_path: Path) -> None:
        config = hf.ViTConfig(**{**MLP, "image_size": (32, 64)})
        lively(hf.ViTForImageClassification(config)).save_pretrained(tmp_path)
        source = opened(tmp_path)
        assert source.resolution == (32, 64)
        with pytest.raises(ExportError, match=r"square images only, .* 32x64") as caught:
            source.at((64, 64))
        assert "timm" in str(caught.value.hint)

    def test_a_size_the_windows_do_not_take(self, folder_of: Callable[[str], Path]) -> None:
        with pytest.raises(ExportError, match="cannot run at 8x8"):
            opened(folder_of("swin")).at((8, 8))


def wrongly(right: Callable[..., torch.Tensor], planted: str, *given: Any, **how: Any) -> Any:
    """An interpolation that differs from the library's in one thing."""
    if planted == "antialias":
        how = {**how, "antialias": not how.get("antialias", False)}
    elif planted == "corners":
        how = {**how, "align_corners": True, "antialias": False}
    elif planted == "nearest":
        how = {"size": how["size"], "mode": "nearest"}
    else:
        height, width = how["size"]
        turned = right(*given, **{**how, "size": (width, height)})
        return turned.transpose(2, 3).contiguous(memory_format=torch.channels_last)
    return right(*given, **how)


class TestExport:
    @pytest.mark.parametrize("name", EXPORTED)
    def test_the_graph_equals_pytorch_at_a_size_that_is_not_square(
        self, folder_of: Callable[[str], Path], tmp_path: Path, name: str
    ) -> None:
        source = opened(folder_of(name), task_of(name))
        written = export(source, ExportOptions(resolution=(96, 64)), tmp_path)
        check = written.description.verification
        assert check is not None
        assert check.max_error <= 1e-4
        graph = onnx_ir.load(written.path)
        assert not {"Resize", "If", "Loop", "Range"} & {node.op_type for node in graph.graph}
        names = [node.name or "" for node in graph.graph]
        assert not any("wrapped" in name for name in (*names, *graph.graph.initializers))

    def test_queries_are_scaled_before_the_first_product(
        self, folder_of: Callable[[str], Path], tmp_path: Path
    ) -> None:
        written = export(opened(folder_of("vit")), ExportOptions(), tmp_path)
        graph = onnx_ir.load(written.path).graph
        softmax = next(node for node in graph if node.op_type == "Softmax")
        scores = softmax.inputs[0].producer()  # type: ignore[union-attr]
        assert scores is not None
        assert scores.op_type == "MatMul"


class TestFolders:
    def test_what_the_configuration_says(self, tmp_path: Path) -> None:
        labels = ("tit", "wren", "robin")
        config = hf.ViTConfig(**{**MLP, "num_labels": 3}, id2label=dict(enumerate(labels)))
        config.problem_type = "multi_label_classification"
        lively(hf.ViTForImageClassification(config)).save_pretrained(tmp_path)
        source = opened(tmp_path)
        described = source.description
        assert described.labels == labels
        assert described.task == "multilabel"
        assert described.native_resolution == NATIVE
        assert described.library == "transformers"
        assert described.architecture == "ViTForImageClassification"
        assert described.origin == f"{tmp_path.name}/model.safetensors"
        assert replace(source, output="features").logits(images(2, NATIVE)).shape == (2, 32)
        assert replace(source, output="tokens").logits(images(2, NATIVE)).shape == (2, 65, 32)

    @pytest.mark.parametrize("name", ["vit", "swinv2", "siglip"])
    def test_a_described_checkpoint_needs_no_folder(
        self, folder_of: Callable[[str], Path], tmp_path: Path, name: str
    ) -> None:
        source = opened(folder_of(name), task_of(name))
        path = tmp_path / "mine.safetensors"
        checkpoint.save(path, source.module.state_dict(), source.description)
        again = load_source(ModelRequest(name=str(path)))
        assert again.description == source.description
        np.testing.assert_array_equal(
            again.at((96, 128)).logits(images(2, (96, 128))),
            source.at((96, 128)).logits(images(2, (96, 128))),
        )

    @pytest.mark.parametrize("kind", ["sharded", "half", "pickled"])
    def test_every_form_of_weights(
        self, folder_of: Callable[[str], Path], tmp_path: Path, kind: str
    ) -> None:
        source = opened(folder_of("vit"))
        module = hf.ViTForImageClassification.from_pretrained(folder_of("vit"))
        if kind == "sharded":
            module.save_pretrained(tmp_path, max_shard_size="20KB")
            assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
        elif kind == "half":
            module.half().save_pretrained(tmp_path)
        else:
            module.config.save_pretrained(tmp_path)
            torch.save(module.state_dict(), tmp_path / "pytorch_model.bin")
        found = opened(tmp_path)
        assert {p.dtype for p in found.module.parameters()} == {torch.float32}
        tolerance = 2e-2 if kind == "half" else 0.0
        answers = (found.logits(images(3, NATIVE)), source.logits(images(3, NATIVE)))
        assert deviations(*answers) <= tolerance

    def test_a_folder_as_the_checkpoint_of_another(
        self, folder_of: Callable[[str], Path], tmp_path: Path
    ) -> None:
        other = lively(FAMILIES["vit"](), seed=7)
        other.save_pretrained(tmp_path)
        found = opened(folder_of("vit"), checkpoint=tmp_path)
        np.testing.assert_array_equal(
            found.logits(images(2, NATIVE)), opened(tmp_path).logits(images(2, NATIVE))
        )

    def test_the_tower_of_a_model_of_images_and_text(self, tmp_path: Path) -> None:
        text = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        config = hf.CLIPConfig(
            text_config={**text, "vocab_size": 50}, vision_config=MLP, projection_dim=12
        )
        pair = lively(hf.CLIPModel(config))
        pair.save_pretrained(tmp_path)
        source = opened(tmp_path, "features")
        assert "vision tower of CLIPModel" in source.description.origin
        with torch.inference_mode():
            batch = torch.from_numpy(images(3, NATIVE))
            pooled = pair.vision_model(pixel_values=batch).pooler_output
            expected = pair.visual_projection(pooled).numpy()
        assert deviations(source.logits(images(3, NATIVE)), expected) <= 1e-5

    def test_a_plain_vit_without_a_pooler_gives_its_class_token(self, tmp_path: Path) -> None:
        module = lively(hf.ViTModel(hf.ViTConfig(**MLP), add_pooling_layer=False))
        module.save_pretrained(tmp_path)
        source = opened(tmp_path, "features")
        assert "class token" in source.description.origin
        with torch.inference_mode():
            states = module(pixel_values=torch.from_numpy(images(3, NATIVE))).last_hidden_state
        assert deviations(source.logits(images(3, NATIVE)), states[:, 0].numpy()) <= 1e-5

    def test_another_number_of_classes(self, folder_of: Callable[[str], Path]) -> None:
        with pytest.raises(InputError, match=r"classifier\.weight is \(5, 32\)") as caught:
            opened(folder_of("vit"), num_classes=7)
        assert "--num-classes 5" in str(caught.value.hint)
        started = opened(folder_of("vit"), num_classes=7, pretrained=True)
        assert started.description.num_classes == 7

    def test_keys_that_do_not_fit_are_listed(
        self, folder_of: Callable[[str], Path], tmp_path: Path
    ) -> None:
        state = hf.ViTForImageClassification.from_pretrained(folder_of("vit")).state_dict()
        state["stray"] = state.pop("vit.layernorm.weight")
        torch.save({"model": state}, tmp_path / "w.pth")
        with pytest.raises(InputError, match=r"missing: vit\.layernorm\.weight.*stray"):
            opened(folder_of("vit"), checkpoint=tmp_path / "w.pth")

    def test_a_tower_needs_the_task_features(self, folder_of: Callable[[str], Path]) -> None:
        with pytest.raises(InputError, match="no classifier head") as caught:
            opened(folder_of("clip"))
        assert "--task features" in str(caught.value.hint)


class TestRefusals:
    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"auto_map": {"AutoModel": "mine.Model"}}, "code of its own"),
            ({"architectures": []}, "names 0 architectures"),
            ({"quantization_config": {"bits": 4}}, "weights quantized by"),
            ({"architectures": ["BertModel"]}, "no model of images"),
            ({"architectures": ["NoSuchModel"]}, "is unknown"),
            ({"architectures": ["ViTForMaskedImageModeling"]}, "neither classifies"),
            ({"num_attention_heads": 5}, "not a multiple|cannot|does not fit"),
        ],
        ids=str,
    )
    def test_configurations(
        self,
        folder_of: Callable[[str], Path],
        tmp_path: Path,
        change: dict[str, Any],
        words: str,
    ) -> None:
        config = json.loads((folder_of("vit") / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
        (tmp_path / "mine.py").write_text("raise SystemExit('this code ran')")
        weights = folder_of("vit") / "model.safetensors"
        with pytest.raises(InputError, match=words) as caught:
            opened(tmp_path, checkpoint=weights)
        assert caught.value.hint

    def test_a_hub_out_of_reach(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
        name = "transformers:google/vit-base-patch16-224"
        with pytest.raises(MissingDependencyError, match="cannot be fetched") as caught:
            load_source(ModelRequest(name=name, pretrained=True))
        assert "folder" in str(caught.value.hint)
        with pytest.raises(InputError, match="no weights"):
            load_source(ModelRequest(name=name))

    def test_an_image_processor_is_needed_or_flags(self, folder_of: Callable[[str], Path]) -> None:
        with pytest.raises(InputError, match="how its images are prepared") as caught:
            load_source(ModelRequest(name=str(folder_of("vit"))))
        assert "--mean" in str(caught.value.hint)
