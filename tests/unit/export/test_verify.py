"""The mutation gate of the export: `verify` refuses every wrong graph, and takes the right one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from tiny_vits import constant_of, replaced, smooth_inputs

from vitdeploy.backends.onnxruntime_ import GraphSession
from vitdeploy.errors import ExportError
from vitdeploy.export import export as stage
from vitdeploy.export import verify as module
from vitdeploy.export.export import ExportOptions, export
from vitdeploy.export.passes.module_names import name_nodes_by_module
from vitdeploy.export.trace import trace
from vitdeploy.export.verify import BATCH_SIZES, TOLERANCE, sample_images, verify
from vitdeploy.graph import files, reference
from vitdeploy.models.source import SourceModel

Resample = Callable[[torch.Tensor, tuple[int, int]], torch.Tensor]


def timms(grid: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    return torch.nn.functional.interpolate(grid, size=size, mode="bicubic", antialias=True)


def nearest(grid: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    return torch.nn.functional.interpolate(grid, size=size, mode="nearest")


def bilinear(grid: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    return torch.nn.functional.interpolate(grid, size=size, mode="bilinear", antialias=True)


def aligned(grid: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    return torch.nn.functional.interpolate(grid, size=size, mode="bicubic", align_corners=True)


def without_antialias(grid: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    return torch.nn.functional.interpolate(grid, size=size, mode="bicubic")


def transposed(grid: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """As many tokens, but in the order of the grid lying on its side."""
    return timms(grid, (size[1], size[0]))


def misread(grid: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """The native grid of 4x6 taken for 6x4."""
    return timms(grid.reshape(1, -1, grid.shape[3], grid.shape[2]), size)


def positions(source: SourceModel, size: tuple[int, int], resample: Resample) -> NDArray:
    native = source.module.get_parameter("pos_embed").detach()
    grid = native[:, 1:].reshape(1, 4, 6, -1).permute(0, 3, 1, 2)
    tokens = resample(grid, size).flatten(2).transpose(1, 2)
    return torch.cat([native[:, :1], tokens], dim=1).numpy()


def check(model: ir.Model, source: SourceModel) -> float:
    inputs, real = sample_images(source, None)
    return verify(files.serialize(model), source, inputs, real_images=real).max_error


def test_positions_have_unit_deviation(source: SourceModel) -> None:
    assert float(source.module.get_parameter("pos_embed").detach().std()) == pytest.approx(
        1.0, abs=0.1
    )


def test_the_right_graph_passes(grown: SourceModel, grown_graph: ir.Model) -> None:
    inputs, real = sample_images(grown, None)
    verification = verify(files.serialize(grown_graph), grown, inputs, real_images=real)
    assert verification.max_error < TOLERANCE / 3
    assert verification.agreement == 1.0
    assert (verification.images, verification.batch_sizes) == (8, BATCH_SIZES)
    assert not verification.real_images


@pytest.mark.parametrize("resample", [nearest, bilinear, aligned, transposed, misread])
def test_wrong_positions_are_refused(
    source: SourceModel, grown: SourceModel, grown_graph: ir.Model, resample: Resample
) -> None:
    wrong = replaced(grown_graph, "pos_embed", positions(source, (6, 10), resample))
    with pytest.raises(ExportError, match="differs from PyTorch"):
        check(wrong, grown)


def test_a_transposed_grid_of_the_other_resolution_is_refused(
    source: SourceModel, grown: SourceModel
) -> None:
    """160x96 has the token count of 96x160, so nothing but the answers can tell."""
    tall = source.at((160, 96))
    graph = name_nodes_by_module(trace(tall))
    assert check(graph, tall) < TOLERANCE
    wrong = replaced(graph, "pos_embed", grown.module.get_parameter("pos_embed").detach().numpy())
    with pytest.raises(ExportError, match="differs from PyTorch"):
        check(wrong, tall)


def test_no_antialias_when_shrinking_is_refused(source: SourceModel) -> None:
    shrunk = source.at((32, 48))
    graph = name_nodes_by_module(trace(shrunk))
    assert check(graph, shrunk) < TOLERANCE
    wrong = replaced(graph, "pos_embed", positions(source, (2, 3), without_antialias))
    with pytest.raises(ExportError, match="differs from PyTorch"):
        check(wrong, shrunk)


def test_swapped_channels_are_refused(grown: SourceModel, grown_graph: ir.Model) -> None:
    weight = constant_of(grown_graph, "patch_embed.proj.weight")
    wrong = replaced(grown_graph, "patch_embed.proj.weight", weight[:, ::-1])
    with pytest.raises(ExportError, match="differs from PyTorch"):
        check(wrong, grown)


def test_one_changed_weight_is_refused(grown: SourceModel, grown_graph: ir.Model) -> None:
    """One of 48 x 144 in the first block, moved by one deviation of its layer."""
    qkv = next(node for node in grown_graph.graph if node.name == "blocks.0.attn.qkv/MatMul")
    name = str(qkv.inputs[1].name)  # pyright: ignore[reportOptionalMemberAccess]
    weight = constant_of(grown_graph, name)
    weight[5, 100] += weight.std()
    with pytest.raises(ExportError, match="differs from PyTorch"):
        check(replaced(grown_graph, name, weight), grown)


def a_little_wrong(graph: ir.Model) -> ir.Model:
    """Off by some ten-thousandths of the answers' deviation."""
    weight = constant_of(graph, "head.weight")
    return replaced(graph, "head.weight", weight * np.float32(1.00005))


