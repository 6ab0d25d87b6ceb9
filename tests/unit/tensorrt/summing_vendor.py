"""Stand-ins for the vendor's runtimes: engines that sum, on the memory of `HostAsDevice`."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from host_cuda import STREAM, HostAsDevice
from trt_graphs import SHAPE

LARGEST = 4
MS_PER_IMAGE = 0.25
RANGE = ((2, 2, LARGEST),)


class Summing:
    """Runtime, engine and context in one: class k's logit is k times the image's sum."""

    float32 = "float32"

    class ILogger:
        INTERNAL_ERROR, ERROR, WARNING = range(3)

        def __init__(self) -> None: ...

    def __init__(
        self,
        gpu: HostAsDevice,
        *,
        profiles: tuple[tuple[int, int, int], ...] = RANGE,
        readable: bool = True,
        refuses: bool = False,
    ) -> None:
        self.gpu = gpu
        self.profiles = profiles
        self.readable = readable
        self.refuses = refuses
        self.num_optimization_profiles = len(profiles)
        self.profile = 0
        self.batch = 0
        self.runs: list[int] = []
        self.addresses: dict[str, int] = {}
        self.refitted = ""
        self.engine_host_code_allowed = False
        self.warning = "of no interest"

    def Runtime(self, logger: Any) -> Summing:
        self.logger = logger
        return self

    def deserialize_cuda_engine(self, content: bytes) -> Summing | None:
        self.logger.log(2, self.warning)
        if not self.readable:
            self.logger.log(1, "Assertion plan.header.size == blobSize failed.")
            return None
        return self

    def Refitter(self, engine: Any, logger: Any) -> Summing:
        return self

    def OnnxParserRefitter(self, refitter: Any, logger: Any) -> Summing:
        return self

    def refit_from_file(self, path: str) -> bool:
        self.refitted = path
        return True

    def refit_cuda_engine(self) -> bool:
        return bool(self.refitted)

    def create_execution_context(self, settings: Any = None) -> Summing:
        return self

    def get_tensor_dtype(self, name: str) -> str:
        return "float32"

    def get_tensor_profile_shape(self, name: str, index: int) -> list[tuple[int, ...]]:
        return [(n, *SHAPE) for n in self.profiles[index]]

    def set_optimization_profile_async(self, index: int, stream: int) -> bool:
        assert stream == STREAM
        self.profile = index
        return True

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        low, _, high = self.profiles[self.profile]
        assert low <= shape[0] <= high, "outside the profile that is selected"
        self.batch = shape[0]
        return True

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return (self.batch, *SHAPE) if name == "pixels" else (self.batch, 10)

    def set_tensor_address(self, name: str, address: int) -> bool:
        assert address in self.gpu.memory
        self.addresses[name] = address
        return True

    def execute_async_v3(self, stream: int) -> bool:
        assert stream == STREAM
        if self.refuses:
            self.logger.log(1, "Something about the batch is wrong")
            return False
        count = self.batch

        def work() -> None:
            images = self._view("pixels", (count, 48))
            self._view("logits", (count, 10))[:] = images.sum(1, keepdims=True) * np.arange(10)
            self.runs.append(count)
            self.gpu.clock_ms += MS_PER_IMAGE * count

        self.gpu.enqueue(work)
        return True

    def _view(self, name: str, shape: tuple[int, int]) -> np.ndarray:
        kind = ctypes.c_float * (shape[0] * shape[1])
        return np.ctypeslib.as_array(kind.from_address(self.addresses[name])).reshape(shape)


class SummingRtx(Summing):
    """With what TensorRT-RTX has besides: a pre-flight and a cache of kernels."""

    engine_header_size = 64

    class EngineValidity:
        VALID, SUBOPTIMAL, INVALID = range(3)

    class EngineInvalidityDiagnostics:
        VERSION_MISMATCH, UNSUPPORTED_CC, OLD_CUDA_DRIVER = 1, 2, 4
        OLD_CUDA_RUNTIME, INSUFFICIENT_GPU_MEMORY, MALFORMED_ENGINE, CUDA_ERROR = 8, 16, 32, 64

    class CudaGraphStrategy:
        WHOLE_GRAPH_CAPTURE = "whole"

    def __init__(self, gpu: HostAsDevice, **more: Any) -> None:
        super().__init__(gpu, **more)
        self.answer = (self.EngineValidity.VALID, 0)
        self.cuda_graph_strategy = ""
        self.kernels = b""
        self.taken = b""

    def get_engine_validity(self, header: bytes) -> tuple[int, int]:
        assert len(header) <= self.engine_header_size
        return self.answer

    def create_runtime_config(self) -> SummingRtx:
        return self

    create_runtime_cache = create_runtime_config

    def set_runtime_cache(self, cache: Any) -> bool:
        return cache is self

    def deserialize(self, content: bytes) -> bool:
        self.taken = content
        return content != b"of another GPU"

    def serialize(self) -> bytes:
        return b"compiled for " + str(sorted(set(self.runs))).encode()
