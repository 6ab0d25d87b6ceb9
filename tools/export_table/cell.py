"""One cell: export, compare on 32 images, build. Runs in a process of its own."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from tools.export_table.rows import ROWS, Row
from tools.export_table.weights import enliven
from vitdeploy import api
from vitdeploy.artifacts.onnx_model import OnnxModel
from vitdeploy.backends import registry
from vitdeploy.backends.base import BuildOptions
from vitdeploy.backends.onnxruntime_ import GraphSession
from vitdeploy.demo import assets
from vitdeploy.environment import describe
from vitdeploy.errors import VitDeployError
from vitdeploy.export.export import ExportOptions
from vitdeploy.graph.emulation import emulate
from vitdeploy.images import batches, scan
from vitdeploy.models.load import ModelRequest, seeded_random_source
from vitdeploy.models.source import SourceModel
from vitdeploy.target import parse_targets

IMAGES = 32
BATCH = 4
TARGETS = ("sm86", "sm89", "sm120")


def main(row_key: str, size_kind: str, precision: str) -> None:
    """Print the cell as JSON."""
    row = next(row for row in ROWS if row.key == row_key)
    started = time.perf_counter()
    try:
        found = _judged(row, size_kind, precision)
    except VitDeployError as error:
        found = {"error": str(error), "hint": error.hint}
    packages = describe().packages
    print(
        json.dumps(
            {
                **asdict(row),
                "size": size_kind,
                "precision": precision,
                **found,
                "seconds": round(time.perf_counter() - started, 1),
                "versions": {
                    name: packages[name]
                    for name in ("torch", "timm", "onnxruntime", "tensorrt-rtx")
                    if name in packages
                },
            },
            indent=1,
        )
    )


def _judged(row: Row, size_kind: str, precision: str) -> dict[str, Any]:
    request = ModelRequest(
        name=row.model,
        random_weights=True,
        task=row.task,  # type: ignore[arg-type]
        num_classes=None if row.task == "features" else 100,
        model_kwargs=row.model_kwargs or None,
    )
    source = seeded_random_source(request, 0)
    enliven(source.module)
    size = {"native": source.resolution, "other": row.other, "oblong": row.oblong}[size_kind]
    preprocessing = replace(source.description.preprocessing, crop_pct=1.0)
    source = replace(source, description=replace(source.description, preprocessing=preprocessing))
    chosen = scan(assets.images_folder("evaluation"))
    images = chosen.take(np.linspace(0, len(chosen) - 1, IMAGES).round().astype(int).tolist())
    inputs = np.concatenate(list(batches(images, preprocessing, size, BATCH)))
    with tempfile.TemporaryDirectory() as folder:
        options = ExportOptions(resolution=size, precision=precision)  # type: ignore[arg-type]
        began = time.perf_counter()
        model = api.export(source, options, Path(folder), images=images)
        seconds = time.perf_counter() - began
        sized = source.at(size)
        expected = _in_batches(sized.logits, inputs)
        graph = emulate(model, "fused") if precision != "fp32" else model.path
        answered = _in_batches(GraphSession(graph, optimize=precision == "fp32").run, inputs)
        found = {
            "resolution": list(size),
            "positions": sized.positions,
            "export_seconds": round(seconds, 1),
            "parameters": source.parameter_count(),
            **_compared(answered, expected),
            "kept_float32": len(model.description.kept_float32),
            "operators": _operators(model),
            "builds": _builds(model, Path(folder)),
        }
        if precision == "fp32" and size_kind != "native":
            found["wrong"] = _wrong_resamplings(source, size, inputs[:BATCH], expected[:BATCH])
        return found


def _in_batches(run: Any, inputs: NDArray[np.float32]) -> NDArray[np.float32]:
    parts = [run(inputs[start : start + BATCH]) for start in range(0, len(inputs), BATCH)]
    return np.concatenate(parts)


def _compared(answered: NDArray[np.float32], expected: NDArray[np.float32]) -> dict[str, Any]:
    spread = float(expected.std())
    norms = np.linalg.norm(answered, axis=-1) * np.linalg.norm(expected, axis=-1)
    classes = np.bincount(expected.argmax(-1)) / len(expected)
    classes = classes[classes > 0]
    return {
        "images": len(expected),
        "max_error": float(np.abs(answered - expected).max() / spread),
        "cosine": float(((answered * expected).sum(-1) / norms).min()),
        "agreement": float((answered.argmax(-1) == expected.argmax(-1)).mean()),
        "entropy_bits": float(-(classes * np.log2(classes)).sum()),
    }


def _operators(model: OnnxModel) -> list[str]:
    """Of those that a graph of one size must not hold, the ones it does."""
    import onnx_ir as ir

    held = {node.op_type for node in ir.load(model.path).graph}
    return sorted(held & {"Resize", "If", "Loop", "Scan", "Col2Im", "Range", "NonZero"})


def _builds(model: OnnxModel, folder: Path) -> dict[str, Any]:
    options = BuildOptions(targets=parse_targets(",".join(TARGETS)), batch=(1, 2, 4))
    began = time.perf_counter()
    try:
        engine = registry.get("tensorrt-rtx").build(model, options, folder / "out" / "x.engine")
    except VitDeployError as error:
        return {"error": str(error)}
    return {
        "targets": list(TARGETS),
        "seconds": round(time.perf_counter() - began, 1),
        "megabytes": round(engine.size_bytes / 1e6, 1),
    }


def _wrong_resamplings(
    source: SourceModel, size: tuple[int, int], inputs: NDArray, expected: NDArray
) -> dict[str, float]:
    """How far answers would be off, in deviations, had positions been resampled wrongly.

    Nothing where the architecture resamples nothing.
    """
    spread = float(expected.std())
    found = {}
    for name in ("nearest", "corners", "transposed"):
        with _resampling(name) as calls:
            sized = source.at(size)
        if calls:
            found[name] = float(np.abs(sized.logits(inputs) - expected).max() / spread)
    if size[0] == size[1]:
        found.pop("transposed", None)
    return found


@contextmanager
def _resampling(how: str) -> Iterator[list[Any]]:
    calls: list[Any] = []
    true = functional.interpolate

    def wrong(image: torch.Tensor, size: Any = None, **options: Any) -> torch.Tensor:
        if image.ndim != 4:
            return true(image, size=size, **options)
        calls.append(size)
        if how == "nearest":
            return true(image, size=size, mode="nearest")
        if how == "corners":
            return true(image, size=size, mode="bicubic", align_corners=True)
        turned = true(image, size=(size[1], size[0]), **options)
        return turned.reshape(*turned.shape[:2], *size)

    with mock.patch.object(functional, "interpolate", wrong):
        yield calls


if __name__ == "__main__":
    torch.set_num_threads(2)
    main(*sys.argv[1:])
