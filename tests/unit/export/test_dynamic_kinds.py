"""One module for a range of sizes, kind by kind: equal to the source at each size, or refused."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tiny_vits import NATIVE, lively

from vitdeploy.artifacts.onnx_model import Output, ResolutionRange
from vitdeploy.errors import ExportError, InputError
from vitdeploy.export.dynamic.module import DynamicSize, make_dynamic
from vitdeploy.export.dynamic.sizes import range_of, tried_sizes
from vitdeploy.export.dynamic.verify import verify_dynamic
from vitdeploy.export.passes.module_names import name_nodes_by_module
from vitdeploy.export.trace import trace_dynamic
from vitdeploy.export.verify import TOLERANCE
from vitdeploy.graph import files
from vitdeploy.models.source import SourceModel

VIT = "vit_tiny_patch16_224"
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "class token": (VIT, {"img_size": NATIVE}),
    "average pool": (VIT, {"img_size": 64, "class_token": False, "global_pool": "avg"}),
    "registers": (VIT, {"img_size": 64, "reg_tokens": 4}),
    "registers without positions": (
        VIT,
        {"img_size": 64, "reg_tokens": 4, "no_embed_class": True},
    ),
    "distilled": ("deit_tiny_distilled_patch16_224", {"img_size": 64}),
    "deit3": ("deit3_small_patch16_224", {"img_size": 64}),
    "flexivit": ("flexivit_small", {"img_size": 64}),
    "dinov2": ("vit_small_patch14_dinov2", {"img_size": 56}),
    "dinov2 with registers": ("vit_small_patch14_reg4_dinov2", {"img_size": 56}),
    "attention pool": ("vit_base_patch16_siglip_224", {"img_size": 64}),
    "norm before the blocks": ("vit_base_patch16_clip_224", {"img_size": 64}),
    "resampled in every forward": ("test_vit", {"img_size": 64}),
    "class attention": ("cait_xxs24_224", {"img_size": 64, "depth_token_only": 1}),
    "beit without relative tables": (
        "beit_base_patch16_224",
        {"img_size": 64, "use_abs_pos_emb": True, "use_rel_pos_bias": False},
    ),
    "convolutional stem": ("vit_tiny_r_s16_p8_224", {"img_size": 64}),
    "absolute and rotary": ("eva02_tiny_patch14_224", {"img_size": 56}),
    "rotary": ("vit_small_patch16_rope_224", {"img_size": 64}),
    "rotary, learned by block": ("vit_small_patch16_rope_mixed_224", {"img_size": 64}),
    "rotary, learned, and absolute": ("vit_small_patch16_rope_mixed_ape_224", {"img_size": 64}),
    "rotary across the image": ("vit_small_patch16_dinov3", {"img_size": 64}),
}
TRACED = (
    "class token",
    "registers without positions",
    "attention pool",
    "class attention",
    "convolutional stem",
    "absolute and rotary",
    "rotary, learned by block",
    "rotary across the image",
)
"""One of each way through the exporter; the others differ from these in their weights only."""


def source_of(kind: str) -> tuple[SourceModel, ResolutionRange]:
    """The source, and the range from two to six patches a side."""
    name, kwargs = KINDS[kind]
    source = lively(name, **kwargs)
    step = source.library.size_step(source.module)
    assert step is not None
    return source, range_of(source, (2 * step[0], 2 * step[1]), (6 * step[0], 6 * step[1]))


def inside(sizes: ResolutionRange) -> tuple[int, int]:
    """A size between the corners that verification tries."""
    return 3 * sizes.step[0], 5 * sizes.step[1]


def images(count: int, size: tuple[int, int]) -> np.ndarray:
    return np.random.default_rng(4).normal(size=(count, 3, *size)).astype(np.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_source_at_every_size(kind: str) -> None:
    source, sizes = source_of(kind)
    module = make_dynamic(source, sizes)
    for size in (*tried_sizes(source, sizes), inside(sizes)):
        batch = images(3, size)
        expected = source.at(size).logits(batch)
        with torch.inference_mode():
            answered = module(torch.from_numpy(batch)).numpy()
        spread = float((expected - expected.mean(0)).std())
        np.testing.assert_allclose(answered, expected, atol=TOLERANCE * spread, rtol=0)


@pytest.mark.parametrize("kind", ["class token", "registers without positions", "flexivit"])
def test_native_positions_are_the_trained_ones(kind: str) -> None:
    source, sizes = source_of(kind)
    module = make_dynamic(source, sizes)
    assert isinstance(module, DynamicSize)
    native = source.module.get_parameter("pos_embed").detach()
    grid = [side // step for side, step in zip(source.resolution, sizes.step, strict=True)]
    (positions,) = module.positions
    assert torch.equal(positions(*grid), native)


@pytest.mark.parametrize("output", ["tokens", "features", "probabilities"])
def test_other_outputs_than_logits(output: Output) -> None:
    """Also of a source that was brought to another size first."""
    source, sizes = source_of("class token")
    source = replace(source.at(sizes.high), output=output)
    batch = images(2, inside(sizes))
    with torch.inference_mode():
        answered = make_dynamic(source, sizes)(torch.from_numpy(batch)).numpy()
    expected = source.at(inside(sizes)).logits(batch)
    assert expected.shape == answered.shape
    np.testing.assert_allclose(answered, expected, atol=1e-4, rtol=0)


def test_the_source_stays_as_it_is() -> None:
    source, sizes = source_of("absolute and rotary")
    batch = images(2, source.resolution)
    before = source.logits(batch)
    make_dynamic(source, sizes)
    np.testing.assert_array_equal(source.logits(batch), before)


@pytest.mark.parametrize("kind", TRACED)
def test_graphs_equal_the_source(kind: str) -> None:
    source, sizes = source_of(kind)
    model = name_nodes_by_module(trace_dynamic(source, sizes))
    operators = Counter(node.op_type for node in model.graph)
    assert not {"Resize", "If", "Loop", "Scan", "GridSample"} & operators.keys()
    shape = model.graph.inputs[0].shape
    assert shape is not None
    assert [str(side) for side in shape] == ["batch", "3", "height", "width"]
    verified = verify_dynamic(files.serialize(model), source, sizes)
    assert verified.max_error < TOLERANCE
    assert verified.batch_sizes == (1, 2, 5)


@pytest.mark.filterwarnings("ignore::UserWarning")  # timm resampling relative tables
@pytest.mark.parametrize(
    ("name", "kwargs", "part"),
    [
        ("beit_base_patch16_224", {"img_size": 64}, "relative_position_bias_table"),
        ("vit_relpos_small_patch16_224", {"img_size": 64}, "relative_position_index"),
        ("vit_srelpos_small_patch16_224", {"img_size": 64}, "rel_pos"),
    ],
)
def test_relative_tables_are_refused_by_name(name: str, kwargs: dict[str, Any], part: str) -> None:
    source = lively(name, **kwargs)
    with pytest.raises(ExportError, match=part) as caught:
        make_dynamic(source, range_of(source, (32, 32), (96, 96)))
    assert "--res" in str(caught.value.hint)


def test_ranges_that_are_none() -> None:
    source, _ = source_of("class token")
    for low, high, said in (
        ((64, 64), (64, 64), "not a range"),
        ((96, 96), (64, 64), "not a range"),
        ((60, 64), (96, 96), "multiple of the patch size"),
        ((16, 16), (96, 96), "less than 2 patches"),
    ):
        with pytest.raises(InputError, match=said) as caught:
            range_of(source, low, high)
        assert caught.value.hint


def test_the_sizes_tried_hold_both_orientations() -> None:
    source, _ = source_of("class token")
    sizes = range_of(source, (32, 32), (128, 128))
    assert tried_sizes(source, sizes) == ((32, 32), NATIVE, (128, 128), (32, 128), (128, 32))
