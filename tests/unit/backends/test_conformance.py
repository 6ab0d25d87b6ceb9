"""What every session promises, asked of ONNX Runtime, OpenVINO and PyTorch alike."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from vitdeploy import environment
from vitdeploy.artifacts.engine import Engine, read_engine
from vitdeploy.artifacts.onnx_model import OnnxModel
from vitdeploy.backends import registry
from vitdeploy.backends.base import BuildOptions, Session
from vitdeploy.backends.onnxruntime_ import GraphSession
from vitdeploy.backends.options import OpenVinoOptions
from vitdeploy.backends.torch_ import TorchSession
from vitdeploy.errors import EngineError, InputError
from vitdeploy.models.source import SourceModel
from vitdeploy.target import parse_targets

SHAPE = (3, 32, 48)
COMPILED = ("onnxruntime", "openvino")
COMPILED_BY_TORCH = pytest.param("torch compiled", marks=pytest.mark.slow)
SESSIONS = (
    "torch",
    COMPILED_BY_TORCH,
    "onnxruntime fp32",
    "onnxruntime int8-fp32",
    "openvino fp32",
    "openvino int8-fp32",
    "openvino throughput",
)


def images(count: int, seed: int = 0) -> NDArray[np.float32]:
    generator = np.random.default_rng(seed)
    return generator.normal(size=(count, *SHAPE)).astype(np.float32)


@pytest.fixture(scope="session")
def engines(
    fp32_model: OnnxModel, int8_model: OnnxModel, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Engine]:
    built = {}
    for backend in COMPILED:
        for model in (fp32_model, int8_model):
            name = f"{backend} {model.description.precision}"
            output = tmp_path_factory.mktemp("engine") / "tiny.engine"
            built[name] = registry.get(backend).build(model, BuildOptions(threads=1), output)
    # Two requests at once, each answering a part of the batch.
    options = BuildOptions(threads=2, openvino=OpenVinoOptions(hint="throughput"))
    output = tmp_path_factory.mktemp("engine") / "tiny.engine"
    built["openvino throughput"] = registry.get("openvino").build(fp32_model, options, output)
    return built


@pytest.fixture(scope="session")
def sessions(engines: dict[str, Engine], tiny_source: SourceModel) -> dict[str, Session]:
    loaded: dict[str, Session] = {
        "torch": TorchSession(tiny_source, threads=1),
        "torch compiled": TorchSession(tiny_source, threads=1, compile=True),
    }
    for name, engine in engines.items():
        loaded[name] = load(name, engine)
    return loaded


def load(name: str, engine: Engine) -> Session:
    threads = 2 if name.endswith("throughput") else 1
    return registry.get(engine.manifest.backend).load(engine, threads=threads)


@pytest.fixture(params=SESSIONS)
def session(request: pytest.FixtureRequest, sessions: dict[str, Session]) -> Session:
    return sessions[request.param]


def close(left: NDArray[Any], right: NDArray[Any], session: Session) -> None:
    """Kernels may differ by batch in the last digits; INT8 by a rounding here and there."""
    tolerance = 0.05 if "int8" in session.name else 2e-5
    np.testing.assert_allclose(left, right, atol=tolerance * float(np.std(right)), rtol=0)


def test_logits_equal_pytorch(session: Session, tiny_source: SourceModel) -> None:
    batch = images(6)
    expected = tiny_source.logits(batch)
    answered = session.run(batch)
    assert answered.shape == (6, 10)
    assert answered.dtype == np.float32
    tolerance = 0.4 if "int8" in session.name else 1e-4
    assert np.abs(answered - expected).max() < tolerance * expected.std()


@pytest.mark.parametrize("backend", COMPILED)
def test_int8_means_what_the_graph_says(
    backend: str, sessions: dict[str, Session], int8_model: OnnxModel
) -> None:
    """Fused kernels against the graph with optimizations off."""
    batch = images(16)
    meaning = GraphSession(int8_model.path, optimize=False, threads=1).run(batch)
    answered = sessions[f"{backend} int8-fp32"].run(batch)
    assert np.abs(answered - meaning).mean() < 0.05 * meaning.std()


def test_one_run_does_not_touch_the_last_ones_outputs(session: Session) -> None:
    first = session.run(images(3, seed=1))
    kept = first.copy()
    second = session.run(images(3, seed=2))
    np.testing.assert_array_equal(first, kept)
    assert not np.array_equal(first, second)
    assert not np.shares_memory(first, second)
    first[:] = 0
    assert second.any()


def test_the_input_is_the_callers_to_change(session: Session) -> None:
    batch = images(2)
    before = batch.copy()
    first = session.run(batch)
    np.testing.assert_array_equal(batch, before)
    kept = first.copy()
    batch[:] = 0
    np.testing.assert_array_equal(first, kept)


@pytest.mark.parametrize("how", ["channels last", "strided", "reversed", "read-only"])
def test_memory_layout_does_not_matter(session: Session, how: str) -> None:
    batch = images(3)
    expected = session.run(batch)
    if how == "channels last":
        other = np.ascontiguousarray(batch.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    elif how == "strided":
        other = np.repeat(batch, 2, axis=0)[::2]
    elif how == "reversed":
        other = batch[:, :, :, ::-1].copy()[:, :, :, ::-1]
    else:
        other = batch.copy()
        other.flags.writeable = False
    assert other.flags.c_contiguous == (how == "read-only")
    np.testing.assert_array_equal(session.run(other), expected)


WRONG = {
    "float64": images(2).astype(np.float64),
    "float16": images(2).astype(np.float16),
    "bytes": np.zeros((2, *SHAPE), np.uint8),
    "big endian": images(2).astype(">f4"),
    "channels last": np.zeros((2, 32, 48, 3), np.float32),
    "transposed": np.zeros((2, 3, 48, 32), np.float32),
    "one channel": np.zeros((2, 1, 32, 48), np.float32),
    "no batch": np.zeros(SHAPE, np.float32),
    "five axes": np.zeros((1, 2, *SHAPE), np.float32),
    "empty": np.zeros((0, *SHAPE), np.float32),
}


@pytest.mark.parametrize("kind", WRONG)
def test_other_inputs_are_refused(session: Session, kind: str) -> None:
    with pytest.raises(InputError, match=r"\(n, 3, 32, 48\) float32") as caught:
        session.run(WRONG[kind])
    assert caught.value.hint


@pytest.mark.parametrize("count", [1, 3, 5])
def test_a_batch_answers_what_each_image_does(session: Session, count: int) -> None:
    batch = images(count)
    alone = np.concatenate([session.run(batch[i : i + 1]) for i in range(count)])
    close(session.run(batch), alone, session)


def test_sizes_can_come_in_any_order(session: Session) -> None:
    batch = images(7)
    expected = session.run(batch)
    for count in (7, 2, 5, 1, 7):
        close(session.run(batch[:count]), expected[:count], session)


def test_a_neighbour_that_is_not_a_number_changes_nothing(session: Session) -> None:
    batch = images(4)
    expected = session.run(batch)
    batch[1] = np.nan
    answered = session.run(batch)
    others = [0, 2, 3]
    close(answered[others], expected[others], session)
    if "int8" not in session.name:
        assert np.isnan(answered[1]).all()


def test_names_tell_runtime_and_precision(sessions: dict[str, Session]) -> None:
    names = {key: session.name for key, session in sessions.items()}
    assert names == {
        "torch": "PyTorch eager fp32",
        "torch compiled": "PyTorch compiled fp32",
        "onnxruntime fp32": "ONNX Runtime fp32",
        "onnxruntime int8-fp32": "ONNX Runtime int8-fp32",
        "openvino fp32": "OpenVINO fp32",
        "openvino int8-fp32": "OpenVINO int8-fp32",
        "openvino throughput": "OpenVINO fp32",
    }


@pytest.mark.parametrize("name", SESSIONS)
def test_two_sessions_in_two_threads(
    name: str,
    sessions: dict[str, Session],
    engines: dict[str, Engine],
    tiny_source: SourceModel,
) -> None:
    session = sessions[name]
    second: Session = TorchSession(tiny_source, compile=name.endswith("compiled"))
    if name in engines:
        second = load(name, engines[name])
    inputs = [images(3, seed=seed) for seed in range(8)]
    expected = [session.run(batch) for batch in inputs]

    def work(own: Session) -> list[NDArray[np.float32]]:
        return [own.run(batch) for _ in range(5) for batch in inputs]

    with ThreadPoolExecutor(2) as pool:
        for answers in pool.map(work, [session, second]):
            for found, wanted in zip(answers, expected * 5, strict=True):
                close(found, wanted, session)


@pytest.mark.parametrize("backend", COMPILED)
def test_the_manifest_is_complete(
    backend: str, engines: dict[str, Engine], int8_model: OnnxModel
) -> None:
    engine = engines[f"{backend} int8-fp32"]
    again = read_engine(engine.path)
    assert again.manifest.backend == backend
    assert again.manifest.backend_version == registry.get(backend).probe().version
    assert again.manifest.model == int8_model.description
    assert again.manifest.model_digest == int8_model.digest
    assert again.manifest.targets == ("cpu",)
    assert again.manifest.settings["cpu_features"] == list(environment.describe().cpu_features)
    assert again.manifest.build_seconds > 0


FEATURES = {
    "same": ["avx2", "avx512f"],
    "fewer": ["avx2"],
    "more": ["avx2", "avx512f", "avx512_vnni"],
    "none": [],
}


@pytest.mark.parametrize("backend", COMPILED)
@pytest.mark.parametrize("built_for", FEATURES)
def test_an_engine_of_another_cpu_is_refused(
    backend: str, built_for: str, engines: dict[str, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = replace(environment.describe(), cpu_features=tuple(FEATURES["same"]))
    monkeypatch.setattr(environment, "describe", lambda: here)
    engine = engines[f"{backend} fp32"]
    settings = {**engine.manifest.settings, "cpu_features": FEATURES[built_for]}
    engine = Engine(engine.path, replace(engine.manifest, settings=settings))
    if built_for == "same":
        assert registry.get(backend).load(engine, threads=1).run(images(1)).shape == (1, 10)
        return
    with pytest.raises(EngineError, match=r"here is .* with avx2, avx512f") as caught:
        registry.get(backend).load(engine, threads=1)
    assert "vitdeploy build-engine" in str(caught.value.hint)


@pytest.mark.parametrize("backend", COMPILED)
def test_an_engine_of_another_version_or_runtime_is_refused(
    backend: str, engines: dict[str, Engine]
) -> None:
    engine = engines[f"{backend} fp32"]
    older = Engine(engine.path, replace(engine.manifest, backend_version="0.0.1"))
    foreign = engines[f"{COMPILED[1 - COMPILED.index(backend)]} fp32"]
    for wrong in (older, foreign):
        with pytest.raises(EngineError, match=re.escape(wrong.manifest.backend_version)) as caught:
            registry.get(backend).load(wrong, threads=1)
        assert "vitdeploy build-engine" in str(caught.value.hint)


@pytest.mark.parametrize("backend", COMPILED)
def test_an_engine_file_that_is_broken_is_refused(
    backend: str, engines: dict[str, Engine], tmp_path: Path
) -> None:
    broken = tmp_path / "broken.engine"
    broken.write_bytes(engines[f"{backend} fp32"].path.read_bytes()[:1000])
    with pytest.raises(EngineError) as caught:
        registry.get(backend).load(Engine(broken, engines[f"{backend} fp32"].manifest), threads=1)
    assert caught.value.hint


@pytest.mark.parametrize("backend", COMPILED)
def test_float16_is_refused_on_a_cpu(backend: str, fp16_model: OnnxModel, tmp_path: Path) -> None:
    output = tmp_path / "half.engine"
    with pytest.raises(EngineError, match="says nothing about FP16") as caught:
        registry.get(backend).build(fp16_model, BuildOptions(), output)
    assert "int8-fp32" in str(caught.value.hint)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("backend", COMPILED)
def test_a_gpu_is_refused_by_a_cpu_runtime(
    backend: str, fp32_model: OnnxModel, tmp_path: Path
) -> None:
    options = BuildOptions(targets=parse_targets("sm89"))
    with pytest.raises(EngineError, match="sm89") as caught:
        registry.get(backend).build(fp32_model, options, tmp_path / "x.engine")
    assert "tensorrt-rtx" in str(caught.value.hint)


@pytest.mark.parametrize("backend", COMPILED)
def test_a_file_that_is_no_graph_leaves_nothing(
    backend: str, fp32_model: OnnxModel, tmp_path: Path
) -> None:
    graph = tmp_path / "broken.onnx"
    graph.write_bytes(fp32_model.path.read_bytes()[:5000])
    output = tmp_path / "out" / "x.engine"
    with pytest.raises(EngineError) as caught:
        registry.get(backend).build(replace(fp32_model, path=graph), BuildOptions(), output)
    assert caught.value.hint
    assert not output.parent.exists() or list(output.parent.iterdir()) == []
