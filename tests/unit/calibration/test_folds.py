"""Folding: exact wherever it fires, and silent where it would change what is computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from folding import (
    BOTH,
    Case,
    changed_in_place,
    drawn_scales,
    folds_of,
    gamma_and_beta,
    require_exact,
)
from tiny_families import FAMILIES, tiny
from written_graphs import CHANNELS, answers, furthest, linears, written

from vitdeploy.calibration.folds import Fold, apply_fold
from vitdeploy.calibration.linear import weight_of

EXPECTED = {
    "vit": (3, 1),
    "vit-qk-norm": (3, 1),
    "vit-parallel": (2, 1),
    "eva02": (3, 1),
    "siglip": (4, 2),
    "swin-padded": (7, 3),
    "swin-v2": (0, 1),
    "torchvision-vit": (3, 1),
    "transformers-vit": (3, 1),
}
"""Folds behind LayerNorms, and behind values."""


class TestFamilies:
    @pytest.mark.parametrize("name", FAMILIES)
    def test_folds_are_found_where_a_norm_or_values_feed_linears_alone(self, name: str) -> None:
        found = folds_of(tiny(name).graph, tiny(name).one).values()
        kinds = [fold.kind for fold in found]
        assert (kinds.count("layer norm"), kinds.count("value")) == EXPECTED[name]

    @pytest.mark.parametrize("name", FAMILIES)
    def test_all_folds_at_once_leave_the_answers(self, name: str) -> None:
        graph, pixels = tiny(name).graph.clone(), tiny(name).pixels
        exact = answers(graph, pixels)
        for seed, fold in enumerate(folds_of(graph, pixels).values()):
            apply_fold(graph, fold, drawn_scales(fold, seed))
        assert furthest(exact, answers(graph, pixels)) <= 1e-5
        assert np.abs(exact[0] - answers(graph, pixels)[0]).max() > 0, "nothing was folded"

    @pytest.mark.parametrize("name", FAMILIES)
    def test_powers_of_two_change_no_bit(self, name: str) -> None:
        """They move through products without rounding: a scale on a wrong channel cannot hide."""
        graph, pixels = tiny(name).graph.clone(), tiny(name).pixels
        exact = answers(graph, pixels)
        for seed, fold in enumerate(folds_of(graph, pixels).values()):
            powers = np.random.default_rng(seed).integers(-6, 7, size=len(fold.channels))
            apply_fold(graph, fold, np.exp2(powers).astype(np.float32))
        np.testing.assert_array_equal(answers(graph, pixels)[0], exact[0])

    @pytest.mark.parametrize("name", FAMILIES)
    def test_channels_in_another_order_are_seen(self, name: str) -> None:
        """Mutation: each fold's channels shifted by one."""
        pixels = tiny(name).pixels
        exact = answers(tiny(name).graph, pixels)
        for fold in folds_of(tiny(name).graph, pixels).values():
            graph = tiny(name).graph.clone()
            shifted = Fold(
                fold.kind, fold.source, fold.activation, np.roll(fold.channels, 1),
                fold.divided, fold.readers,
            )  # fmt: skip
            apply_fold(graph, shifted, drawn_scales(fold, 0))
            assert furthest(exact, answers(graph, pixels)) > 1e-3, fold.source

    def test_separate_queries_keys_and_values_are_divided_by_one_norm(self) -> None:
        """Three Linear layers read one tensor: all three take the scales on."""
        found = folds_of(tiny("transformers-vit").graph, tiny("transformers-vit").one)
        fold = found["vit.layers.0.layernorm_before/LayerNormalization"]
        names = {reader.name.split("/")[0].rsplit(".", 1)[-1] for reader in fold.readers}
        assert names == {"q_proj", "k_proj", "v_proj"}

    def test_a_fused_projection_is_divided_in_its_values_alone(self) -> None:
        fold = folds_of(tiny("vit").graph, tiny("vit").one)["blocks.0.attn.qkv/MatMul"]
        np.testing.assert_array_equal(fold.channels, np.arange(96, 144))

    def test_norms_of_queries_and_keys_are_left_alone(self) -> None:
        """They are read by a product of two activations. Dividing one would change the scores."""
        graph, pixels = tiny("vit-qk-norm").graph.clone(), tiny("vit-qk-norm").pixels
        found = folds_of(graph, pixels)
        norms = [node for node in graph.graph if node.op_type == "LayerNormalization"]
        inner = [node for node in norms if "_norm" in str(node.name)]
        assert len(inner) == 2
        exact = answers(graph, pixels)
        for node in inner:
            assert node.name not in found
        size = inner[0].inputs[1]
        assert size is not None
        channels = np.arange(size.shape[0])  # type: ignore[index, arg-type]
        forced = Fold("layer norm", str(inner[0].name), "", channels, gamma_and_beta(inner[0]), ())
        apply_fold(graph, forced, drawn_scales(forced, 0))
        assert furthest(exact, answers(graph, pixels)) > 1e-2

    def test_swins_padded_windows_are_exact(self) -> None:
        """The padding lies between the norm and the layer: zeros stay zeros."""
        graph = tiny("swin-padded").graph
        assert any(node.op_type == "Pad" for node in graph.graph)
        assert "layers.0.blocks.0.norm1/LayerNormalization" in folds_of(
            graph, tiny("swin-padded").one
        )


