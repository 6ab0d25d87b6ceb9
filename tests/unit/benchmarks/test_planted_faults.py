"""A mutation gate: every fault planted between source and engine is found by `judge`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from bench_model import Bench
from numpy.typing import NDArray

from vitdeploy.artifacts.onnx_model import OnnxModel
from vitdeploy.benchmarks.accuracy.judging import AnyComparison, judge
from vitdeploy.errors import GateFailedError
from vitdeploy.graph import files


def judged(bench: Bench, answers: NDArray, **labels: object) -> AnyComparison:
    images = bench.images
    if "shift" in labels:
        n = len(images.labels)
        images = replace(
            images,
            items=tuple(replace(i, label=((i.label or 0) + 1) % n) for i in images.items),
        )
    return judge("classes", bench.answers, answers, images, max_drop_points=0.5)


def test_nothing_planted_passes(bench: Bench) -> None:
    found = judged(bench, bench.answered(bench.model))
    assert found.verdict == "pass"
    assert found.source_score is not None
    assert found.source_score > 0.9
    assert found.source_entropy_bits > 3


def swapped(bench: Bench, folder: Path) -> NDArray:
    """Blue first: the graph's first convolution with its input channels turned round."""
    graph = files.load(bench.model)
    conv = next(node for node in graph.graph if node.op_type == "Conv")
    return bench.answered(changed(bench.model, graph, conv, folder, lambda w: w[:, ::-1]))


def broken_layer(bench: Bench, folder: Path) -> NDArray:
    graph = files.load(bench.model)
    nodes = [n for n in graph.graph if n.name == "blocks.1.attn.proj/MatMul"]
    assert nodes, [n.name for n in graph.graph]
    return bench.answered(
        changed(bench.model, graph, nodes[0], folder, lambda w: np.roll(3 * w, 1, axis=0))
    )


def changed(
    model: OnnxModel,
    graph: ir.Model,
    node: ir.Node,
    folder: Path,
    change: Callable[[NDArray], NDArray],
) -> OnnxModel:
    weight = node.inputs[1]
    assert weight is not None
    assert weight.const_value is not None
    array = np.ascontiguousarray(change(weight.const_value.numpy()))
    weight.const_value = ir.Tensor(array, name=weight.name)
    return files.save(graph, model.description, folder / "changed.onnx")


def with_mean(bench: Bench, folder: Path) -> NDArray:
    mean = tuple(m - 0.35 for m in bench.preprocessing.mean)
    return bench.answered(bench.model, replace(bench.preprocessing, mean=mean))


def with_std(bench: Bench, folder: Path) -> NDArray:
    std = tuple(s / 2.5 for s in bench.preprocessing.std)
    return bench.answered(bench.model, replace(bench.preprocessing, std=std))


FAULTS = {"mean": with_mean, "std": with_std, "channels": swapped, "layer": broken_layer}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_an_engine_that_sees_or_computes_something_else_fails(
    bench: Bench, tmp_path: Path, fault: Callable[[Bench, Path], NDArray]
) -> None:
    answers = fault(bench, tmp_path)
    try:
        found = judged(bench, answers)
    except GateFailedError as refused:
        assert "collapsed" in str(refused)  # noqa: PT017 - either way it is found
        return
    assert found.verdict == "fail"
    unlabelled = replace(
        bench.images, labels=(), items=tuple(replace(i, label=None) for i in bench.images.items)
    )
    assert judge("classes", bench.answers, answers, unlabelled).verdict == "fail"
    assert judge("features", bench.answers, answers, unlabelled).verdict == "fail"


def test_shifted_labels_are_refused(bench: Bench) -> None:
    with pytest.raises(GateFailedError, match="of chance"):
        judged(bench, bench.answers, shift=1)


def test_a_collapsed_engine_is_refused(bench: Bench) -> None:
    collapsed = np.tile(bench.answers[:1], (len(bench.answers), 1))
    for kind in ("classes", "features", "multilabel", "regression"):
        with pytest.raises(GateFailedError, match="collapsed"):
            judge(kind, bench.answers, collapsed, bench.images)


def test_nan_rows_fail(bench: Bench) -> None:
    answers = bench.answers.copy()
    answers[7] = np.nan
    for kind in ("classes", "features", "multilabel", "regression"):
        with pytest.raises(GateFailedError, match=r"1 of 600 .* first image 7"):
            judge(kind, bench.answers, answers, bench.images)
