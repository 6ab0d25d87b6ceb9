"""What INT8 loses on models that are hard to quantize, with the bound of the drop.

    python -m tests.measure_planted [IMAGES]

IMAGES is a labelled folder, by default the demo's 2,000; `vitdeploy train --data
fashion-mnist` unpacks all 10,000 test images into <output>/data/test. Prints the
table of docs/quantization.md: some ten seconds a row and thousand images on two cores.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray

from tests import planted_models
from tests.massive_activations import with_massive_activations
from vitdeploy.artifacts.onnx_model import OnnxModel
from vitdeploy.backends.onnxruntime_ import GraphSession
from vitdeploy.benchmarks.statistics import tango_upper
from vitdeploy.calibration.image_set import CalibrationSet, choose
from vitdeploy.calibration.quantize import quantize
from vitdeploy.demo import assets
from vitdeploy.export.export import ExportOptions, export
from vitdeploy.graph import files
from vitdeploy.images import ImageSet, batches, scan
from vitdeploy.models.load import ModelRequest, load_source
from vitdeploy.models.source import SourceModel, weights_digest

PLANTS: dict[str, Callable[[ir.Model], None]] = {
    "demo": lambda graph: None,
    "LayerNorm channels x20": lambda graph: planted_models.norm_outliers(graph, 20),
    "LayerNorm channels x50": lambda graph: planted_models.norm_outliers(graph, 50),
    "LayerNorm channels x100": lambda graph: planted_models.norm_outliers(graph, 100),
    "GELU channels x100": lambda graph: planted_models.gelu_outliers(graph, 100),
    "query-key logits x3": lambda graph: planted_models.large_logits(graph, 3),
}
_BATCH = 50


def main(folder: Path) -> None:
    """Print a row for every planted model."""
    source = load_source(ModelRequest(name=str(assets.CHECKPOINT)))
    labels = source.description.labels
    taught = scan(assets.images_folder("calibration"), labels=labels)
    evaluation = scan(folder, labels=labels)
    print(f"{len(evaluation)} images\n")
    print("| model | agreement | drop | at most (95 %) |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as place:
        for name, model in _models(source, taught, Path(place)):
            lost, gained, agreed = _compared(model, choose(taught, count=128), evaluation)
            count = len(evaluation)
            bound = tango_upper(lost, gained, count)
            print(
                f"| {name} | {agreed / count:.2%} | {100 * (lost - gained) / count:.2f} | "
                f"{100 * bound:.2f} points |",
                flush=True,
            )


def _models(source: SourceModel, taught: ImageSet, folder: Path) -> Iterator[tuple[str, OnnxModel]]:
    demo = export(source, ExportOptions(), folder)
    for number, (name, plant) in enumerate(PLANTS.items()):
        graph = files.load(demo)
        plant(graph)
        yield name, files.save(graph, demo.description, folder / f"planted{number}.onnx")
    pixels = list(batches(taught, source.description.preprocessing, source.resolution, _BATCH))
    module = with_massive_activations(source.module, torch.from_numpy(np.concatenate(pixels)))
    description = replace(
        source.description, name="massive", weights_digest=weights_digest(module.state_dict())
    )
    massive = replace(source, module=module, description=description)
    yield "massive activations", export(massive, ExportOptions(), folder)


def _compared(
    model: OnnxModel, calibration: CalibrationSet, evaluation: ImageSet
) -> tuple[int, int, int]:
    """Images that INT8 lost and gained against its float model, and those it agrees on."""
    int8 = quantize(model, calibration, model.path.parent)
    labels = np.array(evaluation.label_indices())
    exact, quantized = (_classes(each, evaluation) for each in (model, int8))
    right, still = exact == labels, quantized == labels
    return int((right & ~still).sum()), int((still & ~right).sum()), int((exact == quantized).sum())


def _classes(model: OnnxModel, images: ImageSet) -> NDArray[np.int64]:
    session = GraphSession(model.path)
    description = model.description
    preprocessing = description.source.preprocessing
    parts = batches(images, preprocessing, description.resolution, _BATCH)
    return np.concatenate([session.run(part).argmax(-1) for part in parts])


if __name__ == "__main__":
    torch.set_num_threads(2)
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else assets.images_folder("evaluation"))
