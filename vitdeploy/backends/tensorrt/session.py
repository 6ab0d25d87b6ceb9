"""An engine on a GPU: one stream, one buffer each for images and logits.

Not yet run on a GPU: written where none is, from the API lists of TensorRT 10.3
to 11.4 and TensorRT-RTX 1.7.1 and the documentation of cuda-bindings.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitdeploy.artifacts.engine import Engine
from vitdeploy.backends.base import checked_batch, image_input
from vitdeploy.backends.tensorrt.device import check, compute_capability, cuda_runtime
from vitdeploy.backends.tensorrt.flavour import Flavour, import_vendor
from vitdeploy.backends.tensorrt.messages import Context, as_error, first_cause
from vitdeploy.errors import EngineError, InputError


class TensorRTSession:
    """(n, channels, height, width) float32 in, (n, classes) float32 out.

    Raises EngineError where the engine is for another GPU or cannot be read,
    MissingDependencyError without cuda-bindings or a driver. `close` frees the
    GPU's memory; running afterwards is an error.
    """

    def __init__(self, flavour: Flavour, artifact: Engine) -> None:
        manifest = artifact.manifest
        here = f"sm{compute_capability()}"
        if here not in manifest.targets:
            raise EngineError(
                f"{artifact.path.name} was built for {', '.join(manifest.targets)}, "
                f"this GPU is {here}",
                hint="build the engine on this machine, or for it",
            )
        self.name = f"{flavour.label} {manifest.model.precision}"
        self._input, self._output = manifest.model.input_name, manifest.model.output_name
        self._takes = image_input(manifest.model)
        self._cudart = cuda_runtime()
        self._buffers: list[Any] = []
        self._stream: Any = None
        self._runtime: Any = None
        self._engine: Any = None
        self._context: Any = None
        self._errors: list[str] = []
        self._where = Context(
            label=flavour.label, install=flavour.install, graph=artifact.path.name
        )
        try:
            self._open(import_vendor(flavour), artifact)
        except BaseException:
            self.close()
            raise

    def run(self, batch: NDArray[np.float32]) -> NDArray[np.float32]:
        """Compute one batch and wait for it; the result is a fresh array.

        Raises InputError for another shape or a batch outside the engine's range.
        """
        batch = checked_batch(batch, self._takes)
        if not self._smallest <= len(batch) <= self._largest:
            raise InputError(
                f"a batch of {len(batch)} is outside the engine's {self._smallest} to "
                f"{self._largest}",
                hint="split the batch, or build the engine again with a wider range",
            )
        if self._stream is None:
            raise EngineError(f"{self.name} was closed", hint="load the engine again")
        cudart, context, kinds = self._cudart, self._context, self._cudart.cudaMemcpyKind
        self._expect(context.set_input_shape(self._input, batch.shape))
        result = np.empty(tuple(context.get_tensor_shape(self._output)), dtype=np.float32)
        images, logits = self._buffers
        self._copy(images, batch.ctypes.data, batch.nbytes, kinds.cudaMemcpyHostToDevice)
        self._expect(context.execute_async_v3(int(self._stream)))
        self._copy(result.ctypes.data, logits, result.nbytes, kinds.cudaMemcpyDeviceToHost)
        check(cudart, cudart.cudaStreamSynchronize(self._stream), "running the engine")
        return result

    def close(self) -> None:
        """Free everything on the GPU. May be called again."""
        # Context before engine before runtime: each points into the next.
        self._context = self._engine = self._runtime = None
        while self._buffers:
            pointer = self._buffers.pop()
            check(self._cudart, self._cudart.cudaFree(pointer), "freeing a buffer")
        if self._stream is not None:
            stream, self._stream = self._stream, None
            check(self._cudart, self._cudart.cudaStreamDestroy(stream), "closing the stream")

    def _open(self, trt: Any, artifact: Engine) -> None:
        cudart = self._cudart
        # A stream of its own: TensorRT synchronizes more on the default one.
        self._stream = check(
            cudart,
            cudart.cudaStreamCreateWithFlags(cudart.cudaStreamNonBlocking),
            "opening a stream",
        )
        logger = _logger(trt, self._errors)
        runtime = self._runtime = self._expect(trt.Runtime(logger))
        engine = self._engine = self._expect(
            runtime.deserialize_cuda_engine(artifact.path.read_bytes())
        )
        context = self._context = self._expect(engine.create_execution_context())
        expected = {self._input: self._takes.dtype, self._output: "float32"}
        for name, dtype in expected.items():
            if engine.get_tensor_dtype(name) != getattr(trt, dtype):
                raise EngineError(f"{name} is not {dtype}", hint="export the model again")
        low, _, high = engine.get_tensor_profile_shape(self._input, 0)
        self._smallest, self._largest = low[0], high[0]
        self._expect(context.set_input_shape(self._input, tuple(high)))
        for name in (self._input, self._output):
            bytes_each = np.dtype(expected[name]).itemsize
            size = math.prod(context.get_tensor_shape(name)) * bytes_each
            pointer = check(cudart, cudart.cudaMalloc(size), f"allocating {size} bytes")
            self._buffers.append(pointer)
            self._expect(context.set_tensor_address(name, int(pointer)))

    def _copy(self, destination: int, source: int, size: int, kind: Any) -> None:
        result = self._cudart.cudaMemcpyAsync(destination, source, size, kind, self._stream)
        check(self._cudart, result, "copying a batch")

    def _expect(self, result: Any) -> Any:
        """TensorRT says no by None or False; the reason is in the log."""
        if result is None or result is False:
            raise as_error(first_cause(self._errors), self._where)
        self._errors.clear()
        return result


def _logger(trt: Any, errors: list[str]) -> Any:
    class Log(trt.ILogger):
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, msg: str) -> None:
            if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR):
                errors.append(msg)

    return Log()
