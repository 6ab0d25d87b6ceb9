"""Other ViTs than the plain one, away from their own size: equal to PyTorch, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_vits import lively, smooth_inputs

from vitdeploy.backends.onnxruntime_ import GraphSession
from vitdeploy.calibration.plan import plan
from vitdeploy.calibration.qdq import insert_qdq
from vitdeploy.calibration.statistics import _session_with_outputs
from vitdeploy.errors import ExportError, InputError
from vitdeploy.export.export import ExportOptions, export
from vitdeploy.graph import files
from vitdeploy.models.load import ModelRequest, seeded_random_source
from vitdeploy.models.source import SourceModel

VIT = "vit_tiny_patch16_224"
KINDS: dict[str, tuple[str, dict[str, Any], tuple[int, int]]] = {
    "class token": (VIT, {"img_size": (64, 96)}, (96, 64)),
    "average pool": (VIT, {"img_size": 64, "class_token": False, "global_pool": "avg"}, (96, 64)),
    "registers": (VIT, {"img_size": 64, "reg_tokens": 4}, (32, 96)),
    "registers without positions": (
        VIT,
        {"img_size": 64, "reg_tokens": 4, "no_embed_class": True},
        (96, 32),
    ),
    "distilled": ("deit_tiny_distilled_patch16_224", {"img_size": 64}, (96, 64)),
    "attention pool": ("vit_base_patch16_siglip_224", {"img_size": 64}, (96, 64)),
    "relative positions": ("vit_relpos_small_patch16_224", {"img_size": 64}, (96, 64)),
    "relative position bias": ("beit_base_patch16_224", {"img_size": 64}, (64, 64)),
    "rotary positions": ("eva02_tiny_patch14_224", {"img_size": 56}, (84, 56)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_exported_graphs_equal_pytorch(kind: str, tmp_path: Path) -> None:
    name, kwargs, resolution = KINDS[kind]
    source = lively(name, **kwargs)
    saved = export(source, ExportOptions(resolution=resolution), tmp_path)
    sized = source.at(resolution)
    inputs = smooth_inputs(3, resolution, seed=5) if resolution[0] % 16 == 0 else None
    if inputs is None:
        generator = np.random.default_rng(5)
        inputs = generator.normal(size=(3, 3, *resolution)).astype(np.float32)
    with torch.inference_mode():
        expected = sized.module(torch.from_numpy(inputs)).numpy()
    spread = float((expected - expected.mean(0)).std())
    answered = GraphSession(saved.path).run(inputs)
    np.testing.assert_allclose(answered, expected, atol=2e-4 * spread, rtol=0)


@pytest.mark.parametrize("kind", ["distilled", "attention pool", "relative positions"])
def test_exported_graphs_can_be_quantized(kind: str, tmp_path: Path) -> None:
    """Every activation of the plan is one that depends on the image, and Q/DQ runs."""
    name, kwargs, resolution = KINDS[kind]
    source = lively(name, **kwargs)
    graph = files.load(export(source, ExportOptions(resolution=resolution), tmp_path))
    chosen = plan(graph)
    inputs = smooth_inputs(2, resolution)
    observed = _session_with_outputs(graph, chosen.activations, "whole").run_all(inputs)
    scales = {
        tensor: float(np.abs(values).max()) / 127
        for tensor, values in zip(chosen.activations, observed, strict=True)
    }
    exact = GraphSession(files.serialize(graph)).run(inputs)
    insert_qdq(graph, chosen, scales)
    answered = GraphSession(files.serialize(graph), optimize=False).run(inputs)
    assert 0 < np.abs(answered - exact).max() < float((exact - exact.mean()).std())


def test_large_linears_are_still_linears(tmp_path: Path) -> None:
    """A folding limit of the exporter would leave Transpose and MatMul, which no plan takes."""
    source = lively(VIT, img_size=32, depth=1, embed_dim=1280, num_heads=4)
    graph = files.load(export(source, ExportOptions(), tmp_path))
    assert {node.name for node in plan(graph).linear} == {
        "blocks.0.attn.qkv/MatMul",
        "blocks.0.attn.proj/MatMul",
        "blocks.0.mlp.fc1/MatMul",
        "blocks.0.mlp.fc2/MatMul",
        "head/Gemm",
    }


def test_a_model_of_one_size_says_so(tmp_path: Path) -> None:
    kwargs = {"img_size": 64}
    request = ModelRequest(name="mixer_s16_224", random_weights=True, model_kwargs=kwargs)
    source = seeded_random_source(request, 0)
    with pytest.raises(ExportError, match="cannot be resampled") as caught:
        export(source, ExportOptions(resolution=(96, 96)), tmp_path)
    assert "its own 64x64" in str(caught.value.hint)
    assert list(tmp_path.iterdir()) == []


def test_a_resolution_between_patches_names_the_nearest(tmp_path: Path) -> None:
    source = lively(VIT, img_size=64)
    with pytest.raises(InputError, match="multiple of the patch size 16x16") as caught:
        export(source, ExportOptions(resolution=(70, 90)), tmp_path)
    assert "64x96" in str(caught.value.hint)


def test_code_that_branches_on_values_is_refused(tmp_path: Path) -> None:
    class Branching(torch.nn.Module):
        def forward(self, pixels: torch.Tensor) -> torch.Tensor:
            if pixels.sum().item() > 0:
                return pixels.mean((2, 3))
            return -pixels.mean((2, 3))

    description = lively(VIT, img_size=64).description
    source = SourceModel(Branching().eval(), description, (64, 64))
    with pytest.raises(ExportError, match="cannot be traced at") as caught:
        export(source, ExportOptions(), tmp_path)
    assert caught.value.hint
    assert list(tmp_path.iterdir()) == []
