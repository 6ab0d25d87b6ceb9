"""Conditions, energy and peaks: read from files and counters that stand for a machine's own."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from vitdeploy.benchmarks.speed import machine
from vitdeploy.benchmarks.speed.machine import EnergyMeter, GpuConditions, energy_of, observe
from vitdeploy.benchmarks.speed.roofline import (
    GraphWork,
    MachinePeak,
    _products,
    measure_peak,
    share_of_roofline,
)
from vitdeploy.benchmarks.speed.throughput import Measurement
from vitdeploy.errors import InputError, UnstableMeasurementError

CORE = sorted(os.sched_getaffinity(0))[0] if hasattr(os, "sched_getaffinity") else 0
BATCH = np.zeros((4, 3, 8, 8), np.float32)


@pytest.fixture(autouse=True)
def no_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "import_nvml", lambda: None)


def files(root: Path, content: dict[str, str]) -> Path:
    for name, text in content.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


class Nvml:
    """pynvml of a server with one L4, whose counter of energy `used_mj` tests move."""

    NVML_CLOCK_GRAPHICS, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 0, 2, 0

    class NVMLError(Exception):
        pass

    def __init__(self, *missing: str) -> None:
        self.missing, self.used_mj, self.open = missing, 1_000_000.0, 0

    def __getattr__(self, name: str) -> Any:
        answers = {
            "nvmlDeviceGetCount": lambda: 1,
            "nvmlDeviceGetHandleByIndex": lambda index: f"handle {index}",
            "nvmlDeviceGetName": lambda handle: b"NVIDIA L4",
            "nvmlDeviceGetClockInfo": lambda handle, kind: {0: 2040, 2: 6251}[kind],
            "nvmlDeviceGetPowerUsage": lambda handle: 31_500,
            "nvmlDeviceGetEnforcedPowerLimit": lambda handle: 72_000,
            "nvmlDeviceGetTemperature": lambda handle, sensor: 44,
            "nvmlDeviceGetTotalEnergyConsumption": lambda handle: self.used_mj,
        }

        def call(*arguments: Any) -> Any:
            if name in self.missing:
                raise self.NVMLError(name)
            if name in ("nvmlInit", "nvmlShutdown"):
                self.open += 1 if name == "nvmlInit" else -1
                return None
            assert self.open == 1, "asked outside of init and shutdown"
            return answers[name](*arguments)

        return call


class TestConditions:
    def test_clock_governor_and_affinity(self, tmp_path: Path) -> None:
        cpu = f"sys/devices/system/cpu/cpu{CORE}/cpufreq"
        root = files(
            tmp_path,
            {f"{cpu}/scaling_governor": "powersave\n", f"{cpu}/scaling_cur_freq": "2100000"},
        )
        found = observe(2, root=root)
        assert found.governor == "powersave"
        assert found.cpu_mhz == (2100, 2100)
        assert CORE in found.affinity
        assert "2 threads on cores" in found.in_words()
        assert "governor powersave; 2,100 to 2,100 MHz" in found.in_words()

    def test_a_virtual_machine_shows_what_proc_says(self, tmp_path: Path) -> None:
        info = "processor: 0\ncpu MHz\t\t: 2300.0\n\nprocessor: 1\ncpu MHz\t\t: 2412.5\n"
        found = observe(root=files(tmp_path, {"proc/cpuinfo": info}))
        assert found.cpu_mhz == (2300, 2412.5)
        assert "governor not readable" in found.in_words()
        assert observe(root=tmp_path / "nothing").cpu_mhz is None

    def test_a_gpu_by_nvml(self, tmp_path: Path) -> None:
        nvml = Nvml()
        found = observe(root=tmp_path, nvml=nvml)
        assert found.gpus == (GpuConditions("NVIDIA L4", 2040, 6251, 31.5, 72.0, 44),)
        assert nvml.open == 0
        assert "NVIDIA L4 2040 MHz, 6251 MHz memory, 31.5 W, 72 W limit, 44 C" in found.in_words()

    def test_what_a_gpu_does_not_tell_stays_unknown(self, tmp_path: Path) -> None:
        few = Nvml("nvmlDeviceGetPowerUsage", "nvmlDeviceGetEnforcedPowerLimit")
        (gpu,) = observe(root=tmp_path, nvml=few).gpus
        assert (gpu.power_w, gpu.power_limit_w, gpu.graphics_mhz) == (None, None, 2040)
        assert observe(root=tmp_path, nvml=Nvml("nvmlInit")).gpus == ()

    def test_the_names_are_nvmls_own(self) -> None:
        pynvml = importlib.import_module("pynvml")
        for name in (
            "nvmlInit", "nvmlShutdown", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex",
            "nvmlDeviceGetName", "nvmlDeviceGetClockInfo", "nvmlDeviceGetPowerUsage",
            "nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetTemperature",
            "nvmlDeviceGetTotalEnergyConsumption", "NVML_CLOCK_GRAPHICS", "NVML_CLOCK_MEM",
            "NVML_TEMPERATURE_GPU", "NVMLError",
        ):  # fmt: skip
            assert hasattr(pynvml, name), name


class Worker:
    """Runs for `s` seconds of a fake clock and burns what `burn` says."""

    name = "worker"

    def __init__(self, s: float, burn: Any) -> None:
        self.now, self.s, self.burn = 0.0, s, burn

    def clock(self) -> float:
        return self.now

    def run(self, batch: NDArray) -> NDArray[np.float32]:
        self.now += self.s
        self.burn(self.s)
        return np.zeros((len(batch), 2), np.float32)


class TestEnergy:
    ZONES = ("intel-rapl:0", "intel-rapl:1", "intel-rapl:0:0")

    def rapl(self, root: Path, start: int, most: int = 10**12) -> Path:
        base = "sys/class/powercap"
        return files(
            root,
            {f"{base}/{z}/energy_uj": str(start) for z in self.ZONES}
            | {f"{base}/{z}/max_energy_range_uj": str(most) for z in self.ZONES},
        )

    def burner(self, root: Path, watts: float, most: int):
        def burn(seconds: float) -> None:
            for zone in self.ZONES:
                path = root / "sys/class/powercap" / zone / "energy_uj"
                path.write_text(str(round(int(path.read_text()) + watts * seconds * 1e6) % most))

        return burn

    @pytest.mark.parametrize("start", [0, 10**9 - 30 * 10**6])
    def test_packages_are_added_and_counters_may_wrap(self, tmp_path: Path, start: int) -> None:
        most = 10**9
        root = self.rapl(tmp_path, start, most)
        session = Worker(0.1, self.burner(root, 40, most))
        meter = EnergyMeter(root=root)
        found = energy_of(session, BATCH, meter, seconds=2, clock=session.clock)
        assert found is not None
        assert found.watts == pytest.approx(80)  # two packages; the part of one is in it
        assert found.joules_per_image == pytest.approx(80 * 0.1 / 4)
        assert found.source == "CPU package (RAPL)"

    def test_a_gpu_counts_millijoules(self, tmp_path: Path) -> None:
        nvml = Nvml()

        def burn(seconds: float) -> None:
            nvml.used_mj += 50 * seconds * 1000

        session = Worker(0.01, burn)
        meter = EnergyMeter(root=tmp_path, nvml=nvml)
        found = energy_of(session, BATCH, meter, seconds=1, clock=session.clock)
        assert found is not None
        assert found.source == "GPU (NVML)"
        assert found.joules_per_image == pytest.approx(50 * 0.01 / 4)

    def test_without_counters_there_is_no_figure(self, tmp_path: Path) -> None:
        session = Worker(0.1, lambda _: None)
        meter = EnergyMeter(root=tmp_path)
        assert meter.sources == ()
        assert energy_of(session, BATCH, meter, seconds=2, clock=session.clock) is None

    def test_a_moment_tells_nothing(self, tmp_path: Path) -> None:
        session = Worker(0.1, lambda _: None)
        meter = EnergyMeter(root=self.rapl(tmp_path, 0))
        with pytest.raises(InputError, match="tells nothing"):
            energy_of(session, BATCH, meter, seconds=0.5, clock=session.clock)


PEAK = MachinePeak(fp32_gmacs_s=100, int8_gmacs_s=400, copy_gb_s=20, runtime="a test")
WORK = GraphWork({"float32": 10**9, "int8": 4 * 10**9}, weight_bytes=40 * 10**6)


def took(ms: float, batch: int = 1) -> Measurement:
    return Measurement("engine", batch, 1, 1, (ms, ms))


class TestRoofline:
    def test_products_at_the_peak_of_their_types(self) -> None:
        found = share_of_roofline(took(40), WORK, PEAK, input_bytes=600_000)
        assert found.share == pytest.approx(20 / 40)  # 10 ms of float32 and 10 ms of int8
        assert (found.bound, found.in_words()) == ("compute", "50 % of the roofline (compute)")

    def test_small_work_is_bound_by_its_weights(self) -> None:
        light = GraphWork({"float32": 10**6}, weight_bytes=40 * 10**6)
        found = share_of_roofline(took(4), light, PEAK, input_bytes=0)
        assert found.share == pytest.approx(2 / 4)
        assert found.bound == "memory"

    def test_weights_are_read_once_a_batch(self) -> None:
        light = GraphWork({"float32": 10**6}, weight_bytes=40 * 10**6)
        found = share_of_roofline(took(4, 8), light, PEAK, input_bytes=10**6)
        assert found.share == pytest.approx((40 + 8) / 20 / 4)

    def test_a_timer_that_did_not_wait_is_found_out(self) -> None:
        with pytest.raises(UnstableMeasurementError, match="did not wait for the work"):
            share_of_roofline(took(0.02), WORK, PEAK, input_bytes=600_000)

    def test_the_peak_is_the_fastest_run(self) -> None:
        now = [0.0]

        class Session:
            name, runs = "peak", 0

            def __init__(self, graph: bytes, threads: int | None) -> None:
                self.ms = 10.0 if b"QuantizeLinear" in graph else 40.0
                assert threads == 3

            def run(self, batch: NDArray) -> NDArray[np.float32]:
                self.runs += 1
                now[0] += self.ms / 1000 * (1 if self.runs == 5 else 1.3)
                return batch.copy()

        def clock() -> float:
            now[0] += 1e-9
            return now[0]

        found = measure_peak(threads=3, clock=clock, open_session=Session)
        assert found.fp32_gmacs_s == pytest.approx(4 * 1024**3 / 0.040 / 1e9, rel=1e-3)
        assert found.int8_gmacs_s == pytest.approx(4 * 1024**3 / 0.010 / 1e9, rel=1e-3)

    def test_the_graphs_multiply_as_they_say(self) -> None:
        import onnx

        from vitdeploy.backends.onnxruntime_ import GraphSession
        from vitdeploy.graph.shapes import concrete_shapes
        from vitdeploy.graph.skeleton import skeleton_of
        from vitdeploy.graph.work import products

        values = np.random.default_rng(0).standard_normal((1, 1, 1024, 1024), dtype=np.float32)
        for quantized, kind in ((False, "float32"), (True, "int8")):
            graph = _products(quantized=quantized)
            proto = onnx.load_from_string(graph)
            skeleton = skeleton_of(proto, Path())
            found = list(products(skeleton, concrete_shapes(skeleton, {"x": values.shape})))
            assert {product.computes for product in found} == {kind}
            assert sum(product.macs or 0 for product in found) == 4 * 1024**3
            answers = GraphSession(graph, threads=1).run(values)
            assert 0.1 < np.std(answers) < 10