NORM: dict[str, Any] = {"gamma": (CHANNELS,), "beta": (CHANNELS,), "weight": (CHANNELS, CHANNELS)}
NORMED = "[norm] normed = LayerNormalization <axis = -1> (start, gamma, beta)\n"


SILENT_NORMS = {
    "features are read too": Case(
        "[linear] logits = MatMul (normed, weight)", outputs=BOTH + "normed"
    ),
    "another branch reads": Case(
        "[linear] product = MatMul (normed, weight)\n logits = Add (product, normed)"
    ),
    "a pooled copy is read": Case(
        "[linear] product = MatMul (normed, weight)\n axes = Constant <value_ints = [2]> ()\n"
        "pooled = ReduceMean (normed, axes)\n logits = Add (product, pooled)"
    ),
    "another layer has the weight": Case(
        "[linear] left = MatMul (normed, weight)\n [other] right = MatMul (start, weight)\n"
        "logits = Sub (left, right)"
    ),
    "the weight is read as numbers": Case(
        "[linear] left = MatMul (normed, weight)\n few = Constant <value_ints = [1, 1, 8, 8]> ()\n"
        "table = Reshape (weight, few)\n axes = Constant <value_ints = [2]> ()\n"
        "sums = ReduceSum (table, axes)\n logits = Add (left, sums)"
    ),
    "an activation stands between": Case(
        "active = Gelu (normed)\n [linear] logits = MatMul (active, weight)"
    ),
    "channels are mixed": Case(
        "shape = Constant <value_ints = [0, 1, 10, 4]> ()\n halves = Reshape (normed, shape)\n"
        "[linear] logits = MatMul (halves, small)",
        {"small": (4, 3)},
        channels=(0, 1, 2, 3),
    ),
    "another tensor stands beside": Case(
        "both = Concat <axis = 2> (normed, start)\n [linear] logits = MatMul (both, weight)"
    ),
    "padding is not zero": Case(
        "pads = Constant <value_ints = [0, 0, 1, 0, 0, 0, 0, 0]> ()\n"
        "padded = Pad (normed, pads, one)\n [linear] logits = MatMul (padded, weight)",
        {"one": np.array(1.0, np.float32)},
    ),
    "it is the right factor": Case(
        "turned = Transpose <perm = [0, 1, 3, 2]> (normed)\n"
        "scores = MatMul (normed, turned)\n [linear] product = MatMul (normed, weight)\n"
        "logits = MatMul (scores, product)"
    ),
}


