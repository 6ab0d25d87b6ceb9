"""Which device ONNX Runtime is asked for; the CUDA provider itself is stood in for here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from vitdeploy import environment
from vitdeploy.artifacts.onnx_model import OnnxModel
from vitdeploy.backends import onnxruntime_, registry
from vitdeploy.backends.base import BuildOptions
from vitdeploy.backends.onnxruntime_ import GraphSession, fastest_device
from vitdeploy.backends.options import OnnxRuntimeOptions
from vitdeploy.errors import EngineError

CUDA = "CUDAExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"


def doubling() -> bytes:
    return onnx.parser.parse_model("""
    <ir_version: 9, opset_import: ["" : 20]>
    double (float[n, 3, 4, 4] pixels) => (float[n, 3, 4, 4] doubled)
    { doubled = Add (pixels, pixels) }
    """).SerializeToString()


class WithCuda:
    """ONNX Runtime as onnxruntime-gpu offers it; sessions begin on `begins_on`."""

    def __init__(self, begins_on: str) -> None:
        self._true = onnxruntime_._runtime()
        self._begins_on = begins_on
        self.asked: list[list[str]] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._true, name)

    def get_available_providers(self) -> list[str]:
        return [CUDA, "CPUExecutionProvider"]

    def InferenceSession(
        self, source: bytes, options: object, providers: list[str], enable_fallback: int
    ) -> object:
        assert enable_fallback == 0  # by itself it would go on with the CPU
        self.asked.append(providers)
        session = self._true.InferenceSession(
            source, options, providers=["CPUExecutionProvider"], enable_fallback=0
        )
        session.get_providers = lambda: [self._begins_on, "CPUExecutionProvider"]
        return session


def test_the_gpu_is_asked_for_and_the_answer_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = WithCuda(begins_on=CUDA)
    monkeypatch.setattr(onnxruntime_, "_runtime", lambda: runtime)
    batch = np.ones((1, 3, 4, 4), np.float32)
    assert GraphSession(doubling(), tuning=OnnxRuntimeOptions(device="cuda")).run(batch).max() == 2
    assert runtime.asked == [[CUDA, "CPUExecutionProvider"]]
    silent = WithCuda(begins_on="CPUExecutionProvider")
    monkeypatch.setattr(onnxruntime_, "_runtime", lambda: silent)
    with pytest.raises(EngineError, match=f"asked for {CUDA} and took CPU") as caught:
        GraphSession(doubling(), tuning=OnnxRuntimeOptions(device="cuda"))
    assert "doctor" in str(caught.value.hint)


@pytest.mark.parametrize(("driver", "device"), [(True, "cuda"), (False, "cpu")])
def test_cuda_needs_a_driver(driver: bool, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "has_nvidia_driver", lambda: driver)
    runtime = WithCuda(CUDA)
    assert fastest_device() == "cpu"  # this ONNX Runtime has no CUDA
    monkeypatch.setattr(onnxruntime_, "_runtime", lambda: runtime)
    assert fastest_device() == device


def test_a_session_stays_on_the_cpu_unless_asked(tmp_path: Path) -> None:
    path = tmp_path / "double.onnx"
    path.write_bytes(doubling())
    assert GraphSession(path).run(np.ones((2, 3, 4, 4), np.float32)).shape == (2, 3, 4, 4)


class Part:
    """What ONNX Runtime says of the nodes that one provider computes."""

    def __init__(self, ep_name: str, nodes: int) -> None:
        self.ep_name = ep_name
        self._nodes = nodes

    def get_nodes(self) -> list[int]:
        return list(range(self._nodes))


class WithGpu(WithCuda):
    """Both of NVIDIA's providers, each begun as it was asked for.

    The one asked for computes `nodes` of the graph, the CPU two more.
    """

    nodes = 40

    def get_available_providers(self) -> list[str]:
        return [TENSORRT, CUDA, "CPUExecutionProvider"]

    def InferenceSession(
        self, source: Any, options: object, providers: list[Any], enable_fallback: int
    ) -> object:
        assert enable_fallback == 0
        self.asked.append(providers)
        session = self._true.InferenceSession(
            source, options, providers=["CPUExecutionProvider"], enable_fallback=0
        )
        first = providers[0] if self._begins_on == "" else self._begins_on
        name = first if isinstance(first, str) else first[0]
        session.get_providers = lambda: [name]
        parts = [Part(name, self.nodes), Part("CPUExecutionProvider", 2)]
        session.get_provider_graph_assignment_info = lambda: parts
        return session


@pytest.mark.parametrize("device", ["cuda", "tensorrt"])
def test_an_engine_of_a_gpu(
    device: Any,
    fp32_model: OnnxModel,
    fp16_model: OnnxModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It runs by the provider it was built for or not at all, and on that GPU alone."""
    here = replace(environment.describe(), gpu="NVIDIA L4")
    monkeypatch.setattr(environment, "describe", lambda: here)
    runtime = WithGpu(begins_on="")
    monkeypatch.setattr(onnxruntime_, "_runtime", lambda: runtime)
    backend = registry.get("onnxruntime")
    options = BuildOptions(threads=1, onnxruntime=OnnxRuntimeOptions(device=device))
    engine = backend.build(fp16_model, options, tmp_path / "a.engine")
    manifest = engine.manifest
    wanted = {"cuda": CUDA, "tensorrt": TENSORRT}[device]
    assert manifest.settings["provider"] == wanted
    assert (manifest.targets, manifest.device) == ((device,), "NVIDIA L4")
    session = backend.load(engine)
    assert session.name.startswith(f"ONNX Runtime {'CUDA' if device == 'cuda' else 'TensorRT'}")
    kept = {"trt_engine_cache_enable": "1", "trt_engine_cache_path": str(tmp_path)}
    first = CUDA if device == "cuda" else (TENSORRT, kept)
    assert runtime.asked[-1][0] == first
    silent = WithGpu(begins_on="CPUExecutionProvider")
    monkeypatch.setattr(onnxruntime_, "_runtime", lambda: silent)
    for act in (
        lambda: backend.load(engine),
        lambda: backend.build(fp32_model, options, tmp_path / "b.engine"),
    ):
        with pytest.raises(EngineError, match=f"asked for {wanted} and took CPU"):
            act()
    assert not (tmp_path / "b.engine").exists()
    monkeypatch.setattr(onnxruntime_, "_runtime", lambda: runtime)
    other = replace(here, gpu="NVIDIA T4")
    monkeypatch.setattr(environment, "describe", lambda: other)
    with pytest.raises(EngineError, match=r"here is .* with NVIDIA T4"):
        backend.load(engine)


