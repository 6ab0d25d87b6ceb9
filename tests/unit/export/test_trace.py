"""What a traced graph looks like, and that its batch is dynamic in truth."""

from __future__ import annotations

import getpass
import re
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import timm
import torch
from onnx import numpy_helper
from tiny_vits import smooth_inputs

from vitdeploy.artifacts.onnx_model import OnnxModel, read_onnx_model
from vitdeploy.backends.onnxruntime_ import GraphSession
from vitdeploy.errors import ExportError, InputError
from vitdeploy.export.export import ExportOptions, export
from vitdeploy.export.passes.module_names import name_nodes_by_module
from vitdeploy.export.trace import TRACED_BATCH, trace
from vitdeploy.graph import files
from vitdeploy.models.source import SourceModel


def operators(model: ir.Model) -> Counter[str]:
    return Counter(node.op_type for node in model.graph)


def test_any_batch_equals_pytorch(grown: SourceModel, exported: OnnxModel) -> None:
    session = GraphSession(exported.path)
    for count in (1, 2, 5, 7):
        inputs = smooth_inputs(count, grown.resolution, seed=count)
        with torch.inference_mode():
            expected = grown.module(torch.from_numpy(inputs)).numpy()
        answered = session.run(inputs)
        assert answered.shape == (count, 10)
        np.testing.assert_allclose(answered, expected, atol=2e-4 * float(expected.std()), rtol=0)


def test_the_batch_is_one_symbol_at_both_ends(grown_graph: ir.Model) -> None:
    symbols = [value.shape[0] for value in (*grown_graph.graph.inputs, *grown_graph.graph.outputs)]  # pyright: ignore[reportOptionalSubscript]
    assert all(isinstance(symbol, ir.SymbolicDim) for symbol in symbols)
    assert len({str(symbol) for symbol in symbols}) == 1


def test_no_reshape_holds_the_traced_batch(grown_graph: ir.Model) -> None:
    """A batch that was baked in would be the first number of a Reshape's target."""
    targets = [node.inputs[1] for node in grown_graph.graph if node.op_type == "Reshape"]
    assert targets
    for target in targets:
        assert target is not None
        assert target.const_value is not None, f"{target.name} is computed while running"
        first = int(target.const_value.numpy()[0])
        assert first != TRACED_BATCH
        assert first in (-1, 0)


@pytest.mark.parametrize("opset", [17, 18, 19, 20, 23])
def test_operators_by_opset(source: SourceModel, opset: int) -> None:
    model = trace(source, opset=opset)
    assert model.opset_imports == {"": opset}
    assert not model.functions
    found = operators(model)
    assert not {"Resize", "If", "Loop", "Scan", "Pow", "ReduceMean", "Sqrt"} & set(found)
    assert found["LayerNormalization"] == 5
    for node in model.graph:
        if node.op_type == "LayerNormalization":
            assert node.attributes["stash_type"].as_int() == 1
    assert (found["Gelu"], found["Erf"]) == ((2, 0) if opset >= 20 else (0, 2))
    onnx.checker.check_model(ir.to_proto(model), full_check=True)


def test_nodes_are_named_after_modules(grown: SourceModel, grown_graph: ir.Model) -> None:
    names = [str(node.name) for node in grown_graph.graph]
    assert len(set(names)) == len(names)
    modules = {name for name, _ in grown.module.named_modules()}
    of_modules = [name.rsplit("/", 1)[0] for name in names if "/" in name]
    assert set(of_modules) <= modules
    for name, kind in grown.module.named_modules():
        if isinstance(kind, torch.nn.Linear):
            assert {f"{name}/MatMul", f"{name}/Gemm"} & set(names), name
        if isinstance(kind, torch.nn.LayerNorm):
            assert f"{name}/LayerNormalization" in names


def test_naming_changes_nothing_else(source: SourceModel) -> None:
    model = trace(source)
    before = operators(model)
    inputs = smooth_inputs(2, source.resolution)
    plain = GraphSession(files.serialize(model)).run(inputs)
    named = name_nodes_by_module(model)
    assert operators(named) == before
    np.testing.assert_array_equal(GraphSession(files.serialize(named)).run(inputs), plain)


def test_the_file_tells_nothing_of_this_machine(exported: OnnxModel) -> None:
    content = exported.path.read_bytes()
    home, packages = str(Path.home()), str(Path(timm.__file__).parents[1])
    for text in ("stack_trace", ".py", "Traceback", "pkg.torch", home + "/", packages):
        assert text.encode() not in content, text
    # A user name of four letters and fewer can stand in weights by chance.
    if len(getpass.getuser()) > 4:
        assert getpass.getuser().encode() not in content


