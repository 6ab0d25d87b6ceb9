"""The calls on PyCUDA, on a recorder: PyCUDA is not here, so its names are those of its manual."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from vitdeploy.errors import EngineError, MissingDependencyError

NAME = "vitdeploy.backends.tensorrt.pycuda_"


class DriverError(Exception):
    pass


class Driver(ModuleType):
    """pycuda.driver on host memory; every call says whether the context is current."""

    Error = DriverError

    def __init__(self) -> None:
        super().__init__("pycuda.driver")
        self.depth = 0
        self.freed = 0
        self.broken = False
        self.now_ms = 0.0
        self.Context = SimpleNamespace(pop=self._leave)

    def _leave(self) -> None:
        self.depth -= 1

    def _enter(self) -> None:
        self.depth += 1

    def _needs_context(self) -> None:
        assert self.depth == 1, "no context is current"
        if self.broken:
            raise DriverError("cuMemAlloc failed: out of memory")

    def init(self) -> None:
        if self.broken:
            raise DriverError("cuInit failed: no CUDA-capable device is detected")

    def Device(self, index: int) -> Any:
        return SimpleNamespace(
            retain_primary_context=lambda: SimpleNamespace(push=self._enter),
            compute_capability=lambda: (8, 7),
            name=lambda: "Orin",
        )

    def get_version(self) -> tuple[int, int, int]:
        return (12, 6, 0)

    def get_driver_version(self) -> int:
        return 12060

    def Stream(self) -> Any:
        self._needs_context()
        return SimpleNamespace(handle=5, synchronize=self._needs_context)

    def Event(self) -> Any:
        self._needs_context()
        driver = self

        class Mark:
            at = 0.0

            def record(self, stream: Any) -> None:
                driver._needs_context()
                assert stream.handle == 5
                self.at = driver.now_ms

            def time_since(self, other: Any) -> float:
                driver._needs_context()
                return self.at - other.at

        return Mark()

    def mem_alloc(self, size: int) -> Any:
        self._needs_context()
        driver = self

        class Allocation:
            memory = bytearray(size)

            def __int__(self) -> int:
                return 4096

            def free(self) -> None:
                driver.freed += 1

        self.allocation = Allocation()
        return self.allocation

    def pagelocked_empty(self, size: int, dtype: Any) -> np.ndarray:
        self._needs_context()
        driver = self

        class Base(np.ndarray):
            def free(self) -> None:
                driver.freed += 1

        return np.zeros(size, dtype).view(Base)[:]

    def memcpy_htod_async(self, pointer: int, host: np.ndarray, stream: Any) -> None:
        self._needs_context()
        assert (pointer, stream.handle) == (4096, 5)
        self.allocation.memory[: host.nbytes] = host.tobytes()

    def memcpy_dtoh_async(self, host: np.ndarray, pointer: int, stream: Any) -> None:
        self._needs_context()
        host[:] = np.frombuffer(bytes(self.allocation.memory[: host.nbytes]), np.uint8)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    stand_in = Driver()
    package = ModuleType("pycuda")
    package.driver = stand_in  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pycuda", package)
    monkeypatch.setitem(sys.modules, "pycuda.driver", stand_in)
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    sys.modules.pop(NAME, None)
    yield stand_in
    sys.modules.pop(NAME, None)


def test_pycuda_stands_in_where_cuda_bindings_are_missing(driver: Driver) -> None:
    from vitdeploy.backends.tensorrt.device import open_cuda

    cuda = open_cuda()
    assert type(cuda).__name__ == "PyCuda"
    assert (cuda.compute_capability(), cuda.gpu_name()) == (87, "Orin")
    assert cuda.versions() == "CUDA driver 12.6, CUDA runtime 12.6"
    assert not cuda.can_capture


def test_a_batch_goes_to_the_gpu_and_back_and_nothing_is_left(driver: Driver) -> None:
    from vitdeploy.backends.tensorrt.device import open_cuda

    cuda = open_cuda()
    stream, pointer = cuda.open_stream(), cuda.allocate(8)
    there, back = cuda.allocate_pinned(8), cuda.allocate_pinned(8)
    there[:] = range(8)
    cuda.to_device(pointer, there, stream)
    cuda.to_host(back, pointer, stream)
    cuda.synchronize(stream)
    np.testing.assert_array_equal(back, range(8))
    assert driver.depth == 0, "the caller's context is back"
    for pinned in (there, back):
        cuda.free_pinned(pinned)
    cuda.free(pointer)
    cuda.close_stream(stream)
    assert driver.freed == 3


def test_marks_are_the_gpus_own_time(driver: Driver) -> None:
    from vitdeploy.backends.tensorrt.device import open_cuda

    cuda = open_cuda()
    stream = cuda.open_stream()
    start, end = cuda.open_event(), cuda.open_event()
    cuda.record(start, stream)
    driver.now_ms = 2.5
    cuda.record(end, stream)
    assert cuda.elapsed_ms(start, end) == 2.5
    assert driver.depth == 0
    cuda.close_event(start)


def test_failures_say_what_was_being_done(driver: Driver) -> None:
    from vitdeploy.backends.tensorrt.device import open_cuda

    cuda = open_cuda()
    with pytest.raises(EngineError, match="no CUDA graphs"):
        cuda.begin_capture(5)
    driver.broken = True
    with pytest.raises(EngineError, match="allocating 8 bytes: cuMemAlloc failed"):
        cuda.allocate(8)
    assert driver.depth == 0
    with pytest.raises(MissingDependencyError, match="no CUDA-capable device"):
        open_cuda()


def test_neither_of_both_is_said_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from vitdeploy.backends.tensorrt.device import open_cuda

    for name in ("cuda.bindings", "pycuda", "pycuda.driver"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    with pytest.raises(MissingDependencyError, match="neither cuda-bindings") as caught:
        open_cuda()
    assert "pip install cuda-bindings" in str(caught.value.hint)