def test_the_backend_of_a_gpu_builds_for_it(
    fp32_model: OnnxModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Named onnxruntime-cuda it needs no --device, and is not available without one."""
    backend = registry.get("onnxruntime-cuda")
    assert not backend.probe().available
    assert "onnxruntime-gpu" in backend.probe().reason
    monkeypatch.setattr(environment, "has_nvidia_driver", lambda: True)
    runtime = WithGpu(begins_on="")
    monkeypatch.setattr(onnxruntime_, "_runtime", lambda: runtime)
    assert CUDA in backend.probe().devices
    assert backend.probe().can_execute
    engine = backend.build(fp32_model, BuildOptions(threads=1), tmp_path / "a.engine")
    assert engine.manifest.backend == "onnxruntime-cuda"
    assert engine.manifest.settings["provider"] == CUDA
    assert registry.get(engine.manifest.backend).load(engine).name == "ONNX Runtime CUDA fp32"


class Said:
    """Keeps what a build says."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)


def test_nodes_that_the_cpu_computes_are_said_and_never_all(
    fp32_model: OnnxModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = WithGpu(begins_on="")
    monkeypatch.setattr(onnxruntime_, "_runtime", lambda: runtime)
    backend = registry.get("onnxruntime-cuda")
    said: Any = Said()
    engine = backend.build(fp32_model, BuildOptions(threads=1), tmp_path / "a.engine", said)
    assert engine.manifest.settings["nodes_by_provider"] == {CUDA: 40, "CPUExecutionProvider": 2}
    assert said.lines == [f"2 of 42 nodes are not computed by {CUDA}: 2 by CPUExecutionProvider"]
    runtime.nodes = 0
    with pytest.raises(EngineError, match=f"no node of this graph by {CUDA}"):
        backend.build(fp32_model, BuildOptions(threads=1), tmp_path / "b.engine")
    assert not (tmp_path / "b.engine").exists()
