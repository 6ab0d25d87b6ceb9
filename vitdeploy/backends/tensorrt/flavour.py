"""The two flavours of TensorRT: which module, which wheels, what only one of them has."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

RTX_ONLY_NAMES = frozenset(
    {
        "ComputeCapability",
        "num_compute_capabilities",
        "set_compute_capability",
        "EngineInvalidityDiagnostics",
        "EngineValidity",
        "engine_header_size",
        "get_engine_validity",
        "CudaGraphStrategy",
        "cuda_graph_strategy",
        "create_runtime_cache",
        "create_runtime_config",
        "IRuntimeCache",
        "set_runtime_cache",
    }
)
"""Names that not every version of TensorRT has, and TensorRT-RTX does: used with it alone."""


@dataclass(frozen=True)
class Flavour:
    """One vendor module.

    `name` is the backend's name, `label` the product's. `modules` are tried in
    order: with only the bindings wheel installed the second one is there, and
    its ImportError says which library is missing. `builds_for_others` tells
    whether engines can be built ahead of time for GPUs that are not here.
    """

    name: str
    label: str
    modules: tuple[str, ...]
    install: str
    builds_for_others: bool


TENSORRT = Flavour(
    name="tensorrt",
    label="TensorRT",
    modules=("tensorrt", "tensorrt_bindings"),
    install="pip install 'vitdeploy[tensorrt]'; on a Jetson use JetPack's own module: "
    "apt install python3-libnvinfer and an environment with --system-site-packages",
    builds_for_others=False,
)
TENSORRT_RTX = Flavour(
    name="tensorrt-rtx",
    label="TensorRT-RTX",
    modules=("tensorrt_rtx", "tensorrt_rtx_bindings"),
    install="pip install 'vitdeploy[tensorrt-rtx]'",
    builds_for_others=True,
)
FLAVOURS = {flavour.name: flavour for flavour in (TENSORRT, TENSORRT_RTX)}


def import_vendor(flavour: Flavour) -> Any:
    """The vendor module. Raises ImportError where it, or a library of it, is missing."""
    first, *others = flavour.modules
    try:
        return importlib.import_module(first)
    except ModuleNotFoundError as error:
        missing = error
    for name in others:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
    raise missing