def test_the_file_describes_itself(source: SourceModel, exported: OnnxModel) -> None:
    again = read_onnx_model(exported.path)
    assert again == exported
    description = again.description
    assert description.source == source.description
    assert (description.resolution, description.precision) == ((96, 160), "fp32")
    assert re.fullmatch(r"vit_tiny_patch16_224_96x160_fp32-[0-9a-f]{8}", exported.path.stem)
    proto = onnx.load(str(exported.path))
    assert [value.name for value in proto.graph.input] == [description.input_name]
    assert [value.name for value in proto.graph.output] == [description.output_name]
    assert {entry.key for entry in proto.metadata_props} == {"vitdeploy"}


def test_positions_are_timms_own_resampling(source: SourceModel, exported: OnnxModel) -> None:
    """Bicubic with antialias in float32, from the native grid; the class token's own stays."""
    native = source.module.get_parameter("pos_embed").detach()
    grid = native[:, 1:].reshape(1, 4, 6, -1).permute(0, 3, 1, 2)
    resampled = torch.nn.functional.interpolate(grid, size=(6, 10), mode="bicubic", antialias=True)
    expected = torch.cat([native[:, :1], resampled.flatten(2).transpose(1, 2)], dim=1)
    stored = {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in onnx.load(str(exported.path)).graph.initializer
    }
    np.testing.assert_allclose(stored["pos_embed"], expected.numpy(), atol=1e-6)


def test_the_source_stays_as_it_is(source: SourceModel, tmp_path: Path) -> None:
    before = {name: value.clone() for name, value in source.module.state_dict().items()}
    export(source, ExportOptions(resolution=(32, 96)), tmp_path)
    assert source.resolution == (64, 96)
    after = source.module.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    fused = [part.fused_attn for part in source.module.modules() if hasattr(part, "fused_attn")]
    assert fused
    assert all(fused)


def test_a_batch_that_is_baked_in_is_refused(grown: SourceModel) -> None:
    class Baked(torch.nn.Module):
        def __init__(self, inner: torch.nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, pixels: torch.Tensor) -> torch.Tensor:
            if pixels.shape[0] == TRACED_BATCH:
                return self.inner(pixels)
            return self.inner(pixels) * 2

    with pytest.raises(ExportError) as caught:
        trace(SourceModel(Baked(grown.module), grown.description, grown.resolution))
    assert caught.value.hint


@pytest.mark.parametrize("opset", [16, 24])
def test_opsets_out_of_range_are_refused(opset: int) -> None:
    with pytest.raises(InputError, match=str(opset)):
        ExportOptions(opset=opset)


def two_gigabytes() -> ir.Model:
    """A product with 2^29 weights, zeros that the system lays down only when they are read."""
    weight = ir.Value(name="weight", const_value=ir.Tensor(np.zeros((2**14, 2**15), np.float32)))
    rows = ir.Value(
        name="input", shape=ir.Shape(("batch", 2**14)), type=ir.TensorType(ir.DataType.FLOAT)
    )
    node = ir.node("MatMul", [rows, weight], name="product")
    node.outputs[0].name = "logits"
    node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    node.outputs[0].shape = ir.Shape(("batch", 2**15))
    graph = ir.Graph(
        [rows], node.outputs, nodes=[node], initializers=[weight], opset_imports={"": 20}, name="g"
    )
    return ir.Model(graph, ir_version=10)


def test_one_file_does_not_hold_two_gigabytes(tmp_path: Path, exported: OnnxModel) -> None:
    path = tmp_path / "large.onnx"
    with pytest.raises(ExportError, match=r"2\.1 GB") as caught:
        files.save(two_gigabytes(), exported.description, path, external_data=False)
    assert "--external-data" in str(caught.value.hint)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_two_files_do(tmp_path: Path, exported: OnnxModel) -> None:
    path = tmp_path / "large.onnx"
    saved = files.save(two_gigabytes(), exported.description, path)
    assert saved.size_bytes > files.LARGEST_FILE_BYTES
    assert read_onnx_model(path).digest == saved.digest
    proto = onnx.load(str(path), load_external_data=False)
    assert next(entry.value for entry in proto.graph.initializer[0].external_data) == (
        "large.onnx.data"
    )
    onnx.checker.check_model(str(path))
