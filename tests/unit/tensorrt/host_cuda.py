"""A stand-in for the GPU: CUDA calls on host memory, in the order of the stream.

Names and codes come from the real CUDA bindings, so a call that they do not
have fails here. Work of a stream is done at its synchronization and not
before, so that a missing wait gives wrong numbers. A copy takes 1 ms of its own
clock; what else takes time moves `clock_ms`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from cuda.bindings import runtime as real_cudart

OK = real_cudart.cudaError_t.cudaSuccess
STREAM = 77


class HostAsDevice:
    """cuda.bindings.runtime; any attribute that is not here is the real module's."""

    def __init__(self) -> None:
        self.memory: dict[int, Any] = {}
        self.pinned: dict[int, Any] = {}
        self.streams = 0
        self.graphs = 0
        self.copy_code = OK
        self.capability = 89
        self.launches = 0
        self.clock_ms = 0.0
        self.events: dict[int, float | None] = {}
        self.queue: list[Callable[[], None]] = []
        self.captured: list[Callable[[], None]] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(real_cudart, name)

    def enqueue(self, work: Callable[[], None]) -> None:
        """Into the graph while one is captured, else into the stream."""
        (self.queue if self.captured is None else self.captured).append(work)

    def cudaDeviceGetAttribute(self, attribute: Any, device: int) -> tuple[Any, int]:
        _is_real("cudaDeviceGetAttribute")
        major = attribute == real_cudart.cudaDeviceAttr.cudaDevAttrComputeCapabilityMajor
        return OK, self.capability // 10 if major else self.capability % 10

    def cudaStreamCreateWithFlags(self, flags: int) -> tuple[Any, int]:
        _is_real("cudaStreamCreateWithFlags")
        self.streams += 1
        return OK, STREAM

    def cudaStreamDestroy(self, stream: int) -> tuple[Any]:
        _is_real("cudaStreamDestroy")
        self.streams -= 1
        return (OK,)

    def cudaStreamSynchronize(self, stream: int) -> tuple[Any]:
        _is_real("cudaStreamSynchronize")
        assert self.captured is None, "a stream that is captured cannot be waited for"
        while self.queue:
            self.queue.pop(0)()
        return (OK,)

    def cudaMalloc(self, size: int) -> tuple[Any, int]:
        _is_real("cudaMalloc")
        return OK, _kept(self.memory, size)

    def cudaFree(self, pointer: int) -> tuple[Any]:
        _is_real("cudaFree")
        del self.memory[pointer]
        return (OK,)

    def cudaMallocHost(self, size: int) -> tuple[Any, int]:
        _is_real("cudaMallocHost")
        return OK, _kept(self.pinned, size)

    def cudaFreeHost(self, pointer: int) -> tuple[Any]:
        _is_real("cudaFreeHost")
        del self.pinned[pointer]
        return (OK,)

    def cudaMemcpyAsync(
        self, destination: int, source: int, size: int, kind: Any, stream: int
    ) -> tuple[Any]:
        _is_real("cudaMemcpyAsync")
        assert stream == STREAM
        assert self.captured is None
        to_device = kind == real_cudart.cudaMemcpyKind.cudaMemcpyHostToDevice
        device, host = (destination, source) if to_device else (source, destination)
        assert device in self.memory
        assert host in self.pinned, "an asynchronous copy needs pinned memory"
        if self.copy_code == OK:

            def copy() -> None:
                ctypes.memmove(destination, source, size)
                self.clock_ms += 1

            self.enqueue(copy)
        return (self.copy_code,)

    def cudaEventCreate(self) -> tuple[Any, int]:
        _is_real("cudaEventCreate")
        event = 100 + len(self.events)
        self.events[event] = None
        return OK, event

    def cudaEventDestroy(self, event: int) -> tuple[Any]:
        _is_real("cudaEventDestroy")
        del self.events[event]
        return (OK,)

    def cudaEventRecord(self, event: int, stream: int) -> tuple[Any]:
        _is_real("cudaEventRecord")
        assert stream == STREAM
        assert self.captured is None, "a mark in a graph is not one in the stream"
        self.enqueue(lambda: self.events.update({event: self.clock_ms}))
        return (OK,)

    def cudaEventElapsedTime(self, start: int, end: int) -> tuple[Any, float]:
        _is_real("cudaEventElapsedTime")
        assert not self.queue, "the stream has not reached its marks"
        begun, ended = self.events[start], self.events[end]
        assert begun is not None
        assert ended is not None
        return OK, ended - begun

    def cudaStreamBeginCapture(self, stream: int, mode: Any) -> tuple[Any]:
        _is_real("cudaStreamBeginCapture")
        assert not self.queue, "work before the capture is still under way"
        self.captured = []
        return (OK,)

    def cudaStreamEndCapture(self, stream: int) -> tuple[Any, Any]:
        _is_real("cudaStreamEndCapture")
        captured, self.captured = self.captured, None
        return OK, captured

    def cudaGraphInstantiate(self, graph: Any, flags: int) -> tuple[Any, Any]:
        _is_real("cudaGraphInstantiate")
        self.graphs += 1
        return OK, tuple(graph)

    def cudaGraphDestroy(self, graph: Any) -> tuple[Any]:
        _is_real("cudaGraphDestroy")
        return (OK,)

    def cudaGraphLaunch(self, graph: Any, stream: int) -> tuple[Any]:
        _is_real("cudaGraphLaunch")
        self.launches += 1
        self.queue.extend(graph)
        return (OK,)

    def cudaGraphExecDestroy(self, graph: Any) -> tuple[Any]:
        _is_real("cudaGraphExecDestroy")
        self.graphs -= 1
        return (OK,)


def _is_real(name: str) -> None:
    assert callable(getattr(real_cudart, name))


def _kept(place: dict[int, Any], size: int) -> int:
    buffer = ctypes.create_string_buffer(size)
    place[ctypes.addressof(buffer)] = buffer
    return ctypes.addressof(buffer)
