"""Folding from the value projection through attention: exact, and silent where it must be."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from folding import (
    BOTH,
    Case,
    changed_in_place,
    drawn_scales,
    folds_of,
    require_exact,
)
from written_graphs import answers, furthest, linears, written

from vitdeploy.calibration.folds import DividedInput, Fold, apply_fold
from vitdeploy.calibration.linear import bias_vector

ATTENTION = """
    [q] query = MatMul (start, wq)
    [k] key = MatMul (start, wk)
    turned = Transpose <perm = [0, 1, 3, 2]> (key)
    scores = MatMul (query, turned)
    shares = Softmax <axis = -1> (scores)
"""
VALUES = "[v] raw = MatMul (start, wv)\n values = Add (raw, bv)\n"
MIX = "[mix] mixed = MatMul (shares, values)\n"
PROJ = "[proj] logits = MatMul (mixed, wo)"
WEIGHTS: dict[str, Any] = dict.fromkeys(("wq", "wk", "wv", "wo"), (8, 8)) | {"bv": (8,)}

SILENT_VALUES = {
    "values are read too": Case(
        VALUES + MIX + "[proj] product = MatMul (mixed, wo)\n logits = Add (product, values)"
    ),
    "values are an output": Case(VALUES + MIX + PROJ, outputs=BOTH + "values"),
    "the mix is an output": Case(VALUES + MIX + PROJ, outputs=BOTH + "mixed"),
    "an activation stands behind": Case(
        VALUES + MIX + "active = Gelu (mixed)\n [proj] logits = MatMul (active, wo)"
    ),
    "the projection's weight is another's": Case(
        VALUES + MIX + "[proj] product = MatMul (mixed, wo)\n"
        "[other] second = MatMul (start, wo)\n logits = Add (product, second)"
    ),
    "the values' weight is the keys'": Case(
        VALUES.replace("wv", "wk") + MIX + PROJ,
    ),
    "the values are also keys": Case(
        VALUES + "turned_values = Transpose <perm = [0, 1, 3, 2]> (values)\n"
        "more = MatMul (query, turned_values)\n share = Softmax <axis = -1> (more)\n"
        "[mix] mixed = MatMul (share, values)\n" + PROJ
    ),
    "one channel serves two heads": Case(
        "[v] values = MatMul (start, narrow)\n shape = Constant <value_ints = [1, 2, 5, 4]> ()\n"
        "heads = Expand (values, shape)\n [mix] apart = MatMul (shares, heads)\n"
        "turned_back = Transpose <perm = [0, 2, 1, 3]> (apart)\n"
        "flat = Constant <value_ints = [0, 1, 5, 8]> ()\n mixed = Reshape (turned_back, flat)\n"
        + PROJ,
        {"narrow": (8, 4)},
        channels=(0, 1, 2, 3, 0, 1, 2, 3),
    ),
    "other tokens stand beside": Case(
        VALUES + "all = Concat <axis = 2> (values, start)\n twice = Concat <axis = 3> "
        "(shares, shares)\n [mix] mixed = MatMul (twice, all)\n" + PROJ,
    ),
    "channels are averaged": Case(
        VALUES + "gram = Transpose <perm = [0, 1, 3, 2]> (start)\n square = MatMul (gram, start)\n"
        "across = Transpose <perm = [0, 1, 3, 2]> (values)\n"
        "[mix] mixed = MatMul (square, across)\n [proj] logits = MatMul (mixed, tokens)",
        {"tokens": (5, 8)},
        channels=(0, 1, 2, 3, 4),
    ),
    "the bias is one number": Case(
        "rows = Constant <value_ints = [-1, 8]> ()\n flat = Reshape (start, rows)\n"
        "[v] raw = Gemm (flat, wv, one)\n back = Constant <value_ints = [-1, 1, 5, 8]> ()\n"
        "values = Reshape (raw, back)\n" + MIX + PROJ,
        {"one": np.array([1.5], np.float32)},
    ),
}  # fmt: skip


def attention(case: Case) -> ir.Model:
    return written(ATTENTION + case.body, case.outputs, **dict(WEIGHTS, **case.arrays))


def forced_values(graph: ir.Model, case: Case) -> Fold:
    known = linears(graph)
    values = known["v"]
    divided = [DividedInput("v", 1, values.weight_axis)]
    if values.bias:
        adder = next(node for node in graph.graph if node.outputs[0].name == values.output)
        divided.append(DividedInput(str(adder.name), 1, 0))
    return Fold("value", "v", "mixed", np.array(case.channels), tuple(divided), (known["proj"],))


class TestValues:
    def test_it_fires_and_is_exact(self) -> None:
        (fold,) = require_exact(attention(Case(VALUES + MIX + PROJ)), ["v"])
        assert fold.kind == "value"
        assert len(fold.divided) == 2

    @pytest.mark.parametrize("name", SILENT_VALUES)
    def test_no_fold_where_it_would_change_what_is_computed(self, name: str) -> None:
        graph = attention(SILENT_VALUES[name])
        exact = answers(graph)
        assert "v" not in folds_of(graph)
        forced = forced_values(graph, SILENT_VALUES[name])
        changed = changed_in_place(graph, forced, drawn_scales(forced, 0))
        assert furthest(exact, answers(changed)) > 1e-2

    def test_heads_are_told_apart(self) -> None:
        """Two heads of four channels, taken apart and put together again."""
        apart = "shape = Constant <value_ints = [0, 5, 2, 4]> ()\n" + "".join(
            f"{name}_split = Reshape ({name}, shape)\n"
            f"{name}_heads = Transpose <perm = [0, 2, 1, 3]> ({name}_split)\n"
            for name in ("query", "key", "values")
        )
        graph = written(
            "[q] query = MatMul (start, wq)\n [k] key = MatMul (start, wk)\n" + VALUES + apart
            + "turned = Transpose <perm = [0, 1, 3, 2]> (key_heads)\n"
            "scores = MatMul (query_heads, turned)\n shares = Softmax <axis = -1> (scores)\n"
            "[mix] each = MatMul (shares, values_heads)\n"
            "back = Transpose <perm = [0, 2, 1, 3]> (each)\n"
            "flat = Constant <value_ints = [0, 1, 5, 8]> ()\n mixed = Reshape (back, flat)\n"
            + PROJ,
            **WEIGHTS,
        )  # fmt: skip
        (fold,) = require_exact(graph, ["v"])
        np.testing.assert_array_equal(fold.channels, np.arange(8))

    def test_a_bias_that_others_hold_is_parted(self) -> None:
        """Biases of zero are often one constant for many layers."""
        graph = attention(Case(
            VALUES + MIX + "[proj] product = MatMul (mixed, wo)\n logits = Add (product, bv)"
        ))  # fmt: skip
        (fold,) = require_exact(graph, ["v"])
        apply_fold(graph, fold, drawn_scales(fold, 0))
        kept = bias_vector(graph, linears(graph)["proj"])
        np.testing.assert_array_equal(kept, graph.graph.initializers["bv"].const_value.numpy())  # type: ignore[union-attr]
        assert linears(graph)["v"].bias != "bv"
