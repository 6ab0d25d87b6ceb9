"""The steps of tuning: what each leaves as it was, and what it does not do."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest
from patterned import PLAIN, Patterned
from planted_models import norm_outliers

from vitdeploy.artifacts.onnx_model import OnnxModel
from vitdeploy.backends.onnxruntime_ import GraphSession
from vitdeploy.calibration import tuning as tuning_module
from vitdeploy.calibration.answers import answers, error_between, inputs_of
from vitdeploy.calibration.gathering import Gathering
from vitdeploy.calibration.grids import FP8, INT8
from vitdeploy.calibration.image_set import CalibrationSet, choose
from vitdeploy.calibration.plan import Policy, QuantizationPlan, plan
from vitdeploy.calibration.quantize import QuantizationOptions, tuned
from vitdeploy.calibration.statistics import search_images
from vitdeploy.calibration.tuning import Tuning
from vitdeploy.graph import files
from vitdeploy.progress import SILENT, Task
from vitdeploy.target import parse_targets


def prepared(bench: Patterned, graph: ir.Model, policy: Policy | None = None) -> Tuning:
    """Looked at, and nothing more."""
    policy = policy or Policy()
    gathering = Gathering(model=bench.model, calibration=bench.calibration)
    found = Tuning(graph, plan(graph, policy), policy.grid, gathering)
    found.look()
    return found


@pytest.fixture
def float_graph(bench: Patterned) -> ir.Model:
    return files.load(bench.model)


def test_quantized_leaves_the_float_graph_as_it_is(bench: Patterned) -> None:
    tuning = bench.tuning()
    tuning.shifts = {"head/Gemm": np.full(10, 0.1, np.float32)}
    before = files.serialize(tuning.graph)
    first = files.serialize(tuning.quantized())
    assert files.serialize(tuning.quantized()) == first != before
    assert files.serialize(tuning.graph) == before


def test_a_part_is_quantized_alone(bench: Patterned) -> None:
    tuning = bench.tuning()
    tuning.shifts = {node.name: np.full(1, 0.5, np.float32) for node in tuning.plan.linear}
    (layer,) = (node for node in tuning.plan.linear if node.name == "blocks.1.mlp.fc1/MatMul")
    graph = tuning.quantized(QuantizationPlan((layer,), {}))
    quantized = [node for node in graph.graph if node.op_type == "QuantizeLinear"]
    assert [node.inputs[0].name for node in quantized if node.inputs[0]] == [layer.activation]
    stored = [v for v in graph.graph.initializers.values() if v.dtype == ir.DataType.INT8]
    assert {v.name for v in stored if v.shape is not None and len(v.shape) == 2} == {
        f"{layer.weight}_int8"
    }
    before = tuning.graph.graph.initializers[layer.bias].const_value
    product = next(node for node in graph.graph if node.name == layer.name)
    adder = product.outputs[0].consumers()[0]
    (bias,) = (v for v in adder.inputs if v is not None and v.const_value is not None)
    assert before is not None
    assert bias.const_value is not None
    np.testing.assert_allclose(bias.const_value.numpy() - before.numpy(), 0.5, atol=1e-6)


def test_absmax_is_the_largest_magnitude_over_127(bench: Patterned) -> None:
    """Against the activations themselves, all of them."""
    tuning = bench.tuning()
    few = bench.calibration.images
    inputs = np.concatenate(inputs_of(few, bench.model.description))
    seen = tuning.graph.clone()
    values = {value.name: value for node in seen.graph for value in node.outputs}
    seen.graph.outputs[:] = [values[name] for name in tuning.plan.activations]
    found = GraphSession(files.serialize(seen)).run_all(inputs)
    for name, activation in zip(tuning.plan.activations, found, strict=True):
        assert tuning.scales[name] == pytest.approx(np.abs(activation).max() / 127, rel=1e-5)
        assert tuning.ranges[name] == "absmax"


class NoHistograms:
    """A sink that refuses the second pass."""

    def task(self, description: str, total: int | None = None) -> AbstractContextManager[Task]:
        assert "histograms" not in description
        return SILENT.task(description, total)

    def note(self, text: str) -> None:
        pass


def test_fp8_takes_absmax_and_no_second_pass(bench: Patterned, float_graph: ir.Model) -> None:
    tuning = prepared(bench, float_graph, Policy(grid=FP8))
    tuning.gathering = replace(tuning.gathering, progress=NoHistograms())
    tuning.choose_ranges("auto")
    assert set(tuning.ranges.values()) == {"absmax"}
    plain = prepared(bench, float_graph)
    plain.choose_ranges("absmax")
    for name, scale in tuning.scales.items():
        assert scale == pytest.approx(plain.scales[name] * 127 / 448, rel=1e-6)


def test_folding_changes_nothing_in_float(bench: Patterned, float_graph: ir.Model) -> None:
    norm_outliers(float_graph, 50)
    exact = answers(float_graph, inputs := inputs_of(bench.images.take(range(16)),
                                                     bench.model.description))  # fmt: skip
    tuning = prepared(bench, float_graph)
    tuning.fold()
    assert len(tuning.folded) >= 4
    assert all(0 < alpha <= 1 for alpha in tuning.folded.values())
    folded = answers(tuning.graph, inputs)
    assert np.abs(folded - exact).max() <= 1e-4 * exact.std()


def test_folded_maxima_are_those_of_the_folded_graph(
    bench: Patterned, float_graph: ir.Model
) -> None:
    """Ranges are chosen by what was divided on paper: it must be what the graph computes now."""
    norm_outliers(float_graph, 50)
    tuning = prepared(bench, float_graph)
    tuning.fold()
    tuning.choose_ranges("absmax")
    anew = prepared(bench, tuning.graph)
    anew.choose_ranges("absmax")
    assert tuning.scales == pytest.approx(anew.scales, rel=1e-4)


def test_factors_of_products_take_mse(bench: Patterned) -> None:
    """They have no layer of their own to judge by."""
    options = QuantizationOptions(targets=parse_targets("sm89"), runtime="tensorrt")
    found = tuned(Gathering(model=bench.model, calibration=bench.calibration), options)
    factors = {name for product in found.plan.products for name in product.factors}
    assert {found.ranges[name] for name in factors} == {"mse"}
    assert all(found.scales[name] > 0 for name in factors)
    entropy = replace(options, method="entropy", correct_bias=False)
    found = tuned(Gathering(model=bench.model, calibration=bench.calibration), entropy)
    assert set(found.ranges.values()) == {"entropy"}


def test_corrections_that_do_not_help_are_dropped(
    bench: Patterned, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search gone wrong: each layer's bias is off by a tenth, and the model says so."""
    tuning = bench.tuning()
    monkeypatch.setattr(
        tuning_module,
        "bias_correction",
        lambda rows, weight, *_: np.full(weight.shape[1], 0.1, np.float32),
    )
    tuning.correct_biases()
    assert tuning.shifts == {}


