"""What a measurement ran under: threads, clocks, power; and what energy it took."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitdeploy.accelerators import import_nvml, nvml_value
from vitdeploy.backends.base import Session
from vitdeploy.benchmarks.speed.timing_guards import Clock, settle
from vitdeploy.errors import InputError

_GOVERNOR = "sys/devices/system/cpu/cpu{}/cpufreq/scaling_governor"
_FREQUENCY = "sys/devices/system/cpu/cpu{}/cpufreq/scaling_cur_freq"
_RAPL = "sys/class/powercap"
_PACKAGE = re.compile(r"intel-rapl:\d+")
"""Whole packages; 'intel-rapl:0:0' is a part of one and would be counted twice."""


@dataclass(frozen=True)
class GpuConditions:
    """A GPU's state; None where the driver does not say."""

    name: str
    graphics_mhz: int | None = None
    memory_mhz: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: int | None = None


@dataclass(frozen=True)
class Conditions:
    """The state of the machine beside a measurement; empty or None where it cannot be read.

    `threads` is what engines were given (None: all of `affinity`),
    `cpu_mhz` is (lowest, highest) of these cores now.
    """

    threads: int | None
    affinity: tuple[int, ...]
    governor: str = ""
    cpu_mhz: tuple[float, float] | None = None
    load_average: float | None = None
    gpus: tuple[GpuConditions, ...] = ()

    def in_words(self) -> str:
        """'2 threads on cores 0, 1; governor performance; 2,300 to 2,400 MHz; load 0.31'."""
        threads = len(self.affinity) if self.threads is None else self.threads
        cores = ", ".join(map(str, self.affinity)) or "unknown"
        parts = [f"{threads} thread{'s' if threads != 1 else ''} on cores {cores}"]
        parts.append(f"governor {self.governor or 'not readable'}")
        if self.cpu_mhz is None:
            parts.append("clock not readable")
        else:
            parts.append(f"{self.cpu_mhz[0]:,.0f} to {self.cpu_mhz[1]:,.0f} MHz")
        if self.load_average is not None:
            parts.append(f"load {self.load_average:.2f}")
        for gpu in self.gpus:
            values = [
                f"{value:g} {unit}"
                for value, unit in (
                    (gpu.graphics_mhz, "MHz"),
                    (gpu.memory_mhz, "MHz memory"),
                    (gpu.power_w, "W"),
                    (gpu.power_limit_w, "W limit"),
                    (gpu.temperature_c, "C"),
                )
                if value is not None
            ]
            parts.append(" ".join([gpu.name, ", ".join(values)]).strip())
        return "; ".join(parts)


def observe(
    threads: int | None = None, *, root: Path = Path("/"), nvml: Any | None = None
) -> Conditions:
    """Look at this machine, or at the files under `root`. `nvml` is the module pynvml.

    Virtual machines mostly hide governor and clock; what is hidden stays empty.
    """
    affinity = tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()
    governors = {text for core in affinity if (text := _read(root / _GOVERNOR.format(core)))}
    return Conditions(
        threads,
        affinity,
        " and ".join(sorted(governors)),
        _clock_range(root, affinity),
        os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        _gpus(nvml or import_nvml()),
    )


@dataclass(frozen=True)
class Energy:
    """What runs took beyond what was asked of nobody: `joules_per_image`, over `seconds`.

    `source` names the counters: 'CPU package (RAPL)', 'GPU (NVML)', or both.
    The whole package is counted, so other work on it is too.
    """

    name: str
    batch: int
    joules_per_image: float
    watts: float
    seconds: float
    source: str


