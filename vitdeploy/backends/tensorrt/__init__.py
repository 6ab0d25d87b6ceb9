"""TensorRT and TensorRT-RTX: one code path over the two vendor modules.

Builds run in a child process (`worker`), because a graph can crash the vendor's
builder; this package itself imports nothing heavy, so the child starts quickly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitdeploy.backends.tensorrt.backend import TensorRTBackend


def tensorrt_backend() -> TensorRTBackend:
    """TensorRT 10.3 to 11.4: builds and runs on the GPU of this machine."""
    from vitdeploy.backends.tensorrt.backend import TensorRTBackend
    from vitdeploy.backends.tensorrt.flavour import TENSORRT

    return TensorRTBackend(TENSORRT)


def tensorrt_rtx_backend() -> TensorRTBackend:
    """TensorRT-RTX 1.7: also builds ahead of time for other GPUs, without one."""
    from vitdeploy.backends.tensorrt.backend import TensorRTBackend
    from vitdeploy.backends.tensorrt.flavour import TENSORRT_RTX

    return TensorRTBackend(TENSORRT_RTX)
