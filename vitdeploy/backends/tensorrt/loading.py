"""Whether an engine belongs to this machine, found out before the vendor is asked.

The manifest is looked at first, and TensorRT-RTX then at the first bytes of the
engine; each refusal says how to build again.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from vitdeploy.artifacts.engine import Engine
from vitdeploy.backends.tensorrt.flavour import Flavour
from vitdeploy.errors import EngineError, MissingDependencyError
from vitdeploy.target import Target

_record = logging.getLogger(__name__)

_INVALID = {
    "VERSION_MISMATCH": "was built by another version",
    "UNSUPPORTED_CC": "was not built for this GPU",
    "MALFORMED_ENGINE": "is damaged, or no engine of this runtime",
    "INSUFFICIENT_GPU_MEMORY": "needs more memory than the GPU has",
}
_DRIVER = {
    "OLD_CUDA_DRIVER": "the CUDA driver is too old for it",
    "OLD_CUDA_RUNTIME": "the CUDA runtime is too old for it",
    "CUDA_ERROR": "CUDA does not work here",
}


def check_manifest(flavour: Flavour, artifact: Engine, version: str) -> None:
    """Raise EngineError where the manifest names another backend or a version that cannot
    be loaded by this one."""
    manifest, label = artifact.manifest, flavour.label
    if manifest.backend != flavour.name:
        raise EngineError(
            f"{artifact.path.name} was built by {manifest.backend}, not by {flavour.name}",
            hint=f"load it with --backend {manifest.backend}",
        )
    built = manifest.backend_version
    if built == version or (is_version_compatible(artifact) and _number(built) <= _number(version)):
        return
    raise EngineError(
        f"{artifact.path.name} was built by {label} {built}, here is {version}",
        hint=f"build the engine again with this version: {rebuild(artifact)}",
    )


def check_gpu(artifact: Engine, capability: int) -> None:
    """Raise EngineError where the engine was built for GPUs of another kind."""
    manifest = artifact.manifest
    here = Target(f"sm{capability}", capability)
    if here.name in manifest.targets:
        return
    level = manifest.settings.get("hardware_compatibility")
    if level == "AMPERE_PLUS" and here.has_hardware_compatibility:
        return
    raise EngineError(
        f"{artifact.path.name} was built for {', '.join(manifest.targets)}"
        + (f" on {manifest.device}" if not manifest.settings.get("ahead_of_time") else "")
        + f", this GPU is {here.name}",
        hint=f"build the engine on this machine, or for it: {rebuild(artifact, here.name)}",
    )


def is_version_compatible(artifact: Engine) -> bool:
    return "VERSION_COMPATIBLE" in artifact.manifest.settings.get("flags", ())


def is_stripped(artifact: Engine) -> bool:
    return "STRIP_PLAN" in artifact.manifest.settings.get("flags", ())


def rebuild(artifact: Engine, target: str = "") -> str:
    """The command that builds the engine again, from the graph it was built from."""
    manifest = artifact.manifest
    parts = ["vitdeploy build-engine", manifest.settings.get("graph") or "GRAPH"]
    parts.append(f"--backend {manifest.backend}")
    profiles = manifest.settings.get("profiles")
    spans = [[shape[0] for shape in profile] for profile in profiles or ()] or [manifest.batch]
    parts.append("--batch " + ",".join(":".join(map(str, span)) for span in spans))
    if target or manifest.settings.get("ahead_of_time"):
        parts.append(f"--target {target or ','.join(manifest.targets)}")
    return " ".join(parts)


def preflight(trt: Any, runtime: Any, artifact: Engine) -> None:
    """TensorRT-RTX's own look at an engine's first bytes, before all of it is read.

    Raises EngineError where it cannot run here, MissingDependencyError where
    the driver is at fault.
    """
    header = _header(artifact.path, runtime.engine_header_size)
    validity, mask = runtime.get_engine_validity(header)
    if validity == trt.EngineValidity.VALID:
        return
    if validity == trt.EngineValidity.SUBOPTIMAL:
        _record.warning("%s runs here, but slower than one built here would", artifact.path.name)
        return
    diagnoses = trt.EngineInvalidityDiagnostics
    named = [name for name in (*_INVALID, *_DRIVER) if mask & int(getattr(diagnoses, name))]
    wrong = [_INVALID[name] for name in named if name in _INVALID]
    if wrong:
        raise EngineError(
            f"{artifact.path.name} {' and '.join(wrong)}",
            hint=f"build it again: {rebuild(artifact)}",
        )
    driver = [_DRIVER[name] for name in named if name in _DRIVER]
    raise MissingDependencyError(
        f"{artifact.path.name} cannot run here: "
        + (", ".join(driver) or "TensorRT-RTX finds no usable GPU"),
        hint="install or update the NVIDIA driver; `vitdeploy doctor` shows what is here",
    )


def _header(path: Path, size_bytes: int) -> bytes:
    with path.open("rb") as stream:
        return stream.read(size_bytes)


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())
