"""GPUs by NVML, by the kernel's files, and a Jetson's by sysfs and its own tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vitdeploy import accelerators
from vitdeploy.accelerators import Gpu, look

VERSION = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\n"
)
TEGRA = "# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64\n"
NVPMODEL = "NV Power Mode: MAXN_SUPER\n2\n"
TEGRASTATS = "01-01-2026 RAM 2448/7620MB (lfb 4x4MB) GR3D_FREQ 0%\n01-01-2026 RAM 2449/7620MB\n"


def machine(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def silent(command: list[str]) -> str:
    return ""


@pytest.fixture(autouse=True)
def no_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerators, "import_nvml", lambda: None)


class Nvml:
    """pynvml's functions as a server answers them; `missing` are not supported."""

    class NVMLError(Exception):
        pass

    def __init__(self, *missing: str) -> None:
        self._missing = missing
        self.is_open = False

    def __getattr__(self, name: str) -> Any:
        answers: dict[str, Any] = {
            "nvmlSystemGetDriverVersion": b"570.86.10",
            "nvmlSystemGetCudaDriverVersion": 12080,
            "nvmlDeviceGetCount": 2,
            "nvmlDeviceGetHandleByIndex": "handle",
            "nvmlDeviceGetName": "NVIDIA L4",
            "nvmlDeviceGetCudaComputeCapability": (8, 9),
            "nvmlDeviceGetMemoryInfo": type("Memory", (), {"total": 24 << 30}),
        }

        def call(*arguments: Any) -> Any:
            if name in self._missing:
                raise self.NVMLError(f"{name}: Not Supported")
            self.is_open = {"nvmlInit": True, "nvmlShutdown": False}.get(name, self.is_open)
            assert self.is_open or name == "nvmlShutdown"
            return answers.get(name)

        return call


def test_a_server_by_nvml(tmp_path: Path) -> None:
    nvml = Nvml()
    toolkit = {"usr/local/cuda/version.json": '{"cuda": {"version": "12.6.3"}}'}
    found = look(machine(tmp_path, toolkit), nvml=nvml, ask=silent)
    assert (found.driver, found.cuda_driver, found.cuda_toolkit) == ("570.86.10", "12.8", "12.6.3")
    assert found.gpus == (Gpu("NVIDIA L4", "8.9", 24 << 30),) * 2
    assert found.jetson is None
    assert found.remarks == ()
    assert not nvml.is_open


def test_without_nvml_the_kernel_is_asked(tmp_path: Path) -> None:
    files = {
        "proc/driver/nvidia/version": VERSION,
        "proc/driver/nvidia/gpus/0000:01:00.0/information": "Model: \t NVIDIA RTX A4000\nIRQ: 7\n",
    }
    for nvml in (None, Nvml("nvmlInit")):
        found = look(machine(tmp_path, files), nvml=nvml, ask=silent)
        assert found.driver == "535.183.01"
        assert found.gpus == (Gpu("NVIDIA RTX A4000"),)
    assert "nvidia-ml-py" in look(tmp_path, ask=silent).remarks[0]


def test_a_jetson_has_little_nvml(tmp_path: Path) -> None:
    """Its memory is the system's, so none is said; the rest comes from sysfs and its tools."""
    gpu = "sys/class/devfreq/17000000.gpu"
    files = {
        "proc/device-tree/model": "NVIDIA Jetson Orin Nano Developer Kit\0",
        "etc/nv_tegra_release": TEGRA,
        "sys/class/devfreq/other.vic/max_freq": "1\n",
        f"{gpu}/min_freq": "306000000\n",
        f"{gpu}/cur_freq": "306000000\n",
        f"{gpu}/max_freq": "1020000000\n",
    }
    root = machine(tmp_path, files)
    answers = {"nvpmodel": NVPMODEL, "tegrastats": TEGRASTATS}
    partial = Nvml("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetCudaComputeCapability")
    for nvml in (None, partial):
        found = look(root, nvml=nvml, ask=lambda command: answers[command[0]])
        jetson = found.jetson
        assert jetson is not None
        assert (jetson.model, jetson.l4t) == ("NVIDIA Jetson Orin Nano Developer Kit", "36.4.3")
        assert jetson.power_mode == "MAXN_SUPER"
        assert (jetson.gpu_clock_hz, jetson.gpu_clock_limit_hz) == (306_000_000, 1_020_000_000)
        assert jetson.clock_is_pinned is False
        assert jetson.tegrastats == TEGRASTATS.splitlines()[0]
        assert all(gpu.memory_bytes is None for gpu in found.gpus)
    assert look(root, ask=silent).gpus == (Gpu("NVIDIA Jetson Orin Nano Developer Kit"),)
    (root / gpu / "min_freq").write_text("1020000000\n")
    pinned = look(root, ask=silent).jetson
    assert pinned is not None
    assert pinned.clock_is_pinned is True
    assert pinned.power_mode == ""


def test_a_machine_without_any(tmp_path: Path) -> None:
    broken = {"usr/local/cuda/version.json": '{"cuda": ['}
    assert look(machine(tmp_path, broken), ask=silent) == accelerators.Accelerators()


def test_programs_that_do_not_end_are_read_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerators, "_PATIENCE_S", 1.0)
    assert accelerators._ask(["no such program"]) == ""
    assert accelerators._ask(["sh", "-c", "echo first; exec sleep 20"]) == "first\n"