def test_a_small_error_of_the_graph_is_the_graphs(
    grown: SourceModel, grown_graph: ir.Model
) -> None:
    """The second hearing does not excuse it."""
    with pytest.raises(ExportError, match=r"differs from PyTorch by [1-9]\.[0-9]+e-04"):
        check(a_little_wrong(grown_graph), grown)


def test_rounding_of_the_runtime_is_not_the_graphs(
    grown: SourceModel, grown_graph: ir.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, real = sample_images(grown, None)
    runtime = GraphSession(files.serialize(a_little_wrong(grown_graph)))
    monkeypatch.setattr(module, "GraphSession", lambda graph: runtime)
    found = verify(files.runnable(grown_graph), grown, inputs, real_images=real)
    assert found.max_error < TOLERANCE
    assert found.runtime_error is not None
    assert found.runtime_error > TOLERANCE


def test_long_sums_are_more_exact_in_the_reference() -> None:
    text = """
    <ir_version: 9, opset_import: ["" : 20]>
    long (float[n, 1, 1, l] x) => (float[n, 1, 1, l] y)
    <float[1] one = {1.0}, float[1] zero = {0.0}> {
        y = InstanceNormalization <epsilon = 1e-6> (x, one, zero)
    }
    """
    x = np.random.default_rng(0).normal(5, 1, (2, 1, 1, 400_000)).astype(np.float32)
    graph = onnx.parser.parse_model(text).SerializeToString()
    centered = x.astype(np.float64) - x.mean(-1, keepdims=True, dtype=np.float64)
    exact = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-6)
    (runtimes,) = GraphSession(graph).run_all(x)
    references = reference.answers(graph, x)
    assert references is not None
    loss = [np.abs(each - exact).max() for each in (references, runtimes)]
    assert loss[0] < 2e-6 < loss[1]


def test_what_the_reference_cannot_run_is_judged_as_the_runtime_answered() -> None:
    """Its transposed convolution takes no groups of several channels."""
    text = """
    <ir_version: 9, opset_import: ["" : 20]>
    grouped (float[n, 4, 4, 4] x) => (float[n, 2, 5, 5] y) {
        w = Constant <value = float[4, 1, 2, 2] {1,2,3,4,5,6,7,8,9,9,8,7,6,5,4,3}> ()
        y = ConvTranspose <group = 2> (x, w)
    }
    """
    x = np.random.default_rng(0).normal(0, 1, (3, 4, 4, 4)).astype(np.float32)
    graph = onnx.parser.parse_model(text).SerializeToString()
    answered = GraphSession(graph).run(x)
    assert reference.answers(graph, x) is None
    expected = answered + 3e-4 * answered.std()
    kept, runtime_error = module.heard_again(graph, x, answered, expected)
    assert runtime_error is None
    np.testing.assert_array_equal(kept, answered)


def test_values_that_are_not_finite_are_refused(grown: SourceModel, grown_graph: ir.Model) -> None:
    bias = constant_of(grown_graph, "blocks.0.attn.qkv.bias")
    bias[-1] = np.nan
    with pytest.raises(ExportError, match="not finite"):
        check(replaced(grown_graph, "blocks.0.attn.qkv.bias", bias), grown)


