"""The session's own logic, on stand-ins for the GPU: host memory and an engine that sums.

No proof that it runs on a GPU. The stand-in takes its names and codes from the
real CUDA bindings, so a call that they do not have fails here.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trt_graphs import SHAPE, describe

from vitdeploy.artifacts.engine import Engine, EngineManifest
from vitdeploy.backends.tensorrt import session as module
from vitdeploy.backends.tensorrt.flavour import TENSORRT
from vitdeploy.backends.tensorrt.session import TensorRTSession
from vitdeploy.errors import EngineError, InputError

if sys.platform == "darwin":
    pytest.skip("tensorrt: cuda-bindings has no wheel for macOS", allow_module_level=True)
from cuda.bindings import runtime as real_cudart

LARGEST = 4
OK = real_cudart.cudaError_t.cudaSuccess


class HostAsDevice:
    """CUDA calls on host memory; any other attribute is the real module's."""

    def __init__(self) -> None:
        self.memory: dict[int, Any] = {}
        self.streams = 0
        self.copy_code = OK

    def __getattr__(self, name: str) -> Any:
        return getattr(real_cudart, name)

    def _is_real(self, name: str) -> None:
        assert callable(getattr(real_cudart, name))

    def cudaStreamCreateWithFlags(self, flags: int) -> tuple[Any, int]:
        self._is_real("cudaStreamCreateWithFlags")
        self.streams += 1
        return OK, 77

    def cudaStreamDestroy(self, stream: int) -> tuple[Any]:
        self._is_real("cudaStreamDestroy")
        self.streams -= 1
        return (OK,)

    def cudaStreamSynchronize(self, stream: int) -> tuple[Any]:
        self._is_real("cudaStreamSynchronize")
        return (OK,)

    def cudaMalloc(self, size: int) -> tuple[Any, int]:
        self._is_real("cudaMalloc")
        buffer = ctypes.create_string_buffer(size)
        self.memory[ctypes.addressof(buffer)] = buffer
        return OK, ctypes.addressof(buffer)

    def cudaFree(self, pointer: int) -> tuple[Any]:
        self._is_real("cudaFree")
        del self.memory[pointer]
        return (OK,)

    def cudaMemcpyAsync(
        self, destination: int, source: int, size: int, kind: Any, stream: int
    ) -> tuple[Any]:
        self._is_real("cudaMemcpyAsync")
        assert stream == 77
        if self.copy_code == OK:
            ctypes.memmove(destination, source, size)
        return (self.copy_code,)


class Summing:
    """Runtime, engine and context in one: class k's logit is k times the image's sum."""

    float32 = "float32"

    class ILogger:
        ERROR = 1
        INTERNAL_ERROR = 0

    def __init__(self, *, readable: bool = True) -> None:
        self.readable = readable
        self.batch = 0
        self.addresses: dict[str, int] = {}

    def Runtime(self, logger: Any) -> Summing:
        self.logger = logger
        return self

    def deserialize_cuda_engine(self, content: bytes) -> Summing | None:
        if not self.readable:
            self.logger.log(1, "Assertion plan.header.size == blobSize failed.")
            return None
        return self

    def create_execution_context(self) -> Summing:
        return self

    def get_tensor_dtype(self, name: str) -> str:
        return "float32"

    def get_tensor_profile_shape(self, name: str, index: int) -> list[tuple[int, ...]]:
        return [(n, *SHAPE) for n in (2, 2, LARGEST)]

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        self.batch = shape[0]
        return True

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return (self.batch, *SHAPE) if name == "pixels" else (self.batch, 10)

    def set_tensor_address(self, name: str, address: int) -> bool:
        self.addresses[name] = address
        return True

    def execute_async_v3(self, stream: int) -> bool:
        images = self._view("pixels", (self.batch, 48))
        logits = self._view("logits", (self.batch, 10))
        logits[:] = images.sum(axis=1, keepdims=True) * np.arange(10)
        return True

    def _view(self, name: str, shape: tuple[int, int]) -> np.ndarray:
        kind = ctypes.c_float * (shape[0] * shape[1])
        return np.ctypeslib.as_array(kind.from_address(self.addresses[name])).reshape(shape)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> HostAsDevice:
    device = HostAsDevice()
    monkeypatch.setattr(module, "cuda_runtime", lambda: device)
    monkeypatch.setattr(module, "compute_capability", lambda: 89)
    return device


@pytest.fixture
def artifact(tmp_path: Path) -> Engine:
    path = tmp_path / "tiny.engine"
    path.write_bytes(b"plan")
    manifest = EngineManifest(
        backend="tensorrt",
        backend_version="10.3.0",
        model=describe("fp16"),
        model_digest="0" * 64,
        engine_digest="0" * 64,
        targets=("sm89",),
        device="stand-in",
        batch=(2, 2, LARGEST),
        build_seconds=1.0,
    )
    return Engine(path, manifest)


def load(monkeypatch: pytest.MonkeyPatch, artifact: Engine, vendor: Summing) -> TensorRTSession:
    monkeypatch.setattr(module, "import_vendor", lambda flavour: vendor)
    return TensorRTSession(TENSORRT, artifact)


def images(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, *SHAPE)).astype(np.float32)


def test_runs_and_keeps_results_apart(
    gpu: HostAsDevice, artifact: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = load(monkeypatch, artifact, Summing())
    first = session.run(images(LARGEST))
    kept = first.copy()
    second = session.run(images(2, seed=1)[:, :, ::-1])
    expected = images(2, seed=1).sum(axis=(1, 2, 3))[:, None] * np.arange(10)
    np.testing.assert_allclose(second, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(first, kept)
    assert session.name == "TensorRT fp16"


def test_refuses_batches_outside_the_profile(
    gpu: HostAsDevice, artifact: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = load(monkeypatch, artifact, Summing())
    for count in (1, LARGEST + 1):
        with pytest.raises(InputError, match="outside the engine's 2 to 4"):
            session.run(images(count))


def test_close_frees_everything_and_ends_running(
    gpu: HostAsDevice, artifact: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = load(monkeypatch, artifact, Summing())
    assert (len(gpu.memory), gpu.streams) == (2, 1)
    session.close()
    session.close()
    assert (len(gpu.memory), gpu.streams) == (0, 0)
    with pytest.raises(EngineError, match="was closed"):
        session.run(images(2))


def test_failed_load_frees_everything_and_is_translated(
    gpu: HostAsDevice, artifact: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Summing.ILogger, "__init__", lambda self: None)
    with pytest.raises(EngineError, match=r"tiny\.engine is cut short"):
        load(monkeypatch, artifact, Summing(readable=False))
    assert (len(gpu.memory), gpu.streams) == (0, 0)


def test_failed_copy_is_an_error(
    gpu: HostAsDevice, artifact: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = load(monkeypatch, artifact, Summing())
    gpu.copy_code = real_cudart.cudaError_t.cudaErrorIllegalAddress
    with pytest.raises(EngineError, match="copying a batch: cudaErrorIllegalAddress"):
        session.run(images(2))


def test_other_gpu_is_refused(
    gpu: HostAsDevice, artifact: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "compute_capability", lambda: 75)
    with pytest.raises(EngineError, match="built for sm89, this GPU is sm75"):
        load(monkeypatch, artifact, Summing())
