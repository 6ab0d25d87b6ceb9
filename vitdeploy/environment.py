"""What this machine is: hardware, drivers, library versions."""

from __future__ import annotations

import os
import platform
import secrets
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

_PACKAGES = (
    "vitdeploy", "numpy", "onnx", "onnx-ir", "onnxruntime", "onnxruntime-gpu", "openvino",
    "tensorrt", "tensorrt-rtx-cu13", "tensorrt-rtx", "torch", "torchvision", "timm", "pillow",
)  # fmt: skip
_INTERESTING_FEATURES = (
    "avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8", "amx_bf16", "avx512_bf16",
    "asimd", "asimddp", "i8mm", "sve",
)  # fmt: skip
_DRIVER_FILES = (
    "/proc/driver/nvidia/version", "/dev/nvhost-gpu", "/dev/nvhost-ctrl-gpu",
    "/usr/lib/wsl/lib/libcuda.so.1",
)  # fmt: skip


@dataclass(frozen=True)
class Environment:
    """A machine and its software, as it stands in manifests and reports."""

    system: str
    cpu: str
    cpu_features: tuple[str, ...]
    cores: int
    memory_bytes: int
    python: str
    packages: dict[str, str]
    gpu: str = ""

    @property
    def has_int8_dot_product(self) -> bool:
        """Without it (VNNI, AMX, i8mm, ...) u8s8 products can saturate and INT8 rarely pays."""
        return any(
            feature in self.cpu_features
            for feature in ("avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm")
        )

    @property
    def has_vnni(self) -> bool:
        """x86 instructions that multiply unsigned bytes by signed ones, exactly."""
        return "avx512_vnni" in self.cpu_features or "avx_vnni" in self.cpu_features


def describe() -> Environment:
    """Look at this machine. Cheap: nothing heavy is imported."""
    info = _cpuinfo()
    flags = set((info.get("flags") or info.get("Features") or "").split())
    return Environment(
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        cpu=info.get("model name") or platform.processor() or platform.machine(),
        cpu_features=tuple(name for name in _INTERESTING_FEATURES if name in flags),
        cores=available_cores(),
        memory_bytes=_memory_bytes(),
        python=platform.python_version(),
        packages=installed_packages(),
        gpu=_gpu(),
    )


def core_numbers() -> tuple[int, ...]:
    """The cores this process may use, by the system's numbers, which begin at 0."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def available_cores() -> int:
    """How many cores this process may use."""
    return len(core_numbers())


def installed_packages() -> dict[str, str]:
    """Versions of the packages that matter here, of those that are installed."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def has_nvidia_driver() -> bool:
    """Whether an NVIDIA driver is loaded (servers, desktops, Jetsons, WSL and Windows)."""
    places = [Path(place) for place in _DRIVER_FILES]
    if platform.system() == "Windows":
        places = [Path(os.environ.get("SYSTEMROOT", r"C:\Windows")) / "System32" / "nvcuda.dll"]
    return any(place.exists() for place in places)


def _gpu() -> str:
    folder = Path("/proc/driver/nvidia/gpus")
    if not folder.is_dir():
        # A Jetson's GPU has no name of its own but the module's.
        board = Path("/proc/device-tree/model")
        model = board.read_text(errors="replace").strip("\0\n ") if board.is_file() else ""
        return model if "jetson" in model.lower() else ""
    names = []
    for information in sorted(folder.glob("*/information")):
        for line in information.read_text(errors="replace").splitlines():
            if line.startswith("Model:"):
                names.append(line.split(":", 1)[1].strip())
    return ", ".join(names)


def _cpuinfo() -> dict[str, str]:
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return {}
    first = path.read_text(errors="replace").split("\n\n", 1)[0]
    pairs = (line.split(":", 1) for line in first.splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0


def cache_folder() -> Path:
    """Where vitdeploy keeps what it can make again ($XDG_CACHE_HOME/vitdeploy)."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "vitdeploy"


def unique_suffix() -> str:
    """A suffix no other process or thread uses."""
    return f"{os.getpid()}-{secrets.token_hex(4)}"


def conflicts(packages: dict[str, str]) -> list[str]:
    """Packages that break each other, each with its remedy."""
    found = []
    if "onnxruntime" in packages and "onnxruntime-gpu" in packages:
        found.append(
            "onnxruntime and onnxruntime-gpu are installed together and overwrite each other's "
            "files; pip uninstall both, then install one: pip install onnxruntime-gpu"
        )
    return found
