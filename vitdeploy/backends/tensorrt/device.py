"""The first GPU through cuda-bindings, each error code checked. Not yet run on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vitdeploy.errors import EngineError, MissingDependencyError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from vitdeploy.backends.tensorrt.cuda import Cuda


def open_cuda() -> Cuda:
    """cuda-bindings, or PyCUDA where they are not installed.

    Raises MissingDependencyError where neither is, or PyCUDA finds no GPU.
    """
    try:
        from cuda.bindings import runtime  # pyright: ignore[reportAttributeAccessIssue]
    except ImportError as missing:
        try:
            from vitdeploy.backends.tensorrt.pycuda_ import PyCuda

            return PyCuda()
        except ImportError as error:
            raise MissingDependencyError(
                f"neither cuda-bindings ({missing}) nor PyCUDA ({error}) is usable here",
                hint="pip install cuda-bindings; on JetPack 6 pip install 'cuda-bindings<13'",
            ) from missing
    return CudaBindings(runtime)


def compute_capability() -> int:
    """The first GPU's compute capability as in sm89: 10 x major + minor."""
    return open_cuda().compute_capability()


class CudaBindings:
    """`Cuda` by NVIDIA's own bindings; `cudart` is the module cuda.bindings.runtime."""

    can_capture = True

    def __init__(self, cudart: Any) -> None:
        self._cudart = cudart

    def compute_capability(self) -> int:
        names = self._cudart.cudaDeviceAttr
        major, minor = (
            self._call("asking for the GPU", "cudaDeviceGetAttribute", attribute, 0)
            for attribute in (
                names.cudaDevAttrComputeCapabilityMajor,
                names.cudaDevAttrComputeCapabilityMinor,
            )
        )
        return 10 * major + minor

    def gpu_name(self) -> str:
        properties = self._call("asking for the GPU's name", "cudaGetDeviceProperties", 0)
        return properties.name.decode(errors="replace").rstrip("\0")

    def versions(self) -> str:
        found = []
        for what, name in (
            ("driver", "cudaDriverGetVersion"),
            ("runtime", "cudaRuntimeGetVersion"),
        ):
            _, version = getattr(self._cudart, name)()
            found.append(f"CUDA {what} {version // 1000}.{version % 1000 // 10}")
        return ", ".join(found)

    def open_stream(self) -> int:
        flags = self._cudart.cudaStreamNonBlocking
        return int(self._call("opening a stream", "cudaStreamCreateWithFlags", flags))

    def close_stream(self, stream: int) -> None:
        self._call("closing the stream", "cudaStreamDestroy", stream)

    def synchronize(self, stream: int) -> None:
        self._call("running the engine", "cudaStreamSynchronize", stream)

    def open_event(self) -> Any:
        return self._call("timing the engine", "cudaEventCreate")

    def close_event(self, event: Any) -> None:
        self._call("timing the engine", "cudaEventDestroy", event)

    def record(self, event: Any, stream: int) -> None:
        self._call("timing the engine", "cudaEventRecord", event, stream)

    def elapsed_ms(self, start: Any, end: Any) -> float:
        return float(self._call("timing the engine", "cudaEventElapsedTime", start, end))

    def allocate(self, size_bytes: int) -> int:
        return int(self._call(f"allocating {size_bytes} bytes", "cudaMalloc", size_bytes))

    def free(self, pointer: int) -> None:
        self._call("freeing a buffer", "cudaFree", pointer)

    def allocate_pinned(self, size_bytes: int) -> NDArray[np.uint8]:
        import ctypes

        import numpy as np

        doing = f"allocating {size_bytes} bytes of pinned memory"
        address = int(self._call(doing, "cudaMallocHost", size_bytes))
        return np.ctypeslib.as_array((ctypes.c_uint8 * size_bytes).from_address(address))

    def free_pinned(self, memory: NDArray[np.uint8]) -> None:
        self._call("freeing pinned memory", "cudaFreeHost", memory.ctypes.data)

    def to_device(self, pointer: int, pinned: NDArray[np.uint8], stream: int) -> None:
        kind = self._cudart.cudaMemcpyKind.cudaMemcpyHostToDevice
        self._copy(pointer, pinned.ctypes.data, pinned.nbytes, kind, stream)

    def to_host(self, pinned: NDArray[np.uint8], pointer: int, stream: int) -> None:
        kind = self._cudart.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self._copy(pinned.ctypes.data, pointer, pinned.nbytes, kind, stream)

    def begin_capture(self, stream: int) -> None:
        mode = self._cudart.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        self._call("capturing a CUDA graph", "cudaStreamBeginCapture", stream, mode)

    def end_capture(self, stream: int) -> Any:
        captured = self._call("capturing a CUDA graph", "cudaStreamEndCapture", stream)
        try:
            return self._call("preparing a CUDA graph", "cudaGraphInstantiate", captured, 0)
        finally:
            self._call("freeing a CUDA graph", "cudaGraphDestroy", captured)

    def launch(self, graph: Any, stream: int) -> None:
        self._call("launching a CUDA graph", "cudaGraphLaunch", graph, stream)

    def free_graph(self, graph: Any) -> None:
        self._call("freeing a CUDA graph", "cudaGraphExecDestroy", graph)

    def _copy(self, to: int, origin: int, size_bytes: int, kind: Any, stream: int) -> None:
        self._call("copying a batch", "cudaMemcpyAsync", to, origin, size_bytes, kind, stream)

    def _call(self, doing: str, name: str, *arguments: Any) -> Any:
        """The value of a call, which returns (error code, values...)."""
        code, *values = getattr(self._cudart, name)(*arguments)
        codes = self._cudart.cudaError_t
        if code == codes.cudaSuccess:
            return values[0] if values else None
        if code in (codes.cudaErrorInsufficientDriver, codes.cudaErrorNoDevice):
            raise MissingDependencyError(
                f"{doing}: no usable NVIDIA driver ({code.name}); {self.versions()}",
                hint="install or update the NVIDIA driver",
            )
        hint = None
        if code == codes.cudaErrorMemoryAllocation:
            hint = "lower the largest batch and build the engine again"
        raise EngineError(f"CUDA failed while {doing}: {code.name}", hint=hint)
