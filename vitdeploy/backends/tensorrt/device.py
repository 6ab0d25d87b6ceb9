"""The few CUDA runtime calls needed, each error code checked. Not yet run on a GPU."""

from __future__ import annotations

from typing import Any

from vitdeploy.errors import EngineError, MissingDependencyError


def cuda_runtime() -> Any:
    """The CUDA runtime bindings. Raises MissingDependencyError where they are not installed."""
    try:
        from cuda.bindings import runtime  # pyright: ignore[reportAttributeAccessIssue]
    except ImportError as error:
        raise MissingDependencyError(
            f"cuda-bindings are not usable here: {error}", hint="pip install cuda-bindings"
        ) from error
    return runtime


def check(cudart: Any, result: tuple[Any, ...], doing: str) -> Any:
    """The value of a CUDA call, which returns (error code, values...).

    Raises MissingDependencyError for a missing or old driver, EngineError for
    any other code, saying what was being done.
    """
    code, *values = result
    codes = cudart.cudaError_t
    if code == codes.cudaSuccess:
        return values[0] if values else None
    if code in (codes.cudaErrorInsufficientDriver, codes.cudaErrorNoDevice):
        raise MissingDependencyError(
            f"{doing}: no usable NVIDIA driver ({code.name}); {driver_versions(cudart)}",
            hint="install or update the NVIDIA driver",
        )
    hint = None
    if code == codes.cudaErrorMemoryAllocation:
        hint = "lower the largest batch and build the engine again"
    raise EngineError(f"CUDA failed while {doing}: {code.name}", hint=hint)


def driver_versions(cudart: Any) -> str:
    """Driver and runtime side by side; a driver of 0.0 means that there is none."""
    found = []
    for what, (_, version) in (
        ("driver", cudart.cudaDriverGetVersion()),
        ("runtime", cudart.cudaRuntimeGetVersion()),
    ):
        found.append(f"CUDA {what} {version // 1000}.{version % 1000 // 10}")
    return ", ".join(found)


def compute_capability() -> int:
    """The first GPU's compute capability as in sm89: 10 x major + minor."""
    cudart = cuda_runtime()
    names = cudart.cudaDeviceAttr
    major, minor = (
        check(cudart, cudart.cudaDeviceGetAttribute(attribute, 0), "asking for the GPU")
        for attribute in (
            names.cudaDevAttrComputeCapabilityMajor,
            names.cudaDevAttrComputeCapabilityMinor,
        )
    )
    return 10 * major + minor
