"""Roundings ranked by what they do to the output, with few measurements."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import onnx_ir as ir

from vitdeploy.export.damage import WorstFirst
from vitdeploy.graph.rounding import RoundingGroup

ALONE = np.random.default_rng(0).lognormal(-6, 2, 300)


def ranking(alone: np.ndarray, measured: list[range]) -> tuple[list[RoundingGroup], WorstFirst]:
    nodes = [ir.node("Relu", [ir.Value(name=f"x{index}")]) for index in range(len(alone))]
    groups = [RoundingGroup((node,), node.outputs[0]) for node in nodes]

    def error(part: range) -> float:
        measured.append(part)
        return float(np.sqrt(np.square(alone[part.start : part.stop]).sum()))

    return groups, WorstFirst(tuple(groups), error)


def test_groups_come_out_worst_first() -> None:
    groups, ranked = ranking(ALONE, [])
    order = np.argsort(-ALONE)
    found = ranked.first(8)
    assert [group for group, _ in found] == [groups[index] for index in order[:8]]
    assert all(earlier[1] >= later[1] for earlier, later in pairwise(found))
    assert ranked.first(3) == found[:3]
    assert [group for group, _ in ranked.first(1000)] == [groups[index] for index in order]


def test_the_first_costs_a_few_measurements_and_all_twice_their_number() -> None:
    measured: list[range] = []
    _, ranked = ranking(np.where(np.arange(300) == 77, 1.0, 1e-4), measured)
    assert measured == []
    ranked.first(1)
    assert len(measured) <= 2 * 9  # 300 are halved nine times
    ranked.first(300)
    assert len(measured) <= 2 * 300


def test_what_is_not_finite_is_the_worst() -> None:
    groups, ranked = ranking(np.where(np.arange(20) == 13, np.inf, 1.0), [])
    assert ranked.first(1) == [(groups[13], np.inf)]


def test_nothing_to_rank() -> None:
    assert WorstFirst((), lambda part: 0.0).first(1) == []