def constant_graph(logits: NDArray[np.float32], rows: int | None) -> bytes:
    """Answers `logits` whatever the image: for each, or `rows` times whatever the batch."""
    node = helper.make_node
    pixels = helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 3, 96, 160])
    answer = helper.make_tensor_value_info("logits", TensorProto.FLOAT, [None, 10])
    constants = {"logits_row": logits[None], "ten": np.array([10], np.int64)}
    if rows is None:
        count = [node("Shape", ["input"], ["rows"], start=0, end=1)]
    else:
        count = [node("Identity", ["fixed"], ["rows"])]
        constants["fixed"] = np.array([rows], np.int64)
    nodes = [
        *count,
        node("Concat", ["rows", "ten"], ["shape"], axis=0),
        node("Expand", ["logits_row", "shape"], ["logits"]),
    ]
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "constant", [pixels], [answer], tensors)
    opsets = [helper.make_opsetid("", 20)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()


@pytest.mark.parametrize(
    ("rows", "complaint"), [(None, "differs from PyTorch"), (1, "for a batch of 2")]
)
def test_a_constant_graph_is_refused(grown: SourceModel, rows: int | None, complaint: str) -> None:
    inputs, _ = sample_images(grown, None)
    best_constant = grown.logits(inputs).mean(0)
    with pytest.raises(ExportError, match=complaint):
        verify(constant_graph(best_constant, rows), grown, inputs, real_images=False)


def test_a_batch_baked_into_a_reshape_is_refused(grown: SourceModel, grown_graph: ir.Model) -> None:
    name = next(
        str(node.inputs[1].name)  # pyright: ignore[reportOptionalMemberAccess]
        for node in grown_graph.graph
        if node.name == "blocks.0.attn/Reshape"
    )
    shape = constant_of(grown_graph, name)
    shape[0], shape[1] = 2, -1
    with pytest.raises(ExportError, match="does not take a batch of 1") as caught:
        check(replaced(grown_graph, name, shape), grown)
    assert caught.value.hint


def test_bytes_that_are_no_graph_are_refused(grown: SourceModel) -> None:
    inputs, _ = sample_images(grown, None)
    with pytest.raises(ExportError, match="traced wrongly"):
        verify(b"no graph", grown, inputs, real_images=False)


def changed_source(source: SourceModel, **parameters: float) -> SourceModel:
    module = copy.deepcopy(source.module)
    with torch.no_grad():
        for name, factor in parameters.items():
            module.get_parameter(name.replace("__", ".")).mul_(factor)
    return SourceModel(module, source.description, source.resolution)


def test_flat_logits_cannot_be_verified(grown: SourceModel) -> None:
    """Any graph would pass, even the right one: so none does."""
    flat = changed_source(grown, head__weight=1e-5)
    graph = name_nodes_by_module(trace(flat))
    with pytest.raises(ExportError, match="nothing can be verified") as caught:
        check(graph, flat)
    assert "LayerScale" in str(caught.value.hint)


def test_a_source_that_is_not_finite_is_refused(grown: SourceModel, grown_graph: ir.Model) -> None:
    with pytest.raises(ExportError, match="PyTorch itself"):
        check(grown_graph, changed_source(grown, head__weight=float("nan")))


def test_nothing_is_written_when_verification_fails(
    source: SourceModel,
    grown_graph: ir.Model,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrong = replaced(grown_graph, "pos_embed", positions(source, (6, 10), nearest))
    monkeypatch.setattr(stage, "trace", lambda *_args, **_options: wrong)
    with pytest.raises(ExportError, match="differs from PyTorch") as caught:
        export(source, ExportOptions(resolution=(96, 160)), tmp_path / "out")
    assert "not written" in str(caught.value.hint)
    assert not (tmp_path / "out").exists()


def test_samples_differ_and_repeat(grown: SourceModel) -> None:
    first, _ = sample_images(grown, None)
    second, _ = sample_images(grown, None)
    np.testing.assert_array_equal(first, second)
    assert first.shape == (sum(BATCH_SIZES), 3, 96, 160)
    assert len({image.tobytes() for image in first}) == len(first)


def test_the_recorded_error_is_the_real_one(grown: SourceModel, grown_graph: ir.Model) -> None:
    """Computed again with ONNX's reference evaluator: largest difference over the deviation."""
    inputs = smooth_inputs(8, grown.resolution)
    found = verify(files.serialize(grown_graph), grown, inputs, real_images=True)
    expected = grown.logits(inputs)
    (answered,) = ReferenceEvaluator(ir.to_proto(grown_graph)).run(None, {"input": inputs})
    assert isinstance(answered, np.ndarray)
    independent = np.abs(answered - expected).max() / (expected - expected.mean(0)).std()
    assert found.real_images
    assert abs(found.max_error - independent) < TOLERANCE / 3
