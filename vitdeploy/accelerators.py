"""GPUs and their drivers, as `vitdeploy doctor` shows them.

By NVML where `nvidia-ml-py` is installed, else by what the kernel says. A
Jetson has little or no NVML: there sysfs, nvpmodel and tegrastats are asked.
Nothing here starts CUDA, and what does not answer is left out, not guessed.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PATIENCE_S = 2.0
_NO_NVML = "GPU memory and compute capability are not known: pip install nvidia-ml-py"

Ask = Callable[[list[str]], str]
"""Runs a program and answers what it wrote; empty where there is no such program."""


@dataclass(frozen=True)
class Gpu:
    """One GPU; `compute_capability` as '8.9', empty where it is not known.

    `memory_bytes` is None where it is not known or is the system's own.
    """

    name: str
    compute_capability: str = ""
    memory_bytes: int | None = None


@dataclass(frozen=True)
class Jetson:
    """A Jetson module: its release of L4T, power mode and GPU clock.

    `clock_is_pinned`: lowest and highest GPU clock are the same, as after
    `jetson_clocks`; None where sysfs does not say.
    """

    model: str
    l4t: str = ""
    power_mode: str = ""
    gpu_clock_hz: int | None = None
    gpu_clock_limit_hz: int | None = None
    clock_is_pinned: bool | None = None
    tegrastats: str = ""


@dataclass(frozen=True)
class Accelerators:
    """What was found: `driver` and the highest CUDA it serves, the toolkit installed, GPUs."""

    driver: str = ""
    cuda_driver: str = ""
    cuda_toolkit: str = ""
    gpus: tuple[Gpu, ...] = ()
    jetson: Jetson | None = None
    remarks: tuple[str, ...] = ()


def look(
    root: Path = Path("/"), *, nvml: Any | None = None, ask: Ask | None = None
) -> Accelerators:
    """Look at this machine, or at the files under `root`; `nvml` is the module pynvml."""
    ask = ask or _ask
    jetson = _jetson(root, ask)
    toolkit = _toolkit(root)
    nvml = nvml or import_nvml()
    if nvml is not None:
        found = _by_nvml(nvml, is_jetson=jetson is not None)
        if found is not None:
            driver, cuda, gpus = found
            return Accelerators(driver, cuda, toolkit, gpus, jetson)
    driver = _kernel_driver(root)
    gpus = tuple(Gpu(name) for name in _kernel_gpus(root))
    if jetson is not None and not gpus:
        gpus = (Gpu(jetson.model),)
    remarks = (_NO_NVML,) if gpus and jetson is None and nvml is None else ()
    return Accelerators(driver, "", toolkit, gpus, jetson, remarks)


def _by_nvml(nvml: Any, *, is_jetson: bool) -> tuple[str, str, tuple[Gpu, ...]] | None:
    """Driver, CUDA version and GPUs; None where NVML does not start (no driver)."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    try:
        cuda = nvml_value(nvml, "nvmlSystemGetCudaDriverVersion") or 0
        gpus = []
        for index in range(nvml_value(nvml, "nvmlDeviceGetCount") or 0):
            handle = nvml_value(nvml, "nvmlDeviceGetHandleByIndex", index)
            major_minor = nvml_value(nvml, "nvmlDeviceGetCudaComputeCapability", handle)
            memory = None if is_jetson else nvml_value(nvml, "nvmlDeviceGetMemoryInfo", handle)
            gpus.append(
                Gpu(
                    _text(nvml_value(nvml, "nvmlDeviceGetName", handle)) or "NVIDIA GPU",
                    ".".join(map(str, major_minor or ())),
                    None if memory is None else int(memory.total),
                )
            )
        driver = _text(nvml_value(nvml, "nvmlSystemGetDriverVersion"))
        return driver, f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "", tuple(gpus)
    finally:
        nvml.nvmlShutdown()


def nvml_value(nvml: Any, name: str, *arguments: Any) -> Any:
    """What a call answers; None where this device does not support it, as Jetsons do not."""
    try:
        return getattr(nvml, name)(*arguments)
    except nvml.NVMLError:
        return None


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")


def import_nvml() -> Any | None:
    """The module pynvml (package nvidia-ml-py), None where it is not installed."""
    try:
        import pynvml  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    return pynvml


def _jetson(root: Path, ask: Ask) -> Jetson | None:
    """None where the device tree names no Jetson, and no L4T release is installed."""
    model = _read(root / "proc/device-tree/model").strip("\0\n ")
    release = _read(root / "etc/nv_tegra_release")
    if not release and "jetson" not in model.lower():
        return None
    match = re.search(r"R(\d+).*?REVISION: ([\d.]+)", release)
    power = re.search(r"NV Power Mode: *(\S+)", ask(["nvpmodel", "-q"]))
    low, now, high = _gpu_clocks(root)
    return Jetson(
        model=model or "a Jetson",
        l4t=f"{match[1]}.{match[2]}" if match else "",
        power_mode=power[1] if power else "",
        gpu_clock_hz=now,
        gpu_clock_limit_hz=high,
        clock_is_pinned=None if low is None or high is None else low == high,
        tegrastats=(ask(["tegrastats", "--interval", "200"]).splitlines() or [""])[0],
    )


def _gpu_clocks(root: Path) -> tuple[int | None, ...]:
    """(lowest, now, highest) in Hz of the GPU's frequency governor."""
    for folder in sorted((root / "sys/class/devfreq").glob("*")):
        # 17000000.ga10b and 17000000.gpu on Orin, gpu-gpc-0 on Thor
        if re.search(r"gpu|gv11b|ga10b|gp10b", folder.name):
            texts = (_read(folder / name) for name in ("min_freq", "cur_freq", "max_freq"))
            return tuple(int(text) if text.strip().isdecimal() else None for text in texts)
    return None, None, None


def _kernel_driver(root: Path) -> str:
    match = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", _read(root / "proc/driver/nvidia/version"))
    return match[1] if match else ""


def _kernel_gpus(root: Path) -> list[str]:
    names = []
    for path in sorted((root / "proc/driver/nvidia/gpus").glob("*/information")):
        match = re.search(r"^Model:\s*(.+)$", _read(path), re.MULTILINE)
        names += [match[1].strip()] if match else []
    return names


def _toolkit(root: Path) -> str:
    """The version of the CUDA toolkit under /usr/local/cuda; empty where there is none."""
    text = _read(root / "usr/local/cuda/version.json")
    try:
        return str(json.loads(text)["cuda"]["version"]) if text else ""
    except (ValueError, LookupError, TypeError):
        return ""


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _ask(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except subprocess.TimeoutExpired as error:  # tegrastats goes on until it is stopped
        return _text(error.stdout)
    except OSError:
        return ""
    return done.stdout
