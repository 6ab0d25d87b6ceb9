"""One INT8 file, every runtime: the same graph runs, agrees with the source, and builds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from vitdeploy.artifacts import reference
from vitdeploy.artifacts.files import file_digest
from vitdeploy.artifacts.onnx_model import OnnxModel, read_onnx_model
from vitdeploy.backends import registry
from vitdeploy.backends.base import BuildOptions, Session
from vitdeploy.backends.onnxruntime_ import GraphSession
from vitdeploy.benchmarks.accuracy.evaluation import logits_of
from vitdeploy.calibration.image_set import CalibrationSet, choose
from vitdeploy.calibration.quantize import QuantizationOptions, quantize
from vitdeploy.calibration.ranges import RangeMethod
from vitdeploy.demo import assets
from vitdeploy.images import ImageSet, image_digest, scan
from vitdeploy.target import parse_targets

COUNT = 500


@pytest.fixture(scope="module")
def float_model() -> OnnxModel:
    return read_onnx_model(assets.GRAPH)


@pytest.fixture(scope="module")
def calibration(float_model: OnnxModel) -> CalibrationSet:
    folder = assets.images_folder("calibration")
    return choose(scan(folder, labels=float_model.description.source.labels), count=128)


@pytest.fixture(scope="module")
def evaluation(float_model: OnnxModel) -> ImageSet:
    """Every fourth of the embedded images: all classes alike."""
    labels = float_model.description.source.labels
    everything = scan(assets.images_folder("evaluation"), labels=labels)
    step = len(everything) // COUNT
    return everything.take(range(0, step * COUNT, step))


@pytest.fixture(scope="module")
def digests(evaluation: ImageSet) -> list[str]:
    return [image_digest(item.path) for item in evaluation.items]


@pytest.fixture(scope="module")
def source_logits(float_model: OnnxModel, digests: list[str]) -> NDArray[np.float32]:
    """What PyTorch answered when the demo was made."""
    stored = reference.load(assets.reference_path(assets.RESOLUTION))
    source = float_model.description.source
    stored.require_source(
        source.weights_digest, source.preprocessing.digest, float_model.description.resolution
    )
    return stored.for_images(digests)


@pytest.fixture(scope="module")
def int8(
    float_model: OnnxModel, calibration: CalibrationSet, tmp_path_factory: pytest.TempPathFactory
) -> OnnxModel:
    return quantize(float_model, calibration, tmp_path_factory.mktemp("int8"))


def answers(session: Session, model: OnnxModel, images: ImageSet) -> NDArray[np.float32]:
    description = model.description
    return logits_of(session, images, description.source.preprocessing, description.resolution)


@pytest.fixture(scope="module")
def as_written(int8: OnnxModel, evaluation: ImageSet) -> NDArray[np.float32]:
    """The graph's own meaning: optimizations off."""
    return answers(GraphSession(int8.path, optimize=False), int8, evaluation)


def agreement(left: NDArray[np.float32], right: NDArray[np.float32]) -> float:
    assert np.isfinite(left).all()
    assert np.isfinite(right).all()
    return float((left.argmax(-1) == right.argmax(-1)).mean())


def test_the_source_answers_many_classes(source_logits: NDArray[np.float32]) -> None:
    """Agreement with a model that answers one class would be free."""
    shares = np.bincount(source_logits.argmax(-1), minlength=10) / COUNT
    entropy_bits = -float(np.sum(shares[shares > 0] * np.log2(shares[shares > 0])))
    assert entropy_bits > 2.5


def test_calibration_and_evaluation_are_apart(
    calibration: CalibrationSet, digests: list[str]
) -> None:
    assert len(calibration) == 128
    assert len(set(digests)) == COUNT
    assert not set(calibration.digests) & set(digests)


def test_the_float_graph_equals_the_source(
    float_model: OnnxModel, evaluation: ImageSet, source_logits: NDArray[np.float32]
) -> None:
    few = evaluation.take(range(0, COUNT, 10))
    answered = answers(GraphSession(float_model.path), float_model, few)
    expected = source_logits[::10]
    assert np.abs(answered - expected).max() < 1e-3 * expected.std()


def test_int8_agrees_with_the_source(
    as_written: NDArray[np.float32], source_logits: NDArray[np.float32]
) -> None:
    assert agreement(as_written, source_logits) >= 0.99
    assert not np.array_equal(as_written, source_logits)


def test_fused_kernels_mean_what_is_written(
    int8: OnnxModel, evaluation: ImageSet, as_written: NDArray[np.float32]
) -> None:
    fused = answers(GraphSession(int8.path), int8, evaluation)
    assert agreement(fused, as_written) >= 0.995


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_the_same_file_runs_and_agrees(
    backend: str,
    int8: OnnxModel,
    evaluation: ImageSet,
    source_logits: NDArray[np.float32],
    as_written: NDArray[np.float32],
    tmp_path: Path,
) -> None:
    runtime = registry.get(backend)
    engine = runtime.build(int8, BuildOptions(), tmp_path / "int8.engine")
    assert engine.manifest.model_digest == int8.digest == file_digest(int8.path)
    answered = answers(runtime.load(engine), int8, evaluation)
    assert agreement(answered, source_logits) >= 0.99
    assert agreement(answered, as_written) >= 0.99


def test_the_same_file_builds_in_tensorrt_rtx(int8: OnnxModel, tmp_path: Path) -> None:
    options = BuildOptions(targets=parse_targets("sm86,sm89,sm120"), batch=(1, 8, 32))
    engine = registry.get("tensorrt-rtx").build(int8, options, tmp_path / "int8.engine")
    assert engine.manifest.model_digest == int8.digest
    assert engine.manifest.targets == ("sm86", "sm89", "sm120")
    assert engine.size_bytes > 0


def test_the_file_shrinks(float_model: OnnxModel, int8: OnnxModel) -> None:
    assert int8.size_bytes < 0.45 * float_model.size_bytes


@pytest.mark.parametrize("method", ["absmax", "percentile"])
def test_other_range_methods_do_not_collapse(
    method: RangeMethod,
    float_model: OnnxModel,
    calibration: CalibrationSet,
    evaluation: ImageSet,
    source_logits: NDArray[np.float32],
    tmp_path: Path,
) -> None:
    options = QuantizationOptions(method=method)
    model = quantize(float_model, calibration, tmp_path, options)
    few = evaluation.take(range(0, COUNT, 2))
    answered = answers(GraphSession(model.path), model, few)
    assert agreement(answered, source_logits[::2]) >= 0.97


def test_saturated_int8_fails_the_gate(
    int8: OnnxModel, evaluation: ImageSet, source_logits: NDArray[np.float32]
) -> None:
    """Mutation: every activation scale an eighth of what it should be."""
    proto = onnx.load(str(int8.path))
    scales = {node.input[1] for node in proto.graph.node if node.op_type == "QuantizeLinear"}
    for tensor in proto.graph.initializer:
        if tensor.name in scales:
            eighth = numpy_helper.to_array(tensor) / np.float32(8)
            tensor.CopyFrom(numpy_helper.from_array(eighth, tensor.name))
    few = evaluation.take(range(0, COUNT, 5))
    answered = answers(GraphSession(proto.SerializeToString()), int8, few)
    assert agreement(answered, source_logits[::5]) < 0.99
