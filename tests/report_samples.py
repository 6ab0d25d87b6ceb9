"""Reports as machines would have written them, for tests of merging and of regressions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from vitdeploy.artifacts.onnx_model import ModelDescription
from vitdeploy.artifacts.source import SourceDescription
from vitdeploy.benchmarks.accuracy.classes import AccuracyComparison, compare
from vitdeploy.benchmarks.naming import engine_name
from vitdeploy.benchmarks.report.model import Report, ReportRow, SpeedDetails
from vitdeploy.benchmarks.speed.end_to_end import EndToEnd
from vitdeploy.benchmarks.speed.machine import Energy
from vitdeploy.benchmarks.speed.memory import PeakMemory
from vitdeploy.benchmarks.speed.roofline import RooflineShare
from vitdeploy.benchmarks.speed.scenarios import (
    OfflineResult,
    ScenarioResult,
    ServerResult,
    ServerRun,
    StreamResult,
    SweepPoint,
)
from vitdeploy.benchmarks.speed.throughput import Measurement, Speedup
from vitdeploy.benchmarks.statistics import ratio_interval
from vitdeploy.environment import Environment
from vitdeploy.preprocessing import Preprocessing

ROUNDS = 24
CPU = Environment(
    "Linux 6.1 x86_64", "A CPU @ 2.5 GHz", ("avx2", "avx512_vnni"), 4, 16 * 10**9, "3.11.2",
    {"onnxruntime": "1.20", "torch": "2.9"},
)  # fmt: skip
JETSON = replace(CPU, system="Linux 5.15 aarch64", cpu="ARMv8", cores=8, gpu="Orin (nvgpu)")
L4 = replace(CPU, cpu="Another CPU", gpu="NVIDIA L4")

QUIET = np.ones(ROUNDS)
"""The noise of a machine without any."""


def accuracy(lost: int, gained: int, n: int = 5000) -> AccuracyComparison:
    """Of `n` images, so many that the source alone, and the engine alone, have right."""
    labels = np.arange(n) % 10
    source, engine = labels.copy(), labels.copy()
    source[:gained] = (labels[:gained] + 1) % 10
    engine[gained : gained + lost] = (labels[gained : gained + lost] + 1) % 10
    wrong = slice(n - n // 10, n)
    source[wrong] = engine[wrong] = (labels[wrong] + 2) % 10
    answers = [(4 * np.eye(10)[classes]).astype(np.float32) for classes in (source, engine)]
    return compare(answers[0], answers[1], labels)


def machine_noise(seed: int, busy: float = 1.0) -> np.ndarray:
    """What slows the whole machine, a factor for each round."""
    return busy * np.random.default_rng(seed).lognormal(0, 0.04, ROUNDS)


def timing(name: str, ms: float, noise: np.ndarray, seed: int, batch: int = 8) -> Measurement:
    own = np.random.default_rng(seed).lognormal(0, 0.01, ROUNDS)
    return Measurement(name, batch, 3, 1, tuple((ms * noise * own).tolist()))


def report(
    engines: dict[str, tuple[float, AccuracyComparison | None]],
    *,
    seed: int = 0,
    busy: float = 1.0,
    environment: Environment = CPU,
    backend: str = "onnxruntime",
    targets: tuple[str, ...] = ("cpu",),
    **changes: Any,
) -> Report:
    """`engines` by precision: ms at batch 8, and the accuracy. PyTorch takes 80 ms."""
    source = SourceDescription(
        "vit_tiny", "timm", "vit_tiny_patch16_224", {}, (224, 224), 3,
        tuple(map(str, range(10))), "ef" * 32, Preprocessing(),
    )  # fmt: skip
    noise = machine_noise(seed, busy)
    torch = timing("PyTorch eager fp32", 80, noise, seed + 100)
    rows = []
    for i, (precision, (ms, found)) in enumerate(engines.items()):
        measured = timing(precision, ms, noise, seed + 200 + i)
        ratio = ratio_interval(np.array(torch.samples_ms), np.array(measured.samples_ms))
        rows.append(
            ReportRow(
                name=engine_name(backend, precision, targets),
                backend=backend,
                precision=precision,
                status="ok",
                size_bytes=20_000_000,
                targets=targets,
                accuracy=found,
                throughput=(measured,),
                speedups=(Speedup(precision, torch.name, 8, *ratio),),
            )
        )
    given = {
        "title": "vit_tiny at 224x224",
        "created": "2026-01-02T03:04:05+00:00",
        "model": ModelDescription(source, (224, 224), "fp32", 17, "images", "logits"),
        "source_label": "PyTorch eager fp32",
        "native_resolution": (224, 224),
        "native_top1": 0.9,
        "source_top1": 0.9,
        "evaluation_images": 5000,
        "evaluation_root": "val",
        "environment": environment,
        "source_throughput": (torch,),
        "images_digest": "12" * 32,
    }
    return Report(**{**given, **changes}, rows=tuple(rows))


def details(name: str = "engine", ms: float = 10.0) -> SpeedDetails:
    """Everything that can be measured of an engine that takes `ms` for an image."""
    latencies = tuple((ms * np.random.default_rng(4).lognormal(0, 0.05, 400)).tolist())
    streams = (
        StreamResult("single-stream", name, "vitdeploy", 1, latencies, 0.01, True),
        StreamResult(
            "multi-stream", name, "vitdeploy", 8, tuple(8 * x for x in latencies), 0.2, False
        ),
    )
    speeds = [(batch, 1000 / ms * min(batch, 4)) for batch in (1, 2, 4, 8, 16)]
    points = tuple(SweepPoint(batch, speed, 0.98 * speed, 1.03 * speed) for batch, speed in speeds)
    runs = (
        ServerRun(50.0, 400, 0, 21.5, True, False),
        ServerRun(100.0, 312, 40, 180.0, False, True),
        ServerRun(70.0, 400, 0, 33.0, True, False),
    )
    return SpeedDetails(
        fair_speedups=(Speedup(name, "PyTorch compiled bf16", 8, 1.42, 1.40, 1.45),),
        shares=(RooflineShare(name, 8, 0.613, "compute"),),
        memory=(PeakMemory("cd" * 32, 8, 412_000_000, 82_000_000),),
        energy=(Energy(name, 8, 0.215, 31.0, 2.0, "CPU package (RAPL)"),),
        from_files=(EndToEnd("cd" * 32, name, 8, 64, 2.5, 1.25, ms, 77.0),),
        scenarios=ScenarioResult(
            "cd" * 32,
            streams,
            OfflineResult(name, "vitdeploy", points, False),
            ServerResult(name, "vitdeploy", 50.0, 8, 0, 70.0, runs),
        ),
    )
