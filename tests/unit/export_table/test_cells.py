"""The table of families: weights under which a mistake is seen, and figures that can be red."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tools.export_table.cell import _compared
from tools.export_table.render import rendered
from tools.export_table.rows import ROWS
from tools.export_table.weights import CLASSES, enliven, fit_heads, settle_batch_norms

ROW = ROWS[0]
GREEN: dict[str, Any] = {
    "resolution": [256, 320],
    "positions": "timm: tokens",
    "max_error": 3e-6,
    "cosine": 0.9999,
    "agreement": 1.0,
    "kept_float32": 0,
    "quantized": 0,
    "operators": [],
    "builds": {"targets": ["sm86"]},
}


def page(precision: str = "fp32", **changes: Any) -> str:
    cell = {**asdict(ROW), "precision": precision, **GREEN, "size": "oblong", **changes}
    return rendered([cell])


@pytest.mark.parametrize(
    ("precision", "changes", "reason"),
    [
        ("fp32", {"max_error": 1.1e-4}, "differs by 1.1e-04"),
        ("fp32", {"max_error": float("nan")}, "differs by nan"),
        ("fp32", {"operators": ["Resize"]}, "the graph holds (Resize)"),
        ("fp32", {"wrong": {"nearest": 5e-3}}, "nearest at oblong is off by 5.0e-03 only"),
        ("fp32", {"builds": {"error": "no Col2Im"}}, "TensorRT-RTX: no Col2Im"),
        ("fp16", {"cosine": 0.9989}, "cosine 0.9989"),
        ("fp16", {"agreement": 31 / 32}, "agreement 96.9%"),
        ("fp16", {"error": "refused so", "hint": None}, "refused so"),
        ("int8", {"size": "native", "agreement": 28 / 32}, "agreement 87.5%"),
        ("fp8", {"size": "native", "builds": {"error": "no FP8"}}, "TensorRT-RTX: no FP8"),
    ],
)
def test_what_is_red_is_listed(precision: str, changes: dict[str, Any], reason: str) -> None:
    assert "Not green" not in page(precision, size=changes.get("size", "oblong"))
    text = page(precision, **changes)
    assert reason in text.partition("## Not green")[2]


def test_a_size_that_is_not_taken_is_no_defect_and_is_named() -> None:
    text = page(error="windows of 7 do not divide it", hint="try 224", before_tracing=True)
    assert "Not green" not in text
    assert "| cannot |" in text
    assert "windows of 7" in text.partition("## Sizes that a family does not take")[2]


def test_a_constant_that_images_share_hides_nothing() -> None:
    generator = np.random.default_rng(0)
    expected = generator.normal(size=(8, 5)).astype(np.float32) + 100
    answered = np.broadcast_to(expected.mean(0), expected.shape) + np.float32(1e-3)
    found = _compared(np.asarray(answered), expected, "classify")
    assert found["cosine"] < 0.9
    assert found["max_error"] > 1
    assert _compared(expected, expected, "classify")["agreement"] == 1.0


def test_a_tie_may_fall_either_way() -> None:
    expected = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [0.5, 0.5005, 0]], np.float32)
    answered = expected[:, [0, 1, 2]].copy()
    answered[3, 0] += 0.001
    found = _compared(answered, expected, "classify")
    assert (found["agreement"], found["decided"]) == (1.0, 3)
    answered[2] = [1, 0, 0]
    assert _compared(answered, expected, "classify")["agreement"] == pytest.approx(2 / 3)


def test_features_agree_where_their_nearest_neighbour_does() -> None:
    expected = np.repeat(np.eye(4, dtype=np.float32), 2, axis=0)
    noise = np.random.default_rng(0).normal(size=expected.shape).astype(np.float32)
    assert _compared(expected + 1e-3 * noise, expected, "features")["agreement"] == 1.0
    shuffled = expected[[0, 2, 1, 3, 4, 5, 6, 7]]
    assert _compared(shuffled, expected, "features")["agreement"] < 1


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pos_embed = nn.Parameter(torch.full((1, 9, 12), 1e-6))
        self.gamma = nn.Parameter(torch.full((12,), 1e-6))
        self.qkv = nn.Linear(12, 36)
        self.norm = nn.LayerNorm(12)
        self.head = nn.Linear(12, CLASSES)
        nn.init.zeros_(self.norm.weight)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        tokens = images.flatten(1).unflatten(1, (9, 12)) + self.pos_embed
        return self.head((tokens + self.gamma * tokens).mean(1))


def test_what_libraries_make_too_small_is_seen() -> None:
    model = Model()
    enliven(model)
    assert 0.8 < float(model.pos_embed.detach().std()) < 1.2
    assert 0.3 < float(model.gamma.detach().mean()) < 0.7
    assert 0.05 < float(model.norm.weight.detach().mean()) < 0.3
    assert 0.8 < float(model.qkv.weight.detach().std()) * 12**0.5 < 1.2


def test_batch_norms_normalize_the_images() -> None:
    model = nn.Sequential(nn.BatchNorm2d(3), nn.ReLU(), nn.BatchNorm2d(3))
    inputs = 100 * torch.rand(16, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    settle_batch_norms(model.eval(), inputs)
    assert not any(part.training for part in model.modules())
    answered = model(inputs).detach()
    assert answered.mean((0, 2, 3)).abs().max() < 1e-3
    assert (answered.std((0, 2, 3)) - 1).abs().max() < 1e-2


def test_a_channel_that_hardly_varies_is_not_blown_up() -> None:
    norm = nn.BatchNorm2d(3).eval()
    inputs = torch.randn(16, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    inputs[:, 2] *= 1e-4
    settle_batch_norms(norm, inputs)
    spread = norm(inputs).detach().std((0, 2, 3))
    assert (spread[:2] - 1).abs().max() < 0.1
    assert spread[2] < 1e-3


def test_only_positions_get_unit_deviation_not_blocks_of_a_like_name() -> None:
    model = nn.Module()
    model.pos_embed = nn.Parameter(torch.zeros(1, 9, 256))
    model.post_network = nn.Linear(256, 256)
    enliven(model)
    assert 0.9 < float(model.pos_embed.detach().std()) < 1.1
    assert float(model.post_network.weight.detach().std()) < 0.1


def test_fitted_heads_tell_images_apart() -> None:
    model = Model().eval()
    enliven(model)
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(CLASSES, 3, 6, 6, generator=generator)
    labels = torch.arange(CLASSES)
    before = model(inputs).detach()
    fit_heads(model, inputs, labels)
    answered = model(inputs).detach()
    assert (answered.argmax(-1) == labels).float().mean() >= 0.8
    assert (before.argmax(-1) == labels).float().mean() < 0.8
    with pytest.raises(ValueError, match="no linear layer"):
        fit_heads(nn.Flatten(), inputs, labels)
