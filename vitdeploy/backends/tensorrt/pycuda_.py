"""The first GPU through PyCUDA, which Jetson users have. Not yet run on a GPU.

PyCUDA works on the context that is current in its thread, and TensorRT on the
device's primary one: the primary one is made current for each call, and left
as it was after it, so that any thread may use a session. PyCUDA captures no
graphs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pycuda.driver as driver  # pyright: ignore[reportMissingImports]
from numpy.typing import NDArray

from vitdeploy.errors import EngineError, MissingDependencyError


class PyCuda:
    """`Cuda` by PyCUDA. Raises MissingDependencyError where it finds no GPU."""

    can_capture = False

    def __init__(self) -> None:
        try:
            driver.init()
            self._device: Any = driver.Device(0)
            self._context: Any = self._device.retain_primary_context()
        except driver.Error as error:
            raise MissingDependencyError(
                f"PyCUDA finds no usable GPU: {error}",
                hint="install or update the NVIDIA driver",
            ) from error
        self._streams: dict[int, Any] = {}
        self._buffers: dict[int, Any] = {}

    def compute_capability(self) -> int:
        major, minor = self._device.compute_capability()
        return 10 * major + minor

    def gpu_name(self) -> str:
        return self._device.name()

    def versions(self) -> str:
        number = driver.get_driver_version()
        runtime = ".".join(map(str, driver.get_version()[:2]))
        return f"CUDA driver {number // 1000}.{number % 1000 // 10}, CUDA runtime {runtime}"

    def open_stream(self) -> int:
        with self._current("opening a stream"):
            stream = driver.Stream()
        self._streams[stream.handle] = stream
        return stream.handle

    def close_stream(self, stream: int) -> None:
        with self._current("closing the stream"):
            del self._streams[stream]

    def synchronize(self, stream: int) -> None:
        with self._current("running the engine"):
            self._streams[stream].synchronize()

    def open_event(self) -> Any:
        with self._current("timing the engine"):
            return driver.Event()

    def close_event(self, event: Any) -> None:
        pass  # freed with its last reference

    def record(self, event: Any, stream: int) -> None:
        with self._current("timing the engine"):
            event.record(self._streams[stream])

    def elapsed_ms(self, start: Any, end: Any) -> float:
        with self._current("timing the engine"):
            return float(end.time_since(start))

    def allocate(self, size_bytes: int) -> int:
        with self._current(f"allocating {size_bytes} bytes"):
            buffer = driver.mem_alloc(size_bytes)
        self._buffers[int(buffer)] = buffer
        return int(buffer)

    def free(self, pointer: int) -> None:
        with self._current("freeing a buffer"):
            self._buffers.pop(pointer).free()

    def allocate_pinned(self, size_bytes: int) -> NDArray[np.uint8]:
        with self._current(f"allocating {size_bytes} bytes of pinned memory"):
            return driver.pagelocked_empty(size_bytes, np.uint8)

    def free_pinned(self, memory: NDArray[np.uint8]) -> None:
        with self._current("freeing pinned memory"):
            allocation: Any = memory.base
            allocation.free()

    def to_device(self, pointer: int, pinned: NDArray[np.uint8], stream: int) -> None:
        with self._current("copying a batch"):
            driver.memcpy_htod_async(pointer, pinned, self._streams[stream])

    def to_host(self, pinned: NDArray[np.uint8], pointer: int, stream: int) -> None:
        with self._current("copying a batch"):
            driver.memcpy_dtoh_async(pinned, pointer, self._streams[stream])

    def begin_capture(self, stream: int) -> None:
        raise _no_graphs()

    def end_capture(self, stream: int) -> Any:
        raise _no_graphs()

    def launch(self, graph: Any, stream: int) -> None:
        raise _no_graphs()

    def free_graph(self, graph: Any) -> None:
        raise _no_graphs()

    @contextmanager
    def _current(self, doing: str) -> Iterator[None]:
        self._context.push()
        try:
            yield
        except driver.Error as error:
            raise EngineError(f"CUDA failed while {doing}: {error}") from error
        finally:
            driver.Context.pop()


def _no_graphs() -> EngineError:
    return EngineError("PyCUDA captures no CUDA graphs", hint="pip install cuda-bindings")
