"""What ONNX Runtime and OpenVINO are asked for stands in the manifest and holds when loaded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from vitdeploy import api, environment
from vitdeploy.artifacts.engine import Engine
from vitdeploy.artifacts.onnx_model import OnnxModel
from vitdeploy.backends import openvino_, registry
from vitdeploy.backends.base import BuildOptions
from vitdeploy.backends.onnxruntime_providers import session_options
from vitdeploy.backends.options import OnnxRuntimeOptions, OpenVinoOptions
from vitdeploy.errors import EngineError, InputError, MissingDependencyError
from vitdeploy.graph import files

PIXELS = np.random.default_rng(1).normal(size=(5, 3, 32, 48)).astype(np.float32)
CUDA = OnnxRuntimeOptions(device="cuda")


def build(backend: str, model: OnnxModel, folder: Path, **options: Any) -> Engine:
    return registry.get(backend).build(model, BuildOptions(**options), folder / "tiny.engine")


def test_onnx_runtime_records_how_it_built(fp32_model: OnnxModel, tmp_path: Path) -> None:
    plain = build("onnxruntime", fp32_model, tmp_path, threads=2)
    settings = plain.manifest.settings
    assert settings["provider"] == "CPUExecutionProvider"
    assert (settings["threads"], settings["affinity"]) == (2, "")
    assert settings["graph_optimization"] == "all"
    assert set(settings["nodes_by_provider"]) == {"CPUExecutionProvider"}
    fused = len(files.load(replace(fp32_model, path=plain.path)).graph)
    none = OnnxRuntimeOptions(graph_optimization="none")
    as_written = build("onnxruntime", fp32_model, tmp_path, onnxruntime=none)
    assert as_written.manifest.settings["graph_optimization"] == "none"
    assert len(files.load(replace(fp32_model, path=as_written.path)).graph) > fused


def test_threads_stay_where_they_were_pinned(fp32_model: OnnxModel, tmp_path: Path) -> None:
    pinned = OnnxRuntimeOptions(affinity="1")
    engine = build("onnxruntime", fp32_model, tmp_path, threads=2, onnxruntime=pinned)
    assert engine.manifest.settings["affinity"] == "1"
    runtime = registry.get("onnxruntime")
    expected = registry.get("onnxruntime").load(engine).run(PIXELS)
    np.testing.assert_allclose(runtime.load(engine, threads=2).run(PIXELS), expected, atol=1e-5)
    with pytest.raises(InputError, match="pins its 2 threads"):
        runtime.load(engine, threads=1)
    with pytest.raises(InputError, match="for 2 threads") as caught:
        build("onnxruntime", fp32_model, tmp_path, threads=4, onnxruntime=pinned)
    assert "--threads 2" in str(caught.value.hint)
    wrong = OnnxRuntimeOptions(affinity="first core")
    with pytest.raises(InputError, match="names no cores"):
        build("onnxruntime", fp32_model, tmp_path, threads=2, onnxruntime=wrong)


@pytest.mark.parametrize(
    ("affinity", "missing"),
    [
        ("0", "0"),
        ("99999", "99999"),
        ("2-4,1;9", "2-4, 9"),
        ("5;3", "3"),
        ("1-5", "1-5"),
        ("7-5", "7-5"),
    ],
)
def test_cores_that_are_not_here_are_named(
    affinity: str,
    missing: str,
    fp32_model: OnnxModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process need not have all cores of its machine."""
    monkeypatch.setattr(environment, "core_numbers", lambda: (0, 4, 6))
    asked = OnnxRuntimeOptions(affinity=affinity)
    with pytest.raises(InputError, match=f"does not have: {missing}$") as caught:
        build(
            "onnxruntime", fp32_model, tmp_path, threads=asked.pinned_threads(), onnxruntime=asked
        )
    assert str(caught.value.hint).endswith("1, 5, 7")


