"""What calibrating costs beside a float forward pass over the same images.

    python tools/measure_calibration.py [MODEL] [IMAGES] [ROUNDS]

The passes in turns in one process, decoding included in each; searches apart.
The goal is at most 1.25 for each pass, and memory that does not grow with the
images.
"""

from __future__ import annotations

import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from vitdeploy.artifacts.onnx_model import OnnxModel
from vitdeploy.backends.onnxruntime_ import GraphSession
from vitdeploy.benchmarks.accuracy.evaluation import logits_of
from vitdeploy.calibration.gathering import Gathering
from vitdeploy.calibration.grids import INT8
from vitdeploy.calibration.image_set import choose
from vitdeploy.calibration.plan import plan
from vitdeploy.calibration.tuning import Tuning
from vitdeploy.export.export import ExportOptions, export
from vitdeploy.graph import files
from vitdeploy.images import scan
from vitdeploy.models.load import ModelRequest, seeded_random_source


def photographs(folder: Path, count: int) -> None:
    """JPEGs of 320x256, each its own noise over its own gradient."""
    generator = np.random.default_rng(0)
    ramp = np.linspace(0, 1, 320)[None, :, None]
    for index in range(count):
        low, high = generator.uniform(0, 255, (2, 1, 1, 3))
        pixels = low + (high - low) * ramp + generator.normal(0, 20, (256, 320, 3))
        image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
        image.save(folder / f"{index:05d}.jpg", quality=90)


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def measure(model: OnnxModel, folder: Path, rounds: int) -> None:
    images = scan(folder)
    calibration = choose(images, count=len(images))
    description = model.description
    preprocessing, size = description.source.preprocessing, description.resolution
    graph = files.load(model)
    chosen = plan(graph)
    gathering = Gathering(model=model, calibration=calibration)
    session = GraphSession(model.path)
    ratios: dict[str, list[float]] = {"maxima": [], "histograms": []}
    for _ in range(rounds):
        forward = seconds(lambda: logits_of(session, images, preprocessing, size))
        maxima = gathering.maxima(graph, chosen.activations)
        took = seconds(lambda: gathering.maxima(graph, chosen.activations))
        absmax = {name: float(found.max()) for name, found in maxima.items()}
        took_more = seconds(lambda absmax=absmax: gathering.histograms(graph, absmax, {}))
        ratios["maxima"].append(took / forward)
        ratios["histograms"].append(took_more / forward)
        print(f"forward {forward:.1f} s, maxima {took:.1f} s, histograms {took_more:.1f} s")
    for name, found in ratios.items():
        print(f"{name}: {statistics.median(found):.2f}x ({min(found):.2f} to {max(found):.2f})")
    tuning = Tuning(graph, chosen, INT8, gathering)
    tuning.look()
    folding = seconds(tuning.fold)
    ranges = seconds(lambda: tuning.choose_ranges("auto"))
    biases = seconds(tuning.correct_biases)
    print(f"searches: folds {folding:.1f} s, biases {biases:.1f} s")
    print(f"second pass with the search for ranges {ranges:.1f} s")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"{len(images)} images; peak memory {peak:.2f} GB")


def main(name: str = "vit_base_patch16_224", count: str = "48", rounds: str = "3") -> None:
    torch.set_num_threads(2)
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work, "images")
        folder.mkdir()
        photographs(folder, int(count))
        source = seeded_random_source(ModelRequest(name=name, random_weights=True), 0)
        measure(export(source, ExportOptions(), Path(work)), folder, int(rounds))


if __name__ == "__main__":
    main(*sys.argv[1:])
