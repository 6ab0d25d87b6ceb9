"""Whether decoding hides behind the engine: an evaluation's wall time beside its work.

    python tools/measure_decoding.py [GRAPH] [IMAGES] [ROUNDS]

The goal is a wall time of at most 1.1 x (engine + decoding core-seconds) /
cores from JPEG folders. Core-seconds are this process's CPU time, each part
measured alone; the last figure says how much of the machine others took.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from vitdeploy import environment
from vitdeploy.artifacts.onnx_model import read_onnx_model
from vitdeploy.backends.onnxruntime_ import GraphSession
from vitdeploy.benchmarks.accuracy.evaluation import logits_of
from vitdeploy.demo import assets
from vitdeploy.images import ImageSet, batches, decode, scan

_BATCH = 32


def photographs(folder: Path, count: int) -> ImageSet:
    """JPEGs of 500x375, as ImageNet's are in the mean."""
    generator = np.random.default_rng(0)
    for index in range(count):
        coarse = generator.integers(0, 256, (25, 33, 3), dtype=np.uint8)
        picture = Image.fromarray(coarse).resize((500, 375), Image.Resampling.BICUBIC)
        noise = generator.normal(0, 8, (375, 500, 3))
        pixels = (np.asarray(picture) + noise).clip(0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{index:05d}.jpg", quality=92)
    return scan(folder)


def measured(work: Callable[[], object]) -> tuple[float, float]:
    """(wall seconds, core-seconds of this process)."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def busy_elsewhere(work: Callable[[], tuple[float, float]]) -> tuple[tuple[float, float], float]:
    """What `work` measured, and the share of all cores that other processes had meanwhile."""
    before = _machine_busy_s()
    wall, cpu = work()
    others = max(0.0, _machine_busy_s() - before - cpu)
    return (wall, cpu), others / (wall * (os.cpu_count() or 1))


def _machine_busy_s() -> float:
    """Seconds in which any core worked; 0 where the system does not say (not Linux)."""
    stat = Path("/proc/stat")
    if not stat.is_file():
        return 0.0
    user, nice, system = map(int, stat.read_text().split()[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    graph = Path(sys.argv[1]) if len(sys.argv) > 1 else assets.GRAPH
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 512
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 3
    description = read_onnx_model(graph).description
    preprocessing, size = description.source.preprocessing, description.resolution
    cores = environment.available_cores()
    session = GraphSession(graph)
    with tempfile.TemporaryDirectory() as place:
        images = photographs(Path(place), count)

        def decoding() -> None:
            for item in images.items:
                preprocessing.apply(decode(item.path), size)

        ready = list(batches(images, preprocessing, size, _BATCH))

        def engine() -> None:
            for batch in ready:
                session.run(batch)

        def evaluation() -> None:
            logits_of(session, images, preprocessing, size)

        ratios, others = [], []
        for _ in range(rounds):
            decoded, ran = measured(decoding)[1], measured(engine)[1]
            (wall, _), taken = busy_elsewhere(lambda: measured(evaluation))
            ratios.append(wall * cores / (decoded + ran))
            others.append(taken)
            left = ratios[-1] * (1 - taken)
            print(
                f"decoding {decoded:.2f} and engine {ran:.2f} core-seconds, wall {wall:.2f} s on "
                f"{cores} cores: {ratios[-1]:.3f} "
                f"(others had {100 * taken:.0f} % of the machine; of what they left {left:.3f})"
            )
    print(f"median {statistics.median(ratios):.3f}, best {min(ratios):.3f}; the goal is 1.1")


if __name__ == "__main__":
    main()