def test_corrections_that_help_stay(bench: Patterned, monkeypatch: pytest.MonkeyPatch) -> None:
    """The head's bias is spoilt in every quantized graph, by a shift that correcting undoes."""
    tuning = bench.tuning()
    spoilt = np.linspace(-3, 3, 10, dtype=np.float32)
    plain = Tuning.quantized

    def wrong(self: Tuning, part: QuantizationPlan | None = None) -> ir.Model:
        held = self.shifts
        self.shifts = {**held, "head/Gemm": held.get("head/Gemm", 0) + spoilt}
        graph = plain(self, part)
        self.shifts = held
        return graph

    monkeypatch.setattr(Tuning, "quantized", wrong)
    monkeypatch.setattr(
        tuning_module,
        "bias_correction",
        lambda rows, weight, *_: -spoilt if weight.shape[1] == 10 else None,
    )
    tuning.correct_biases()
    assert list(tuning.shifts) == ["head/Gemm"]
    np.testing.assert_array_equal(tuning.shifts["head/Gemm"], -spoilt)


def test_corrections_are_judged_on_images_they_were_not_found_on(
    bench: Patterned, monkeypatch: pytest.MonkeyPatch
) -> None:
    calibration: CalibrationSet = choose(bench.images, count=80)
    looked_at: list[str] = []
    through = tuning_module.inputs_of

    def spied(images, description):
        looked_at.extend(item.path.name for item in images.items)
        return through(images, description)

    monkeypatch.setattr(tuning_module, "inputs_of", spied)
    gathering = Gathering(model=bench.model, calibration=calibration)
    tuning = bench.tuning()
    tuning.gathering = gathering
    tuning.correct_biases()
    found_on = {item.path.name for item in search_images(calibration).images.items}
    assert len(looked_at) == len(found_on) == 32
    assert not found_on & set(looked_at)


def test_all_steps_together_do_no_harm(bench: Patterned, model: OnnxModel) -> None:
    gathering = Gathering(model=bench.model, calibration=bench.calibration)
    inputs = inputs_of(bench.evaluation.take(range(64)), bench.model.description)
    errors = {}
    for name, options in {"plain": PLAIN, "all": QuantizationOptions()}.items():
        found = tuned(gathering, options)
        errors[name] = error_between(
            answers(found.graph, inputs), answers(found.quantized(), inputs)
        )
        assert found.grid == INT8
    assert errors["all"] <= 1.05 * errors["plain"]
