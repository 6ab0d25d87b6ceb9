"""What `export` writes: other inputs, other outputs, ranges of sizes, weights in a second file."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from tiny_vits import NATIVE, lively, smooth_inputs, tiny

from vitdeploy.artifacts.onnx_model import read_onnx_model
from vitdeploy.backends import registry
from vitdeploy.backends.base import BuildOptions
from vitdeploy.backends.onnxruntime_ import GraphSession
from vitdeploy.errors import ExportError, InputError
from vitdeploy.export.export import ExportOptions, export
from vitdeploy.export.passes.fold_constants import fold_constants
from vitdeploy.export.passes.uint8_input import with_uint8_input
from vitdeploy.export.trace import trace
from vitdeploy.export.verify import verify
from vitdeploy.graph import files
from vitdeploy.models.source import SourceModel
from vitdeploy.preprocessing import Preprocessing

SIZE = (96, 64)
PIXELS = np.random.default_rng(3).integers(0, 256, size=(8, *SIZE, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def source() -> SourceModel:
    model = tiny()
    preprocessing = Preprocessing(mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.25))
    return replace(model, description=replace(model.description, preprocessing=preprocessing))


class TestBytes:
    def test_equals_the_source_on_normalized_bytes(
        self, source: SourceModel, tmp_path: Path
    ) -> None:
        saved = export(source, ExportOptions(resolution=SIZE, input_format="uint8-nhwc"), tmp_path)
        expected = source.at(SIZE).logits(source.description.preprocessing.normalize_bytes(PIXELS))
        answered = GraphSession(saved.path).run(PIXELS)
        np.testing.assert_allclose(answered, expected, atol=1e-4 * expected.std(), rtol=0)
        assert saved.description.input_format == "uint8-nhwc"
        assert ir.load(saved.path).graph[0].op_type == "Cast"

    @pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
    def test_engines_take_bytes_and_nothing_else(
        self, backend: str, source: SourceModel, tmp_path: Path
    ) -> None:
        saved = export(source, ExportOptions(resolution=SIZE, input_format="uint8-nhwc"), tmp_path)
        runtime = registry.get(backend)
        engine = runtime.build(saved, BuildOptions(), tmp_path / "x.engine")
        session = runtime.load(engine)
        expected = source.at(SIZE).logits(source.description.preprocessing.normalize_bytes(PIXELS))
        found = session.run(PIXELS)
        np.testing.assert_allclose(found, expected, atol=1e-3 * expected.std(), rtol=0)
        for wrong in (PIXELS.astype(np.float32), PIXELS.transpose(0, 3, 1, 2)):
            with pytest.raises(InputError, match=r"the model takes \(n, 96, 64, 3\) uint8"):
                session.run(wrong)

    @pytest.mark.parametrize("defect", ["mean", "std", "channels"])
    def test_wrong_normalization_is_caught(self, defect: str, source: SourceModel) -> None:
        right = source.description.preprocessing
        wrong = {
            "mean": replace(right, mean=(0.41, 0.5, 0.6)),
            "std": replace(right, std=(0.2, 0.31, 0.25)),
            "channels": replace(right, mean=right.mean[::-1], std=right.std[::-1]),
        }[defect]
        sized = source.at(SIZE)
        graph = with_uint8_input(trace(sized), wrong)
        with pytest.raises(ExportError, match="differs from PyTorch"):
            verify(files.runnable(graph), sized, PIXELS, real_images=False)


class TestOutputs:
    @pytest.mark.parametrize("output", ["probabilities", "features", "tokens"])
    def test_are_what_the_source_gives(
        self, output: Any, source: SourceModel, tmp_path: Path
    ) -> None:
        saved = export(source, ExportOptions(resolution=SIZE, output=output), tmp_path)
        inputs = smooth_inputs(3, SIZE)
        expected = replace(source, output=output).at(SIZE).logits(inputs)
        answered = GraphSession(saved.path).run(inputs)
        shapes = {"probabilities": (3, 10), "features": (3, 48), "tokens": (3, 25, 48)}
        assert answered.shape == expected.shape == shapes[output]
        np.testing.assert_allclose(answered, expected, atol=1e-4 * expected.std(), rtol=0)
        assert saved.description.output == saved.description.output_name == output

    def test_nodes_are_named_as_without_the_wrapper(
        self, source: SourceModel, tmp_path: Path
    ) -> None:
        graphs = [
            ir.load(export(source, ExportOptions(output=output), tmp_path).path).graph
            for output in ("logits", "features")
        ]
        logits, features = ({node.name for node in graph} for graph in graphs)
        assert "blocks.0.attn.qkv/MatMul" in features
        assert features - logits <= {"fc_norm/Identity", "Identity"}
        assert not any("wrapped" in name for name in graphs[1].initializers)

    def test_features_have_no_probabilities(self, source: SourceModel, tmp_path: Path) -> None:
        tower = replace(source, description=replace(source.description, task="features"))
        for output in ("probabilities", "logits"):
            with pytest.raises(InputError, match=r"no classes|no logits"):
                export(tower, ExportOptions(output=output), tmp_path)
        assert list(tmp_path.iterdir()) == []


class TestRanges:
    def test_one_graph_serves_every_size_and_says_which(
        self, source: SourceModel, tmp_path: Path
    ) -> None:
        options = ExportOptions(dynamic_resolution=((32, 32), (128, 160)))
        saved = export(source, options, tmp_path)
        assert "_32-128x32-160_fp32-" in saved.path.name
        assert saved.description.resolution_range is not None
        assert saved.description.resolution == NATIVE
        session = GraphSession(saved.path)
        for size in ((32, 160), (112, 48), NATIVE):
            inputs = smooth_inputs(2, size)
            expected = source.at(size).logits(inputs)
            answered = session.run(inputs)
            np.testing.assert_allclose(answered, expected, atol=1e-4 * expected.std(), rtol=0)

    def test_one_size_and_a_range_exclude_each_other(self) -> None:
        with pytest.raises(InputError, match="one resolution and a range"):
            ExportOptions(resolution=SIZE, dynamic_resolution=((32, 32), (64, 64)))


class TestHalf:
    def test_writes_both_graphs_and_a_forecast(self, source: SourceModel, tmp_path: Path) -> None:
        saved = export(source, ExportOptions(resolution=SIZE, precision="fp16"), tmp_path)
        names = sorted(path.name.split("_")[-1].split("-")[0] for path in tmp_path.glob("*.onnx"))
        assert names == ["fp16", "fp32"]
        forecast = saved.description.forecast
        assert forecast is not None
        assert forecast.fused.cosine >= 0.999
        assert forecast.fused.max_error > 0  # an emulation that rounds nothing would answer 0

    def test_bytes_are_normalized_in_float32(self, source: SourceModel, tmp_path: Path) -> None:
        options = ExportOptions(resolution=SIZE, precision="fp16", input_format="uint8-nhwc")
        graph = ir.load(export(source, options, tmp_path).path).graph
        own = [node for node in graph if (node.name or "").startswith("normalize/")]
        types = {node.op_type: node.outputs[0].dtype for node in own}
        assert types.pop("Transpose") == ir.DataType.FLOAT16
        assert types == dict.fromkeys(["Cast", "Sub", "Mul"], ir.DataType.FLOAT)


class TestExternalData:
    @pytest.fixture
    def saved(self, source: SourceModel, tmp_path: Path) -> Path:
        options = ExportOptions(resolution=SIZE, external_data=True)
        return export(source, options, tmp_path / "first").path

    def test_the_two_files_move_together(
        self, saved: Path, source: SourceModel, tmp_path: Path
    ) -> None:
        beside = saved.with_name(f"{saved.name}.data")
        assert saved.stat().st_size < 0.5 * beside.stat().st_size
        moved = tmp_path / "second"
        shutil.copytree(saved.parent, moved)
        shutil.rmtree(saved.parent)
        model = read_onnx_model(moved / saved.name)
        assert model.size_bytes > beside_size(model.path)
        inputs = smooth_inputs(2, SIZE)
        expected = source.at(SIZE).logits(inputs)
        answered = GraphSession(model.path).run(inputs)
        np.testing.assert_allclose(answered, expected, atol=1e-4 * expected.std(), rtol=0)
        again = GraphSession(files.runnable(files.load(model))).run(inputs)
        np.testing.assert_array_equal(again, answered)

    def test_the_digest_covers_the_second_file(self, saved: Path) -> None:
        before = read_onnx_model(saved).digest
        beside = saved.with_name(f"{saved.name}.data")
        content = bytearray(beside.read_bytes())
        content[-1] ^= 1
        beside.write_bytes(content)
        assert read_onnx_model(saved).digest != before

    def test_a_missing_second_file_is_named(self, saved: Path) -> None:
        beside = saved.with_name(f"{saved.name}.data")
        beside.unlink()
        with pytest.raises(InputError, match=beside.name) as caught:
            read_onnx_model(saved)
        assert "same folder" in str(caught.value.hint)

    def test_is_taken_where_one_file_cannot_hold_the_weights(
        self, source: SourceModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(files, "LARGEST_FILE_BYTES", 10_000)
        path = export(source, ExportOptions(resolution=SIZE), tmp_path).path
        assert path.with_name(f"{path.name}.data").is_file()
        with pytest.raises(ExportError, match="holds at most") as caught:
            export(source, ExportOptions(resolution=SIZE, external_data=False), tmp_path)
        assert "--external-data" in str(caught.value.hint)


def beside_size(path: Path) -> int:
    return path.with_name(f"{path.name}.data").stat().st_size


def test_what_depends_on_no_input_is_computed_once() -> None:
    source = lively("vit_small_patch16_rope_224", img_size=64)
    model = trace(source.at((96, 64)))
    folded = fold_constants(model)
    reachable = {folded.graph.inputs[0]}
    constant = []
    for node in folded.graph:
        if any(value in reachable for value in node.inputs):
            reachable.update(node.outputs)
        else:
            constant.append(node.op_type)
    assert constant == []
