"""What tests of folding share: finding, scales, and a fold done by force."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from written_graphs import CHANNELS, PIXELS, answers, furthest, linears

from vitdeploy.calibration.folds import DividedInput, Fold, apply_fold, find_folds

BOTH = "float[n, 1, t, c] logits, float[n, 1, t, c] "


@dataclass(frozen=True)
class Case:
    """A graph, and the fold that would be there if nobody looked who else reads."""

    body: str
    arrays: dict[str, Any] = field(default_factory=dict)
    outputs: str = "float[n, 1, t, c] logits"
    readers: tuple[str, ...] = ("linear",)
    channels: tuple[int, ...] = tuple(range(CHANNELS))


def folds_of(graph: ir.Model, pixels: NDArray[np.float32] = PIXELS) -> dict[str, Fold]:
    found = find_folds(graph, list(linears(graph).values()), pixels[:1])
    return {fold.source: fold for fold in found}


def drawn_scales(fold: Fold, seed: int) -> NDArray[np.float32]:
    """Between a hundredth and a hundred."""
    generator = np.random.default_rng(seed)
    return np.exp(generator.normal(size=len(fold.channels)) * 1.5).astype(np.float32)


def changed_in_place(graph: ir.Model, fold: Fold, scales: NDArray[np.float32]) -> ir.Model:
    """A copy with the fold's constants themselves changed, whoever else reads them."""
    changed = graph.clone()
    nodes = {node.name: node for node in changed.graph}

    def times(node: str, index: int, factors: NDArray[np.float32], axis: int) -> None:
        value = nodes[node].inputs[index]
        assert value is not None
        assert value.const_value is not None
        moved = np.moveaxis(value.const_value.numpy().copy(), axis, -1)
        moved[..., : len(factors)] *= factors
        value.const_value = ir.Tensor(np.ascontiguousarray(np.moveaxis(moved, -1, axis)))

    for part in fold.divided:
        size = int(fold.channels.max()) + 1
        factors = np.ones(size, np.float32)
        factors[fold.channels] = 1 / scales
        times(part.node, part.index, factors, part.axis)
    for reader in fold.readers:
        times(reader.name, 1, scales, 1 - reader.weight_axis)
    return changed


def gamma_and_beta(node: ir.Node) -> tuple[DividedInput, ...]:
    return tuple(DividedInput(str(node.name), index, 0) for index in (1, 2))


def require_exact(graph: ir.Model, sources: list[str]) -> list[Fold]:
    """These folds and no others are found, and each of them leaves the answers."""
    found = folds_of(graph)
    assert list(found) == sources
    exact = answers(graph)
    for seed, fold in enumerate(found.values()):
        changed = graph.clone()
        apply_fold(changed, fold, drawn_scales(fold, seed))
        assert 0 < furthest(exact, answers(changed)) <= 1e-5
    return list(found.values())
