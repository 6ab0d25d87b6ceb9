"""The little of CUDA that a session needs, as one interface.

Behind it stand cuda-bindings (`device.CudaBindings`) or PyCUDA
(`pycuda_.PyCuda`), whichever is installed; PyTorch is not needed. Neither has
been run on a GPU yet: written where none is.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class Cuda(Protocol):
    """The first GPU. Pointers and streams are numbers, as TensorRT takes them.

    Every call raises MissingDependencyError without a usable driver, and
    EngineError for any other failure, saying what was being done.
    """

    can_capture: bool
    """Whether a stream's work can be captured as a CUDA graph."""

    def compute_capability(self) -> int:
        """As in sm89: 10 x major + minor."""
        ...

    def gpu_name(self) -> str: ...

    def versions(self) -> str:
        """Driver and runtime side by side; a driver of 0.0 means that there is none."""
        ...

    def open_stream(self) -> int: ...

    def close_stream(self, stream: int) -> None: ...

    def synchronize(self, stream: int) -> None: ...

    def open_event(self) -> Any:
        """A mark in a stream's work, timed by the GPU itself."""
        ...

    def close_event(self, event: Any) -> None: ...

    def record(self, event: Any, stream: int) -> None:
        """Set the mark behind all that was begun on the stream so far."""
        ...

    def elapsed_ms(self, start: Any, end: Any) -> float:
        """The GPU's time between two marks, once the stream was waited for."""
        ...

    def allocate(self, size_bytes: int) -> int: ...

    def free(self, pointer: int) -> None: ...

    def allocate_pinned(self, size_bytes: int) -> NDArray[np.uint8]:
        """Host memory that the GPU reads and writes by itself, (size_bytes,)."""
        ...

    def free_pinned(self, memory: NDArray[np.uint8]) -> None: ...

    def to_device(self, pointer: int, pinned: NDArray[np.uint8], stream: int) -> None:
        """Begin to copy all of `pinned` to `pointer`."""
        ...

    def to_host(self, pinned: NDArray[np.uint8], pointer: int, stream: int) -> None:
        """Begin to fill all of `pinned` from `pointer`."""
        ...

    def begin_capture(self, stream: int) -> None: ...

    def end_capture(self, stream: int) -> Any:
        """What was captured, ready to launch."""
        ...

    def launch(self, graph: Any, stream: int) -> None: ...

    def free_graph(self, graph: Any) -> None: ...
