"""Streamed statistics against all activations at once, gathered through PyTorch's hooks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from vitdeploy.artifacts.onnx_model import OnnxModel
from vitdeploy.calibration import statistics
from vitdeploy.calibration.image_set import CalibrationSet
from vitdeploy.calibration.plan import plan
from vitdeploy.calibration.statistics import (
    BINS,
    SEARCH_IMAGES,
    ActivationStatistics,
    channel_maxima,
    histogram_of,
    histograms,
    sampled_rows,
    search_images,
)
from vitdeploy.errors import CalibrationError
from vitdeploy.images import decode
from vitdeploy.models.source import SourceModel


def pixels_of(calibration: CalibrationSet, source: SourceModel) -> NDArray[np.float32]:
    """All images, each preprocessed by itself."""
    preprocessing = source.description.preprocessing
    arrays = [
        preprocessing.apply(decode(item.path), source.resolution)
        for item in calibration.images.items
    ]
    return np.stack(arrays)


def inputs_of_linears(source: SourceModel, pixels: NDArray[np.float32]) -> dict[str, NDArray]:
    """What each nn.Linear was given, by module name, over all images in one batch."""
    seen: dict[str, NDArray] = {}
    hooks = []
    for name, module in source.module.named_modules():
        if isinstance(module, torch.nn.Linear):

            def keep(_: Any, given: Any, name: str = name) -> None:
                seen[name] = given[0].detach().numpy().copy()

            hooks.append(module.register_forward_pre_hook(keep))
    # Attention in its plain form calls its Linear layers as the fused one does.
    with torch.inference_mode():
        source.module(torch.from_numpy(pixels))
    for hook in hooks:
        hook.remove()
    return seen


def collected(
    graph: ir.Model, model: OnnxModel, tensors: Sequence[str], calibration: CalibrationSet
) -> dict[str, ActivationStatistics]:
    """Both passes, one behind the other."""
    maxima = channel_maxima(graph, model.description, tensors, calibration)
    absmax = {name: float(largest.max()) for name, largest in maxima.items()}
    return histograms(graph, model.description, absmax, calibration)


def test_statistics_equal_all_activations_at_once(
    source: SourceModel, model: OnnxModel, graph: ir.Model, calibration: CalibrationSet
) -> None:
    chosen = plan(graph)
    found = collected(graph, model, chosen.activations, calibration)
    truth = inputs_of_linears(source, pixels_of(calibration, source))
    assert len(truth) == len(chosen.linear) == 9
    for linear in chosen.linear:
        values = np.abs(truth[linear.name.split("/")[0]]).astype(np.float64).reshape(-1)
        ours = found[linear.activation]
        assert ours.count == values.size
        assert ours.absmax == pytest.approx(values.max(), rel=1e-5)
        expected, _ = np.histogram(values, bins=BINS, range=(0, ours.absmax))
        # Values at an edge fall to either side (PyTorch and the graph differ in the last
        # digit), so the counts are compared as distributions.
        gap = np.abs(np.cumsum(ours.histogram) - np.cumsum(expected)).max()
        assert gap <= 2e-3 * values.size
        assert ours.histogram[-1] >= 1


def test_channel_maxima_are_those_of_all_activations_at_once(
    source: SourceModel, model: OnnxModel, graph: ir.Model, calibration: CalibrationSet
) -> None:
    chosen = plan(graph)
    found = channel_maxima(graph, model.description, chosen.activations, calibration)
    truth = inputs_of_linears(source, pixels_of(calibration, source))
    for linear in chosen.linear:
        values = np.abs(truth[linear.name.split("/")[0]])
        largest = values.reshape(-1, values.shape[-1]).max(axis=0)
        assert found[linear.activation].shape == largest.shape
        np.testing.assert_allclose(found[linear.activation], largest, rtol=1e-4, atol=1e-5)
        # Mutation: maxima of half the images are others.
        half = values[: len(values) // 2].reshape(-1, values.shape[-1]).max(axis=0)
        assert np.abs(half - largest).max() > 1e-3


def test_rows_are_rows_of_the_search_images(
    source: SourceModel, model: OnnxModel, graph: ir.Model, calibration: CalibrationSet
) -> None:
    """Each is what PyTorch's layer was given for some token of that image."""
    chosen = plan(graph)
    found = sampled_rows(graph, model.description, chosen.activations, calibration)
    searched = search_images(calibration)
    truth = inputs_of_linears(source, pixels_of(searched, source))
    for linear in chosen.linear:
        values = truth[linear.name.split("/")[0]]
        tokens = values.reshape(len(searched), -1, values.shape[-1])
        rows = found[linear.activation]
        assert rows.shape == (
            len(searched),
            min(tokens.shape[1], statistics._ROWS_AN_IMAGE),
            tokens.shape[-1],
        )
        for image in range(len(searched)):
            gaps = np.abs(rows[image][:, None] - tokens[image][None]).max(axis=-1)
            assert gaps.min(axis=1).max() <= 1e-4 * np.abs(tokens).max()
        np.testing.assert_allclose(
            rows[:, 0], tokens[:, 0], atol=1e-4 * np.abs(tokens).max(), rtol=0
        )