class EnergyMeter:
    """Counters of energy used since some start. `sources` is empty where none can be read."""

    def __init__(self, *, root: Path = Path("/"), nvml: Any | None = None) -> None:
        self._zones = [
            zone
            for zone in sorted((root / _RAPL).glob("intel-rapl:*"))
            if _PACKAGE.fullmatch(zone.name) and _read(zone / "energy_uj")
        ]
        self._nvml = nvml or import_nvml()
        self._has_gpu = self._gpu_joules() > 0

    @property
    def sources(self) -> tuple[str, ...]:
        found = (("CPU package (RAPL)", bool(self._zones)), ("GPU (NVML)", self._has_gpu))
        return tuple(name for name, there in found if there)

    def reading(self) -> tuple[float, ...]:
        """Joules of each counter."""
        zones = (float(_read(zone / "energy_uj")) / 1e6 for zone in self._zones)
        return (*zones, self._gpu_joules()) if self._has_gpu else tuple(zones)

    def between(self, before: tuple[float, ...], after: tuple[float, ...]) -> float:
        """Joules in between. A package's counter wraps, on servers within the hour."""
        total = 0.0
        for i, (start, end) in enumerate(zip(before, after, strict=True)):
            used = end - start
            if used < 0 and i < len(self._zones):
                used += float(_read(self._zones[i] / "max_energy_range_uj") or "nan") / 1e6
            total += used
        return total

    def _gpu_joules(self) -> float:
        def joules(handle: Any) -> float:
            used_mj = nvml_value(self._nvml, "nvmlDeviceGetTotalEnergyConsumption", handle)
            return (used_mj or 0) / 1e3

        return sum(_for_each_gpu(self._nvml, joules))


def energy_of(
    session: Session,
    batch: Any,
    meter: EnergyMeter,
    *,
    seconds: float,
    clock: Clock,
) -> Energy | None:
    """Run `batch` for at least `seconds` and read the counters around it; None without counters.

    Counters step about once a millisecond (NVML: every 20 to 100), so short
    spans tell nothing: InputError below one second.
    """
    if not meter.sources:
        return None
    if not seconds >= 1:
        raise InputError(f"energy over {seconds} s tells nothing", hint="take a second at least")
    session.run(batch)
    settle(session)
    before, start, runs = meter.reading(), clock(), 0
    while clock() - start < seconds:
        session.run(batch)
        runs += 1
    settle(session)
    took = clock() - start
    joules = meter.between(before, meter.reading())
    return Energy(
        session.name,
        len(batch),
        joules / (runs * len(batch)),
        joules / took,
        took,
        " and ".join(meter.sources),
    )


def _gpus(nvml: Any | None) -> tuple[GpuConditions, ...]:
    if nvml is None:
        return ()

    def look(handle: Any) -> GpuConditions:
        name = nvml_value(nvml, "nvmlDeviceGetName", handle) or "NVIDIA GPU"
        if isinstance(name, bytes):  # of bindings before 11.5
            name = name.decode()

        def watts(question: str) -> float | None:
            milliwatts = nvml_value(nvml, question, handle)
            return None if milliwatts is None else milliwatts / 1e3

        def mhz(kind: str) -> int | None:
            return nvml_value(nvml, "nvmlDeviceGetClockInfo", handle, getattr(nvml, kind))

        return GpuConditions(
            str(name),
            mhz("NVML_CLOCK_GRAPHICS"),
            mhz("NVML_CLOCK_MEM"),
            watts("nvmlDeviceGetPowerUsage"),
            watts("nvmlDeviceGetEnforcedPowerLimit"),
            nvml_value(nvml, "nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU),
        )

    return tuple(_for_each_gpu(nvml, look))


def _for_each_gpu(nvml: Any | None, ask: Callable[[Any], Any]) -> list[Any]:
    """What `ask` answers of every GPU; nothing where no driver is loaded."""
    if nvml is None:
        return []
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return []
    try:
        count = nvml.nvmlDeviceGetCount()
        return [ask(nvml.nvmlDeviceGetHandleByIndex(index)) for index in range(count)]
    finally:
        nvml.nvmlShutdown()


def _clock_range(root: Path, cores: tuple[int, ...]) -> tuple[float, float] | None:
    """(lowest, highest) MHz of `cores`, by the kernel's governor, else by /proc/cpuinfo."""
    governed = [text for core in cores if (text := _read(root / _FREQUENCY.format(core)))]
    found = [float(text) / 1e3 for text in governed if text.isdecimal()]
    if not found:
        info = _read(root / "proc/cpuinfo")
        found = [float(mhz) for mhz in re.findall(r"^cpu MHz\s*:\s*([\d.]+)$", info, re.MULTILINE)]
    return (min(found), max(found)) if found else None


def _read(path: Path) -> str:
    """A file of the system's, empty where it is not there or not for us to read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
