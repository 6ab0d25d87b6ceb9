"""Attention products: for whom they are quantized, what is written then, and what it computes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from numpy.typing import NDArray
from unit_gain import random_vit

from vitdeploy.artifacts.onnx_model import ModelDescription, OnnxModel, ResolutionRange
from vitdeploy.backends import registry
from vitdeploy.backends.base import BuildOptions
from vitdeploy.backends.onnxruntime_ import GraphSession
from vitdeploy.calibration.attention import attention_products, largest_shapes
from vitdeploy.calibration.grids import FP8, INT8, GridName
from vitdeploy.calibration.image_set import CalibrationSet
from vitdeploy.calibration.plan import Policy, QuantizationPlan, plan
from vitdeploy.calibration.qdq import insert_qdq
from vitdeploy.calibration.quantize import QuantizationOptions, planned, quantize
from vitdeploy.errors import CalibrationError
from vitdeploy.export.dynamic.sizes import range_of
from vitdeploy.export.passes.module_names import name_nodes_by_module
from vitdeploy.export.passes.uint8_input import with_uint8_input
from vitdeploy.export.precision import to_half
from vitdeploy.export.trace import trace_dynamic
from vitdeploy.graph import files
from vitdeploy.images import batches
from vitdeploy.models.source import SourceModel
from vitdeploy.target import CPU, Target, parse_targets

ALL_GPUS = "sm75,sm80,sm86,sm87,sm89,sm90,sm100,sm103,sm110,sm120,sm121"
GPU = parse_targets("sm89")
PRODUCTS = {f"blocks.{i}.attn/{name}" for i in (0, 1) for name in ("MatMul", "MatMul_1")}


def quantized_for(
    graph: ir.Model, targets: str, runtime: str, numbers: GridName = "int8"
) -> QuantizationPlan:
    policy = Policy(grid=INT8 if numbers == "int8" else FP8)
    return plan(graph, policy, parse_targets(targets), runtime=runtime)


@pytest.mark.parametrize("target", parse_targets(ALL_GPUS), ids=lambda target: target.name)
@pytest.mark.parametrize(
    ("head_size", "tokens", "fused"),
    [
        (16, 65, True),
        (32, 197, True),
        (64, 197, True),
        (64, 512, True),
        (64, 513, False),
        (64, 577, False),
        (32, 0, False),
        (72, 197, False),
        (80, 197, False),
        (48, 197, False),
        (128, 65, False),
        (0, 197, False),
    ],
)
def test_int8_attention_by_its_size(
    target: Target, head_size: int, tokens: int, fused: bool
) -> None:
    reason = target.why_attention_is_float("int8", head_size, tokens, "tensorrt")
    assert (reason == "") is fused
    assert fused or any(str(number or "?") in reason for number in (head_size, tokens))
    assert "weights only" in target.why_attention_is_float(
        "int8", head_size, tokens, "tensorrt-rtx"
    )


@pytest.mark.parametrize("target", parse_targets(ALL_GPUS), ids=lambda target: target.name)
@pytest.mark.parametrize("runtime", ["tensorrt", "tensorrt-rtx"])
def test_fp8_attention_by_the_gpu(target: Target, runtime: str) -> None:
    reason = target.why_attention_is_float("fp8", 80, 577, runtime)
    if target.compute_capability is not None and target.compute_capability >= 89:
        assert reason == ""
    else:
        assert reason == f"{target.name} has no FP8"


@pytest.mark.parametrize("numbers", ["int8", "fp8"])
def test_never_on_a_cpu(numbers: GridName) -> None:
    assert "on a CPU" in CPU.why_attention_is_float(numbers, 64, 197)


@pytest.mark.parametrize(
    ("targets", "runtime", "numbers", "why_not"),
    [
        ("cpu", "openvino", "int8", "on a CPU"),
        ("cpu", "", "fp8", "on a CPU"),
        ("sm89", "tensorrt", "int8", ""),
        ("sm75,sm86,sm120", "tensorrt", "int8", ""),
        ("sm86,sm89,sm120", "tensorrt-rtx", "int8", "weights only"),
        ("sm89,sm120", "tensorrt-rtx", "fp8", ""),
        ("sm120,sm86,sm89", "tensorrt", "fp8", "sm86 has no FP8"),
        ("sm89,sm75", "tensorrt", "fp8", "sm75 has no FP8"),
    ],
)
def test_the_weakest_target_decides_and_the_plan_says_why(
    targets: str, runtime: str, numbers: GridName, why_not: str, graph: ir.Model
) -> None:
    found = quantized_for(graph, targets, runtime, numbers)
    if why_not:
        assert found.products == ()
        assert all(why_not in found.kept[name] for name in PRODUCTS)
    else:
        assert {product.name for product in found.products} == PRODUCTS
        assert not PRODUCTS & set(found.kept)
        assert {found.quantized[name] for name in PRODUCTS} == {
            "attention product: the target computes it fused"
        }
    assert len(found.linear) == 9


def test_a_plan_is_a_pure_function(model: OnnxModel, graph: ir.Model) -> None:
    before = files.serialize(graph)
    first, second = (quantized_for(graph, "sm89", "tensorrt") for _ in range(2))
    assert first == second
    assert list(first.kept) == list(second.kept)
    assert files.serialize(graph) == before
    assert quantized_for(files.load(model), "sm89", "tensorrt") == first
    assert quantized_for(graph, "sm89", "tensorrt-rtx") != first


@pytest.mark.parametrize("kept", ["MatMul", "MatMul_1"])
def test_keeping_one_product_keeps_its_pair(kept: str, graph: ir.Model) -> None:
    policy = Policy(keep=(f"blocks.0.attn/{kept}",))
    found = plan(graph, policy, GPU, runtime="tensorrt")
    assert {product.name for product in found.products} == {
        "blocks.1.attn/MatMul",
        "blocks.1.attn/MatMul_1",
    }
    for name in ("MatMul", "MatMul_1"):
        assert found.kept[f"blocks.0.attn/{name}"] == "kept in float on request"


def test_attention_can_be_left_out(graph: ir.Model) -> None:
    found = plan(graph, Policy(attention=False), GPU, runtime="tensorrt")
    assert found.products == ()
    assert {found.kept[name] for name in PRODUCTS} == {
        "attention product: left in float on request"
    }


def test_a_name_that_no_node_has_is_refused(graph: ir.Model) -> None:
    with pytest.raises(CalibrationError, match=r"blocks\.7\.attn/MatMul"):
        plan(graph, Policy(keep=("blocks.7.attn/MatMul",)), GPU, runtime="tensorrt")


@pytest.fixture(scope="module")
def any_size(tmp_path_factory: pytest.TempPathFactory) -> OnnxModel:
    """A graph for 224 to 512 pixels, heads of 32."""
    torch.set_num_threads(1)
    source: SourceModel = random_vit(
        model_kwargs={"depth": 1, "embed_dim": 96, "num_heads": 3, "num_classes": 4}
    )
    sizes = range_of(source, (224, 224), (512, 512))
    description = ModelDescription(
        source=source.description,
        resolution=source.resolution,
        precision="fp32",
        opset=20,
        input_name="input",
        output_name="logits",
        resolution_range=sizes,
    )
    graph = name_nodes_by_module(trace_dynamic(source, sizes))
    path = tmp_path_factory.mktemp("dynamic") / "dynamic.onnx"
    return files.save(graph, description, path)


def up_to(model: OnnxModel, high: tuple[int, int]) -> OnnxModel:
    sizes = ResolutionRange((224, 224), high, (16, 16))
    return replace(model, description=replace(model.description, resolution_range=sizes))


@pytest.mark.parametrize(
    ("high", "tokens"),
    [
        ((256, 256), 257),
        ((336, 352), 463),
        ((368, 352), 507),
        ((368, 368), 530),
        ((512, 512), 1025),
    ],
)
def test_the_largest_size_decides(high: tuple[int, int], tokens: int, any_size: OnnxModel) -> None:
    model = up_to(any_size, high)
    graph = files.load(model)
    (found,) = attention_products(graph, largest_shapes(model))
    assert (found.head_size, found.tokens) == (32, tokens)
    chosen = planned(model, graph, QuantizationOptions(targets=GPU, runtime="tensorrt"))
    assert len(chosen.products) == (2 if tokens <= 512 else 0)
    if tokens > 512:
        assert f"up to 512 tokens, not for {tokens}" in chosen.kept["blocks.0.attn/MatMul"]


def test_without_the_largest_size_nothing_is_assumed(any_size: OnnxModel) -> None:
    graph = files.load(any_size)
    (found,) = attention_products(graph)
    assert found.tokens == 0
    assert plan(graph, targets=GPU, runtime="tensorrt").products == ()


def test_a_graph_of_bytes_is_looked_at_in_its_own_layout(
    any_size: OnnxModel, tmp_path: Path
) -> None:
    source = any_size.description.source
    graph = with_uint8_input(files.load(any_size), source.preprocessing)
    description = replace(any_size.description, input_format="uint8-nhwc")
    model = up_to(files.save(graph, description, tmp_path / "bytes.onnx"), (256, 320))
    (found,) = attention_products(files.load(model), largest_shapes(model))
    assert found.tokens == 321


def quantized_products(graph: ir.Model, numbers: GridName) -> tuple[ir.Model, QuantizationPlan]:
    """The products alone quantized, with scales that clip a little."""
    found = quantized_for(graph, "sm89", "tensorrt", numbers)
    products = QuantizationPlan((), {}, found.products)
    scales = {name: step(name) for name in products.activations}
    insert_qdq(graph, products, scales, grid=INT8 if numbers == "int8" else FP8)
    return graph, products


def step(name: str) -> float:
    """Held by float16 exactly."""
    return 2.0**-7 if "softmax" in name else 2.0**-6


def test_each_factor_has_its_pair_and_nothing_else(graph: ir.Model) -> None:
    changed, products = quantized_products(graph, "int8")
    onnx.checker.check_model(ir.to_proto(changed), full_check=True)
    kinds = Counter(node.op_type for node in changed.graph)
    assert kinds["QuantizeLinear"] == kinds["DequantizeLinear"] == 8
    for node in changed.graph:
        feeders = [value.producer() for value in node.inputs if value is not None]
        quantized = [f is not None and f.op_type == "DequantizeLinear" for f in feeders]
        assert quantized == ([True, True] if node.name in PRODUCTS else [False] * len(feeders)) or (
            node.op_type == "DequantizeLinear"
        )
    assert {name for product in products.products for name in product.factors} == {
        node.inputs[0].name
        for node in changed.graph
        if node.op_type == "QuantizeLinear" and node.inputs[0] is not None
    }


def observed(graph: ir.Model, names: list[str], pixels: NDArray) -> dict[str, NDArray]:
    seen = graph.clone()
    values = {value.name: value for node in seen.graph for value in node.outputs}
    seen.graph.outputs[:] = [values[name] for name in names]
    answered = GraphSession(files.serialize(seen), optimize=False).run_all(pixels)
    return dict(zip(names, answered, strict=True))


def by_hand(value: float, scale: float) -> float:
    return max(-128, min(127, round(value / scale))) * scale


def test_it_equals_a_slow_quantization(
    graph: ir.Model, model: OnnxModel, calibration: CalibrationSet
) -> None:
    """Every product of both attentions, number by number, from what went into it."""
    changed, products = quantized_products(graph, "int8")
    description = model.description
    preprocessing = description.source.preprocessing
    pixels = next(batches(calibration.images, preprocessing, description.resolution, 1))
    outputs = {str(n.name): str(n.outputs[0].name) for n in changed.graph}
    names = [*products.activations, *(outputs[p.name] for p in products.products)]
    seen = observed(changed, names, pixels)
    clipped = 0
    for product in products.products:
        left, right = (seen[name][0] for name in product.factors)
        steps = [step(name) for name in product.factors]
        clipped += int((np.abs(right) > 2).sum())
        expected = np.zeros((*left.shape[:2], right.shape[2]))
        for head, row, column in np.ndindex(*expected.shape):
            expected[head, row, column] = sum(
                by_hand(float(a), steps[0]) * by_hand(float(b), steps[1])
                for a, b in zip(left[head, row], right[head, :, column], strict=True)
            )
        answered = seen[outputs[product.name]][0]
        np.testing.assert_allclose(answered, expected, rtol=1e-5, atol=1e-5)
        assert np.abs(answered - left @ right).max() > 1e-3, "nothing was quantized"
    assert clipped > 0


def test_calibrated_attention_answers_as_float(
    model: OnnxModel, calibration: CalibrationSet, tmp_path: Path
) -> None:
    options = QuantizationOptions(targets=GPU, runtime="tensorrt")
    int8 = quantize(model, calibration, tmp_path, options)
    made = int8.description.quantization
    assert made is not None
    assert set(made.quantized) >= PRODUCTS
    assert len(made.ranges) == 9 + 8
    softmax = [method for name, method in made.ranges.items() if "softmax" in name]
    assert softmax == ["mse", "mse"]
    description = model.description
    preprocessing = description.source.preprocessing
    pixels = next(batches(calibration.images, preprocessing, description.resolution, 20))
    exact = GraphSession(model.path).run(pixels)
    answered = GraphSession(int8.path, optimize=False).run(pixels)
    error = np.abs(answered - exact).mean() / (exact - exact.mean(0)).std()
    assert 1e-4 < error < 0.1


@pytest.mark.parametrize(
    ("numbers", "targets"), [("int8", "sm89"), ("int8", "sm86,sm89,sm120"), ("fp8", "sm89,sm120")]
)
def test_tensorrt_rtx_builds_it(
    numbers: GridName, targets: str, model: OnnxModel, tmp_path: Path
) -> None:
    """Without TensorRT-RTX this fails: a build that was never tried proves nothing."""
    graph = files.load(model)
    chosen = quantized_for(graph, "sm89", "tensorrt", numbers)
    assert len(chosen.products) == 4
    grid = INT8 if numbers == "int8" else FP8
    insert_qdq(graph, chosen, dict.fromkeys(chosen.activations, 0.05), grid=grid)
    files.unused_initializers_removed(graph)
    description = replace(model.description, precision=f"{numbers}-fp32")
    written = files.save(graph, description, tmp_path / "quantized.onnx")
    half = to_half(written, tmp_path)
    options = BuildOptions(targets=parse_targets(targets), batch=(1, 2, 4))
    engine = registry.get("tensorrt-rtx").build(half, options, tmp_path / "out.engine")
    assert engine.manifest.targets == tuple(targets.split(","))
    assert engine.size_bytes > 0.5 * half.size_bytes