def test_rows_of_long_images_are_drawn_once_each(
    model: OnnxModel, calibration: CalibrationSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few of 100 tokens, the first among them; the same in each run, others in each image."""
    tokens = np.arange(100, dtype=np.float32).reshape(1, 100, 1)

    class Fake:
        def run_all(self, batch: NDArray[np.float32]) -> list[NDArray]:
            assert len(batch) == 1
            return [tokens]

    monkeypatch.setattr(statistics, "_session_with_outputs", lambda *_args, **_kw: Fake())
    graph = ir.Model(ir.Graph((), (), nodes=(), opset_imports={"": 20}), ir_version=10)
    runs = [sampled_rows(graph, model.description, ["x"], calibration)["x"] for _ in range(2)]
    np.testing.assert_array_equal(*runs)
    rows = runs[0][..., 0]
    count = statistics._ROWS_AN_IMAGE
    assert rows.shape == (20, count)
    for image in rows:
        assert image[0] == 0
        assert len(set(image)) == count
    assert len({tuple(image) for image in rows}) == 20
    assert len(set(rows.reshape(-1))) > 80, "some tokens are never looked at"


MANY_ROWS = """
<ir_version: 9, opset_import: ["" : 20]>
rows (float[n, 3, 32, 48] pixels) => (float[n, 96, 48] logits)
<int64[3] shape = {0, 96, 48}>
{
    rows = Reshape (pixels, shape)
    logits = Neg (rows)
}
"""


def test_of_many_rows_some_are_counted_and_all_looked_at(
    source: SourceModel, model: OnnxModel, calibration: CalibrationSet
) -> None:
    """96 rows an image: the histogram counts every seventh one (the least prime beyond a half
    that divides neither 96 nor 95), absmax is of all."""
    graph = ir.from_proto(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(MANY_ROWS)))
    found = collected(graph, model, ["rows"], calibration)["rows"]
    rows = np.abs(pixels_of(calibration, source)).reshape(-1, 96, 48)
    maxima = channel_maxima(graph, model.description, ["rows"], calibration)["rows"]
    np.testing.assert_allclose(maxima, rows.max(axis=(0, 1)), rtol=1e-6)
    assert found.absmax == pytest.approx(rows.max(), rel=1e-6)
    expected = histogram_of(rows[:, ::7], found.absmax)
    np.testing.assert_array_equal(found.histogram, expected)
    assert found.count == rows[:, ::7].size


def test_searches_look_at_few_images_whatever_their_order(calibration: CalibrationSet) -> None:
    few = search_images(calibration)
    assert len(few) == min(len(calibration), SEARCH_IMAGES)
    backwards = replace(
        calibration,
        images=calibration.images.take(range(len(calibration))[::-1]),
        digests=calibration.digests[::-1],
    )
    again = search_images(backwards)
    assert again.digests == few.digests
    assert [item.path for item in again.images.items] == [item.path for item in few.images.items]


def test_the_batch_size_changes_nothing(
    model: OnnxModel,
    graph: ir.Model,
    calibration: CalibrationSet,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = plan(graph).activations
    found = {}
    for size in (1, 8, 64):
        monkeypatch.setattr(statistics, "_BATCH", size)
        found[size] = collected(graph, model, names, calibration)
    for name in names:
        assert found[1][name].absmax == pytest.approx(found[64][name].absmax, rel=1e-5)
        assert found[1][name].count == found[8][name].count == found[64][name].count


class CountingSession:
    """Passes batches on and keeps count of them and of the images in them."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.batches: list[int] = []
        self.images: set[bytes] = set()

    def run_all(self, batch: NDArray[np.float32]) -> list[NDArray[np.float32]]:
        self.batches.append(len(batch))
        self.images.update(image.tobytes() for image in batch)
        return self._inner.run_all(batch)


def test_two_passes_see_every_image_once_in_bounded_batches(
    model: OnnxModel,
    graph: ir.Model,
    calibration: CalibrationSet,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[CountingSession] = []
    original = statistics._session_with_outputs

    def counting(*args: Any, **options: Any) -> CountingSession:
        made.append(CountingSession(original(*args, **options)))
        return made[-1]

    monkeypatch.setattr(statistics, "_session_with_outputs", counting)
    collected(graph, model, plan(graph).activations, calibration)
    assert len(made) == 2
    for session in made:
        assert session.batches == [8, 8, 4]
        assert len(session.images) == len(calibration)


def test_memory_does_not_grow_with_the_images(
    model: OnnxModel,
    graph: ir.Model,
    calibration: CalibrationSet,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Outputs of a batch are garbage before the one after the next is asked for."""
    alive: set[int] = set()
    most = 0

    class Counted(np.ndarray):
        def __del__(self) -> None:
            alive.discard(id(self))

    class Fake:
        def run_all(self, batch: NDArray[np.float32]) -> list[NDArray]:
            nonlocal most
            answer = np.ones((len(batch), 4), np.float32).view(Counted)
            alive.add(id(answer))
            most = max(most, len(alive))
            return [answer]

    def many(*_: Any, **_options: Any) -> Iterator[NDArray[np.float32]]:
        for _number in range(50):
            yield np.zeros((8, 3, *model.description.resolution), np.float32)

    monkeypatch.setattr(statistics, "_session_with_outputs", lambda *_args, **_kw: Fake())
    monkeypatch.setattr(statistics, "batches", many)
    name = plan(graph).activations[0]
    found = histograms(graph, model.description, {name: 1.0}, calibration)
    assert found[name].count == 50 * 8 * 4
    assert most <= 2


def not_finite(how: str) -> onnx.ModelProto:
    """Turns one pixel's value (255, white) into NaN or infinity before a Linear layer."""
    turn = (
        "zero = Sub (pixels, one)\n odd = Div (zero, zero)"
        if how == "nan"
        else ("zero = Sub (one, pixels)\n odd = Div (one, zero)")
    )
    proto = onnx.parser.parse_model(f"""
    <ir_version: 9, opset_import: ["" : 20]>
    odd (float[n, 3, 32, 48] pixels) => (float[n, 3, 32, 2] logits)
    <float one = {{1.0}}, float[48, 2] weight = {{{", ".join(["1.0"] * 96)}}}>
    {{
        {turn}
        logits = MatMul (odd, weight)
    }}
    """)
    return onnx.shape_inference.infer_shapes(proto)


@pytest.mark.parametrize("how", ["nan", "inf"])
@pytest.mark.parametrize("row", [0, 13, 31])
def test_values_that_are_not_finite_are_refused(
    how: str,
    row: int,
    model: OnnxModel,
    calibration: CalibrationSet,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One value of 4,608, wherever it stands: a maximum alone passes over NaN."""
    pixels = np.full((1, 3, *model.description.resolution), 0.25, np.float32)
    monkeypatch.setattr(statistics, "batches", lambda *_, **_options: iter([pixels]))
    graph = ir.from_proto(not_finite(how))
    assert collected(graph, model, ["odd"], calibration)["odd"].count == pixels.size
    pixels[0, 1, row, 7] = 1.0
    with pytest.raises(CalibrationError, match="odd is not finite") as caught:
        collected(graph, model, ["odd"], calibration)
    assert caught.value.hint


def test_the_graph_is_not_touched(
    model: OnnxModel, graph: ir.Model, calibration: CalibrationSet, tmp_path: Path
) -> None:
    before = ir.to_proto(graph).SerializeToString(deterministic=True)
    collected(graph, model, plan(graph).activations, calibration)
    assert ir.to_proto(graph).SerializeToString(deterministic=True) == before


@given(
    hnp.arrays(
        np.float32,
        st.integers(1, 200),
        elements=st.floats(-(2.0**99), 2.0**99, width=32),
    )
)
def test_every_value_is_counted_in_its_bin(values: NDArray[np.float32]) -> None:
    absmax = float(np.abs(values).max())
    counts = histogram_of(values, absmax)
    assert counts.shape == (BINS,)
    assert counts.sum() == values.size
    if absmax > 1e-30:
        assert counts[-1] >= 1
        above = int(counts[BINS // 2 :].sum())
        magnitudes = np.abs(values.astype(np.float64))
        clearly = int((magnitudes > 0.5001 * absmax).sum())
        assert clearly <= above <= int((magnitudes > 0.4999 * absmax).sum())