def test_an_engine_is_not_pinned_to_cores_that_have_gone(
    fp32_model: OnnxModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned = OnnxRuntimeOptions(affinity="1")
    engine = build("onnxruntime", fp32_model, tmp_path, threads=2, onnxruntime=pinned)
    monkeypatch.setattr(environment, "core_numbers", lambda: tuple(range(1, 40)))
    with pytest.raises(InputError, match="does not have: 1") as caught:
        registry.get("onnxruntime").load(engine)
    assert str(caught.value.hint).endswith("2 to 40")


@pytest.mark.parametrize("device", ["cuda", "tensorrt"])
def test_a_provider_that_is_not_here_is_refused(
    device: Any, fp32_model: OnnxModel, tmp_path: Path
) -> None:
    asked = OnnxRuntimeOptions(device=device)
    with pytest.raises(MissingDependencyError, match="ExecutionProvider") as caught:
        build("onnxruntime", fp32_model, tmp_path, onnxruntime=asked)
    assert "onnxruntime-gpu" in str(caught.value.hint)
    assert not (tmp_path / "tiny.engine").exists()


def test_an_unknown_provider_is_refused(fp32_model: OnnxModel, tmp_path: Path) -> None:
    engine = build("onnxruntime", fp32_model, tmp_path, threads=1)
    settings = {**engine.manifest.settings, "provider": "MadeUpExecutionProvider"}
    other = Engine(engine.path, replace(engine.manifest, settings=settings))
    with pytest.raises(EngineError, match="MadeUp"):
        registry.get("onnxruntime").load(other)


def test_openvino_records_precision_and_requests(fp32_model: OnnxModel, tmp_path: Path) -> None:
    settings = build("openvino", fp32_model, tmp_path, threads=1).manifest.settings
    assert settings["inference_precision"] == "f32"
    assert settings["execution_devices"] == ["CPU"]
    assert (settings["PERFORMANCE_HINT"], settings["requests"]) == ("LATENCY", 1)
    many = OpenVinoOptions(hint="throughput")
    engine = build("openvino", fp32_model, tmp_path, threads=2, openvino=many)
    assert engine.manifest.settings["PERFORMANCE_HINT"] == "THROUGHPUT"
    assert engine.manifest.settings["requests"] == 2
    session = registry.get("openvino").load(engine, threads=2)
    assert isinstance(session, openvino_.OpenVinoSession)
    assert len(session._requests) == 2


@pytest.mark.parametrize("device", ["GPU", "NPU", "GPU.1"])
def test_a_device_that_openvino_does_not_see_is_refused(
    device: str, fp32_model: OnnxModel, tmp_path: Path
) -> None:
    with pytest.raises(MissingDependencyError, match=f"no {device} here, only CPU"):
        build("openvino", fp32_model, tmp_path, openvino=OpenVinoOptions(device=device))


class Seen:
    """A core that sees a GPU, and compiles for the CPU in its place to be caught at it."""

    available_devices = ("CPU", "GPU")

    def __init__(self) -> None:
        self._true = openvino_._runtime().Core()
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._true, name)

    def compile_model(self, model: Any, device: str, settings: dict[str, Any]) -> Any:
        self.asked.append((device, settings))
        return self._true.compile_model(model, "CPU", settings)

    def import_model(self, blob: bytes, device: str, settings: dict[str, Any]) -> Any:
        self.asked.append((device, settings))
        return self._true.import_model(blob, "CPU", settings)

    def get_property(self, device: str, name: str) -> str:
        return f"a {device} of Intel's"


def test_another_device_of_openvino(
    fp32_model: OnnxModel,
    fp16_model: OnnxModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FP16 graphs are computed as such there, and an engine belongs to that very device."""
    core = Seen()
    true = openvino_._runtime()

    class Runtime:
        __version__ = true.__version__
        Core = staticmethod(lambda: core)

    monkeypatch.setattr(openvino_, "_runtime", lambda: Runtime)
    gpu = OpenVinoOptions(device="GPU")
    for model, precision in ((fp32_model, "f32"), (fp16_model, "f16")):
        with pytest.raises(EngineError, match=r"asked for GPU and took CPU"):
            build("openvino", model, tmp_path, openvino=gpu)
        device, settings = core.asked[-1]
        assert device == "GPU"
        assert settings["INFERENCE_PRECISION_HINT"] == precision
        assert "INFERENCE_NUM_THREADS" not in settings
    assert not (tmp_path / "tiny.engine").exists()


FOREIGN = {
    "onnxruntime": BuildOptions(openvino=OpenVinoOptions(hint="throughput")),
    "openvino": BuildOptions(onnxruntime=CUDA),
    "tensorrt": BuildOptions(onnxruntime=CUDA, openvino=OpenVinoOptions(device="NPU")),
    "tensorrt-rtx": BuildOptions(onnxruntime=OnnxRuntimeOptions(affinity="2")),
}


@pytest.mark.parametrize("backend", FOREIGN)
def test_options_of_another_runtime_are_refused(backend: str) -> None:
    with pytest.raises(InputError, match=f"{backend} has no --") as caught:
        api.check_options(registry.get(backend), FOREIGN[backend], "fp32")
    assert "--backend" in str(caught.value.hint)


@pytest.mark.parametrize(("version", "usable"), [("2025.1.0-1", False), ("2025.2.0-1", True)])
def test_an_openvino_whose_int8_collapses_is_refused(
    version: str, usable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openvino.__version__", version)
    found = registry.get("openvino").probe()
    assert found.available is usable
    assert usable or "openvino>=2025.2" in str(found.reason)


@pytest.mark.parametrize("spinning", [True, False])
def test_threads_spin_only_where_nothing_else_wants_the_cores(spinning: bool) -> None:
    options = session_options(onnxruntime, OnnxRuntimeOptions(), None, spinning=spinning)
    try:
        entry = options.get_session_config_entry("session.intra_op.allow_spinning")
    except RuntimeError:
        entry = "not set"
    assert entry == ("not set" if spinning else "0")


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("precision", ["fp16", "int8-fp16", "bf16"])
def test_half_precision_on_a_cpu_is_refused_before_there_is_a_graph(
    name: str, precision: str
) -> None:
    backend: Any = registry.get(name)
    with pytest.raises(EngineError, match="says nothing about FP16") as caught:
        backend.check_options(BuildOptions(), precision)
    assert "--target" in str(caught.value.hint)
    backend.check_options(BuildOptions(), "int8-fp32")
