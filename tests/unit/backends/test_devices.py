"""Which device ONNX Runtime is asked for; the CUDA provider itself is stood in for here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from vitdeploy import environment
from vitdeploy.backends import onnxruntime_
from vitdeploy.backends.onnxruntime_ import GraphSession, fastest_device
from vitdeploy.errors import EngineError

CUDA = "CUDAExecutionProvider"


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

    def InferenceSession(self, source: bytes, options: object, providers: list[str]) -> object:
        self.asked.append(providers)
        session = self._true.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        session.get_providers = lambda: [self._begins_on, "CPUExecutionProvider"]
        return session


def test_the_gpu_is_asked_for_and_the_answer_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = WithCuda(begins_on=CUDA)
    monkeypatch.setattr(onnxruntime_, "_runtime", lambda: runtime)
    batch = np.ones((1, 3, 4, 4), np.float32)
    assert GraphSession(doubling(), device="cuda").run(batch).max() == 2
    assert runtime.asked == [[CUDA, "CPUExecutionProvider"]]
    silent = WithCuda(begins_on="CPUExecutionProvider")
    monkeypatch.setattr(onnxruntime_, "_runtime", lambda: silent)
    with pytest.raises(EngineError, match=f"asked for {CUDA} and took CPU") as caught:
        GraphSession(doubling(), device="cuda")
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
