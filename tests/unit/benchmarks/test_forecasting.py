"""Forecasts through the emulations; stored outputs of the source; both beside an engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from bench_model import Bench

from vitdeploy import api
from vitdeploy.artifacts import reference
from vitdeploy.artifacts.files import from_json, to_json
from vitdeploy.artifacts.onnx_model import OnnxModel, with_description
from vitdeploy.backends.base import BuildOptions
from vitdeploy.backends.onnxruntime_ import OnnxRuntimeBackend
from vitdeploy.benchmarks.accuracy.evaluation import EvaluationResult, digest_of, reference_outputs
from vitdeploy.benchmarks.report.assemble import Evidence, assemble
from vitdeploy.benchmarks.report.markdown import to_markdown
from vitdeploy.benchmarks.report.model import AccuracyForecast
from vitdeploy.errors import GateFailedError, InputError
from vitdeploy.export.precision import to_half
from vitdeploy.graph import files


@pytest.fixture(scope="module")
def half(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> OnnxModel:
    return to_half(bench.model, tmp_path_factory.mktemp("half"), images=bench.images.take(range(8)))


@pytest.fixture(scope="module")
def forecast(bench: Bench, half: OnnxModel) -> AccuracyForecast:
    return api.forecast(half, bench.answers, bench.images, threads=1)


def test_a_sound_half_precision_graph_is_forecast_to_pass(
    forecast: AccuracyForecast, half: OnnxModel, bench: Bench
) -> None:
    assert forecast.fused.verdict == "pass"
    assert (forecast.precision, forecast.graph_digest) == ("fp16", half.digest)
    assert forecast.images_digest == digest_of(bench.images)
    # The emulations round; a graph computed in float32 would differ by less than 1e-5.
    fused, worst = (end.max_error for end in (forecast.fused, forecast.worst))
    assert 1e-4 < fused < worst
    assert forecast.in_words().startswith("forecast: drop ")
    assert from_json(to_json(forecast), AccuracyForecast, origin="test") == forecast


def test_an_overflow_that_float32_hides_is_forecast(
    bench: Bench, half: OnnxModel, tmp_path: Path
) -> None:
    graph = files.load(half)
    head = [n for n in graph.graph if n.op_type in ("Gemm", "MatMul")][-1]
    weight = head.inputs[1]
    assert weight is not None
    assert weight.const_value is not None
    array = weight.const_value.numpy()
    louder = array * np.float16(6e4 / np.abs(array).max())  # the weights alone do not overflow
    weight.const_value = ir.Tensor(louder, name=weight.name)
    loud = files.save(graph, half.description, tmp_path / "loud.onnx")
    with pytest.raises(GateFailedError, match="not finite"):
        api.forecast(loud, bench.answers, bench.images, threads=1)


def test_a_float32_graph_has_one_meaning(bench: Bench) -> None:
    found = api.forecast(bench.model, bench.answers, bench.images.take(range(600)), threads=1)
    assert found.fused == found.worst
    assert found.fused.agreement == 1.0


def test_forecast_and_measurement_stand_side_by_side(
    bench: Bench, forecast: AccuracyForecast, tmp_path: Path
) -> None:
    engine = api.build_engine(bench.model, OnnxRuntimeBackend(), tmp_path, BuildOptions(threads=1))
    baseline = api.Baseline("stand-in", bench.answers, None, None)
    found = api.evaluate(engine, baseline, bench.images)
    result = replace(found, forecast=forecast)
    assert from_json(to_json(result), EvaluationResult, origin="test") == result
    digest = engine.manifest.engine_digest
    report = assemble(Evidence(engines=[engine], evaluations={digest: result}))
    text = to_markdown(report)
    assert "| Figure | FP32 on ONNX Runtime |" in text
    assert "| agreement | 100.00%" in text
    assert "| forecast | drop" in text
    graph_digest = engine.manifest.model_digest
    elsewhere = Evidence(engines=[engine], evaluations={}, forecasts={graph_digest: forecast})
    assert "| forecast | drop" in to_markdown(assemble(elsewhere))


class TestStoredOutputs:
    def stored(self, bench: Bench, tmp_path: Path) -> reference.ReferenceOutputs:
        outputs = reference_outputs(bench.answers, bench.images, bench.model.description)
        reference.save(outputs, tmp_path / "source.npz")
        return reference.load(tmp_path / "source.npz")

    def test_they_stand_for_the_source_in_any_order(self, bench: Bench, tmp_path: Path) -> None:
        images = bench.images.take(list(range(599, -1, -3)))
        found = api.baseline_from_reference(
            self.stored(bench, tmp_path), bench.model.description, images
        )
        np.testing.assert_array_equal(found.logits, bench.answers[::-3])
        assert found.top1 is not None

    @pytest.mark.parametrize("other", ["weights", "preprocessing", "resolution", "output"])
    def test_those_of_another_source_are_refused(
        self, bench: Bench, tmp_path: Path, other: str
    ) -> None:
        description = bench.model.description
        source = description.source
        recipe = replace(source.preprocessing, interpolation="bilinear")
        changes = {
            "weights": replace(description, source=replace(source, weights_digest="0" * 64)),
            "preprocessing": replace(description, source=replace(source, preprocessing=recipe)),
            "resolution": replace(description, resolution=(64, 96)),
            "output": replace(description, output="probabilities"),
        }
        with pytest.raises(InputError, match=f"other {other}$"):
            api.baseline_from_reference(self.stored(bench, tmp_path), changes[other], bench.images)

    def test_those_of_other_images_are_refused(self, bench: Bench, tmp_path: Path) -> None:
        stored = self.stored(bench, tmp_path)
        path = tmp_path / "again.png"
        path.write_bytes(bench.images.items[0].path.read_bytes() + b"\0")
        items = (*bench.images.items[1:], replace(bench.images.items[0], path=path))
        images = replace(bench.images, items=items)
        with pytest.raises(InputError, match="lack 1 of 600 images"):
            api.baseline_from_reference(stored, bench.model.description, images)

    def test_tokens_are_stored_as_rows(self, bench: Bench, tmp_path: Path) -> None:
        tokens = np.random.default_rng(0).normal(size=(600, 3, 5)).astype(np.float32)
        description = with_description(bench.model, output="tokens")
        reference.save(reference_outputs(tokens, bench.images, description), tmp_path / "t.npz")
        found = reference.load(tmp_path / "t.npz")
        assert (found.logits.shape, found.output) == ((600, 15), "tokens")
