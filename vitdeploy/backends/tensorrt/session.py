"""An engine on a GPU: one stream, a buffer each for images and logits on both sides.

Not yet run on a GPU: written where none is, from the API lists of TensorRT 10.3
to 11.4 and TensorRT-RTX 1.7.1 and the documentation of the CUDA bindings.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitdeploy.artifacts.engine import Engine
from vitdeploy.backends.base import checked_batch, image_input
from vitdeploy.backends.tensorrt import contexts
from vitdeploy.backends.tensorrt.contexts import Log, vendor_logger
from vitdeploy.backends.tensorrt.device import open_cuda
from vitdeploy.backends.tensorrt.flavour import Flavour, import_vendor
from vitdeploy.backends.tensorrt.loading import check_gpu
from vitdeploy.backends.tensorrt.messages import Context
from vitdeploy.backends.tensorrt.splitting import profile_for, split
from vitdeploy.errors import EngineError, InputError


class TensorRTSession:
    """What the engine's graph takes in, (n, classes) float32 out.

    Raises EngineError where the engine is for another GPU or cannot be read,
    MissingDependencyError without CUDA bindings or a driver. A batch that no
    profile takes is run in parts. `device_ms` is what the GPU itself counted for
    the last run, copies apart. `close` frees the GPU's memory; running
    afterwards is an error.
    """

    def __init__(self, flavour: Flavour, artifact: Engine) -> None:
        manifest = artifact.manifest
        cuda = self._cuda = open_cuda()
        check_gpu(artifact, cuda.compute_capability())
        self.name = f"{flavour.label} {manifest.model.precision}"
        self._flavour, self._artifact = flavour, artifact
        self._input, self._output = manifest.model.input_name, manifest.model.output_name
        self._takes = image_input(manifest.model)
        self._device: list[int] = []
        self._pinned: list[NDArray[np.uint8]] = []
        self._graphs: dict[tuple[int, ...], Any] = {}
        self._seen: set[tuple[int, ...]] = set()
        self._profile = 0
        self._stream: int | None = None
        self._events: list[Any] = []
        self._device_ms: float | None = None
        self._loaded: contexts.Loaded | None = None
        where = Context(label=flavour.label, install=flavour.install, graph=artifact.path.name)
        self._log = Log(where)
        try:
            self._open(import_vendor(flavour))
        except BaseException:
            self.close()
            raise

    def run(self, batch: NDArray) -> NDArray[np.float32]:
        """Compute one batch and wait for it; the result is a fresh array.

        Raises InputError for another shape, and for a batch that cannot be made
        of what the engine's profiles take.
        """
        batch = checked_batch(batch, self._takes)
        if self._loaded is None or self._stream is None:
            raise EngineError(f"{self.name} was closed", hint="load the engine again")
        self._device_ms = 0.0
        if profile_for(len(batch), self._spans) is not None:
            return self._run_one(batch, self._loaded.context, self._stream)
        sizes = split(len(batch), self._spans)
        if not sizes:
            taken = ", ".join(f"{low} to {high}" for low, high in self._spans)
            raise InputError(
                f"a batch of {len(batch)} is outside the engine's {taken} and cannot be "
                "made of those",
                hint="give another batch, or build the engine again with a wider range",
            )
        ends = np.cumsum(sizes)[:-1]
        parts = np.split(batch, ends)
        return np.concatenate(
            [self._run_one(part, self._loaded.context, self._stream) for part in parts]
        )

    def device_ms(self) -> float | None:
        """Milliseconds of the engine's own work in the last run; None before there was one."""
        return self._device_ms

    def close(self) -> None:
        """Free everything on the GPU. May be called again."""
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            loaded.close()
        while self._graphs:
            self._cuda.free_graph(self._graphs.popitem()[1])
        while self._device:
            self._cuda.free(self._device.pop())
        while self._pinned:
            self._cuda.free_pinned(self._pinned.pop())
        while self._events:
            self._cuda.close_event(self._events.pop())
        if self._stream is not None:
            stream, self._stream = self._stream, None
            self._cuda.close_stream(stream)

    def _open(self, trt: Any) -> None:
        # A stream of its own: TensorRT synchronizes more on the default one.
        self._stream = self._cuda.open_stream()
        for _ in range(2):
            self._events.append(self._cuda.open_event())
        logger = vendor_logger(trt, self._log)
        loaded = contexts.load(trt, logger, self._flavour, self._artifact, self._log)
        self._loaded = loaded
        engine, context = loaded.engine, loaded.context
        expected = {self._input: self._takes.dtype, self._output: "float32"}
        for name, dtype in expected.items():
            if engine.get_tensor_dtype(name) != getattr(trt, dtype):
                raise EngineError(f"{name} is not {dtype}", hint="export the model again")
        shapes = [
            engine.get_tensor_profile_shape(self._input, index)
            for index in range(engine.num_optimization_profiles)
        ]
        self._spans = tuple((low[0], high[0]) for low, _, high in shapes)
        self._fixed = {tuple(low) for low, _, high in shapes if tuple(low) == tuple(high)}
        sizes = dict.fromkeys(expected, 0)
        for index, (_, _, high) in enumerate(shapes):
            self._select(index, context, self._stream)
            self._log.expect(context.set_input_shape(self._input, tuple(high)))
            for name, dtype in expected.items():
                elements = math.prod(context.get_tensor_shape(name))
                sizes[name] = max(sizes[name], elements * np.dtype(dtype).itemsize)
        for name, size_bytes in sizes.items():
            self._device.append(self._cuda.allocate(size_bytes))
            self._pinned.append(self._cuda.allocate_pinned(size_bytes))
            self._log.expect(context.set_tensor_address(name, self._device[-1]))

    def _select(self, index: int, context: Any, stream: int) -> None:
        if index != self._profile:
            self._log.expect(context.set_optimization_profile_async(index, stream))
            self._cuda.synchronize(stream)
            self._profile = index

    def _run_one(self, batch: NDArray, context: Any, stream: int) -> NDArray[np.float32]:
        index = profile_for(len(batch), self._spans)
        assert index is not None
        self._select(index, context, stream)
        self._log.expect(context.set_input_shape(self._input, batch.shape))
        result = np.empty(tuple(context.get_tensor_shape(self._output)), dtype=np.float32)
        taken, given = self._pinned
        images, logits = taken[: batch.nbytes], given[: result.nbytes]
        np.copyto(images, batch.reshape(-1).view(np.uint8))
        self._cuda.to_device(self._device[0], images, stream)
        self._compute(batch.shape, context, stream)
        self._cuda.to_host(logits, self._device[1], stream)
        self._cuda.synchronize(stream)
        self._device_ms = (self._device_ms or 0.0) + self._cuda.elapsed_ms(*self._events)
        result.reshape(-1).view(np.uint8)[:] = logits
        if batch.shape not in self._seen and self._loaded is not None:
            self._seen.add(batch.shape)
            self._loaded.keep_cache()
        return result

    def _compute(self, shape: tuple[int, ...], context: Any, stream: int) -> None:
        """Enqueue the engine's work; from the second run on as a CUDA graph, where a profile
        takes one shape only. TensorRT-RTX keeps graphs by itself."""
        graph = self._graphs.get(shape)
        start, end = self._events
        self._cuda.record(start, stream)
        if graph is not None:
            self._cuda.launch(graph, stream)
            self._cuda.record(end, stream)
            return
        # The first run also sets up what a capture must not contain.
        self._log.expect(context.execute_async_v3(stream))
        self._cuda.record(end, stream)
        captures = self._cuda.can_capture and not self._flavour.builds_for_others
        if not captures or shape not in self._fixed:
            return
        self._cuda.synchronize(stream)
        self._cuda.begin_capture(stream)
        enqueued = context.execute_async_v3(stream)
        if not enqueued:
            # The vendor's reason is the one to tell, not that the capture came to nothing.
            with suppress(EngineError):
                self._cuda.free_graph(self._cuda.end_capture(stream))
        self._log.expect(enqueued)
        self._graphs[shape] = self._cuda.end_capture(stream)