class TestNorms:
    @pytest.mark.parametrize("name", SILENT_NORMS)
    def test_no_fold_where_another_reads(self, name: str) -> None:
        case = SILENT_NORMS[name]
        graph = written(NORMED + case.body, case.outputs, **NORM, **case.arrays)
        assert "norm" not in folds_of(graph)

    @pytest.mark.parametrize("name", SILENT_NORMS)
    def test_it_would_have_changed_the_answers(self, name: str) -> None:
        case = SILENT_NORMS[name]
        graph = written(NORMED + case.body, case.outputs, **NORM, **case.arrays)
        exact = answers(graph)
        norm = next(node for node in graph.graph if node.name == "norm")
        known = linears(graph)
        readers = tuple(known[name] for name in case.readers)
        forced = Fold("layer norm", "norm", "normed", np.array(case.channels),
                      gamma_and_beta(norm), readers)  # fmt: skip
        changed = changed_in_place(graph, forced, drawn_scales(forced, 0))
        assert furthest(exact, answers(changed)) > 1e-2

    @pytest.mark.parametrize(
        "body",
        [
            "[linear] logits = MatMul (normed, weight)",
            "[linear] product = MatMul (normed, weight)\n logits = Add (bias, product)",
            "flat = Reshape (normed, rows)\n [linear] product = Gemm <transB = 1> "
            "(flat, weight, bias)\n logits = Reshape (product, back)",
            "shifted = Concat <axis = 2> (normed, normed)\n [linear] logits = MatMul "
            "(shifted, weight)",
            "pads = Constant <value_ints = [0, 0, 1, 0, 0, 0, 2, 0]> ()\n"
            "padded = Pad (normed, pads)\n [linear] logits = MatMul (padded, weight)",
        ],
    )
    def test_exact_however_the_layer_is_written(self, body: str) -> None:
        places = {"rows": np.array([-1, 8]), "back": np.array([-1, 1, 5, 8]), "bias": (8,)}
        used = {name: array for name, array in places.items() if name in body}
        graph = written(NORMED + body, **NORM, **used)
        require_exact(graph, ["norm"])

    def test_parallel_branches_behind_one_norm_are_all_divided(self) -> None:
        """Attention's and the MLP's first layers read the same tensor, and nobody else does."""
        graph = written(
            NORMED + "[attention] a = MatMul (normed, weight)\n [mlp] b = MatMul (normed, wide)\n"
            "[gate] c = MatMul (normed, third)\n ab = Mul (b, c)\n logits = Add (a, ab)",
            **NORM, wide=(8, 8), third=(8, 8),
        )  # fmt: skip
        (fold,) = require_exact(graph, ["norm"])
        assert {reader.name for reader in fold.readers} == {"attention", "mlp", "gate"}

    @pytest.mark.parametrize("kept", [0, 1, 2])
    def test_a_branch_left_out_is_seen(self, kept: int) -> None:
        """Mutation: one of the readers does not take the scales on."""
        graph = written(
            NORMED + "[a] left = MatMul (normed, weight)\n [b] right = MatMul (normed, wide)\n"
            "[c] last = MatMul (normed, third)\n both = Mul (left, right)\n"
            "logits = Add (both, last)",
            **NORM, wide=(8, 8), third=(8, 8),
        )  # fmt: skip
        exact = answers(graph)
        fold = folds_of(graph)["norm"]
        readers = tuple(r for i, r in enumerate(fold.readers) if i != kept)
        apply_fold(
            graph,
            Fold(fold.kind, fold.source, fold.activation, fold.channels, fold.divided, readers),
            drawn_scales(fold, 0),
        )
        assert furthest(exact, answers(graph)) > 1e-2

    def test_shared_gammas_are_parted(self) -> None:
        """Two norms hold one gamma; dividing one leaves what the other answers, to the bit."""
        graph = written(
            NORMED + "[second] again = LayerNormalization <axis = -1> (start, gamma, beta)\n"
            "[linear] product = MatMul (normed, weight)\n logits = Sub (product, again)",
            BOTH + "again", **NORM,
        )  # fmt: skip
        before = answers(graph)
        (fold,) = require_exact(graph, ["norm"])
        apply_fold(graph, fold, drawn_scales(fold, 3))
        np.testing.assert_array_equal(answers(graph)[1], before[1])
        assert len({value.name for node in graph.graph for value in node.inputs
                    if value is not None and str(value.name).startswith("gamma")}) == 2  # fmt: skip

    def test_channels_that_nobody_reads_stay(self) -> None:
        graph = written(
            NORMED + "first = Constant <value_ints = [2]> ()\n last = Constant "
            "<value_ints = [6]> ()\n axis = Constant <value_ints = [3]> ()\n"
            "some = Slice (normed, first, last, axis)\n [linear] logits = MatMul (some, small)",
            gamma=(8,), beta=(8,), small=(4, 8),
        )  # fmt: skip
        (fold,) = require_exact(graph, ["norm"])
        np.testing.assert_array_equal(fold.channels, [2, 3, 4, 5])

    def test_a_gamma_that_is_no_constant_stays(self) -> None:
        graph = written(
            "few = Constant <value_ints = [0, 1, 2]> ()\n mean = ReduceMean <keepdims = 0> "
            "(start, few)\n normed = LayerNormalization <axis = -1> (start, mean, beta)\n"
            "[linear] logits = MatMul (normed, weight)",
            beta=(8,), weight=(8, 8),
        )  # fmt: skip
        assert folds_of(graph) == {}

    def test_a_gamma_for_all_channels_together_stays(self) -> None:
        graph = written(NORMED + "[linear] logits = MatMul (normed, weight)",
                        gamma=(1,), beta=(8,), weight=(8, 8))  # fmt: skip
        assert folds_of(graph) == {}


def test_the_weights_take_on_what_the_tensor_loses() -> None:
    graph = written(NORMED + "[linear] logits = MatMul (normed, weight)", **NORM)
    before = weight_of(graph, linears(graph)["linear"]).copy()
    fold = folds_of(graph)["norm"]
    scales = drawn_scales(fold, 1)
    apply_fold(graph, fold, scales)
    after = weight_of(graph, linears(graph)["linear"])
    np.testing.assert_allclose(after, before * scales[:, None], rtol=1e-6)
