"""Which backends there are, and which one `auto` picks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from vitdeploy import environment
from vitdeploy.backends.base import Availability, Backend
from vitdeploy.errors import InputError, MissingDependencyError, first_line
from vitdeploy.target import Target

ENTRY_POINT_GROUP = "vitdeploy.backends"


def _onnxruntime() -> Backend:
    from vitdeploy.backends.onnxruntime_ import OnnxRuntimeBackend

    return OnnxRuntimeBackend()


def _onnxruntime_cuda() -> Backend:
    from vitdeploy.backends.onnxruntime_ import OnnxRuntimeBackend

    return OnnxRuntimeBackend(device="cuda")


def _openvino() -> Backend:
    from vitdeploy.backends.openvino_ import OpenVinoBackend

    return OpenVinoBackend()


def _tensorrt() -> Backend:
    from vitdeploy.backends.tensorrt import tensorrt_backend

    return tensorrt_backend()


def _tensorrt_rtx() -> Backend:
    from vitdeploy.backends.tensorrt import tensorrt_rtx_backend

    return tensorrt_rtx_backend()


_BUILT_IN: dict[str, Callable[[], Backend]] = {
    "onnxruntime": _onnxruntime,
    "onnxruntime-cuda": _onnxruntime_cuda,
    "openvino": _openvino,
    "tensorrt": _tensorrt,
    "tensorrt-rtx": _tensorrt_rtx,
}
_ASKED_OF_ALL = ("probe", "build", "load")
_ON_NVIDIA = ("tensorrt", "tensorrt-rtx", "onnxruntime-cuda")
"""In this order where a GPU is here and no other was named; ONNX Runtime builds for no other."""


def names() -> list[str]:
    """Built-in backends, then those of installed packages."""
    return [*_BUILT_IN, *(entry.name for entry in entry_points(group=ENTRY_POINT_GROUP))]


def get(name: str) -> Backend:
    """The backend of this name.

    Raises InputError for an unknown one, MissingDependencyError where the
    package that offers it is broken, or offers no `Backend`.
    """
    if name in _BUILT_IN:
        return _BUILT_IN[name]()
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        if entry.name == name:
            return _of_package(entry)
    raise InputError(f"unknown backend {name!r}", hint=f"use auto, {', '.join(names())}")


def probe(name: str) -> Availability:
    """Whether the backend of this name is usable; one that cannot even be asked is not."""
    try:
        return get(name).probe()
    except MissingDependencyError as error:
        return Availability(False, reason=str(error))


def _of_package(entry: EntryPoint) -> Backend:
    problem = ""
    backend: Any = None
    try:
        backend = entry.load()()
    except (ImportError, AttributeError, TypeError) as error:
        problem = f"cannot be loaded: {first_line(error)}"
    else:
        lacking = [part for part in _ASKED_OF_ALL if not callable(getattr(backend, part, None))]
        if lacking:
            problem = f"has no {', no '.join(lacking)}"
    if problem:
        package = "its package" if entry.dist is None else entry.dist.name
        raise MissingDependencyError(
            f"the backend {entry.name} of {package} {problem}",
            hint=f"update or uninstall {package}",
        )
    return backend


def choose(targets: Sequence[Target] | None) -> tuple[Backend, str]:
    """The backend `auto` stands for, and why.

    Raises MissingDependencyError where nothing installed serves the target.
    """
    gpu_asked = targets is not None and any(not target.is_cpu for target in targets)
    if gpu_asked or (targets is None and environment.has_nvidia_driver()):
        order = ("tensorrt", "tensorrt-rtx") if gpu_asked else _ON_NVIDIA
        reason = "an NVIDIA target was asked for" if gpu_asked else "an NVIDIA driver is here"
    else:
        order = ("openvino", "onnxruntime")
        cpu_asked = targets is not None
        reason = "the CPU was asked for" if cpu_asked else "no NVIDIA driver is here"
    failures = []
    for name in order:
        backend = get(name)
        availability = backend.probe()
        usable = availability.available and (availability.can_execute or name == "tensorrt-rtx")
        if usable:
            return backend, f"{reason}, and {name} {availability.version} is installed"
        failures.append(f"{name}: {availability.reason or 'needs an NVIDIA driver'}")
    raise MissingDependencyError(
        f"no backend is usable: {'; '.join(failures)}",
        hint="install one: pip install 'vitdeploy[cpu]' or 'vitdeploy[tensorrt-rtx]'"
        + ("; or leave the GPU alone with --target cpu" if "tensorrt" in order else ""),
    )
