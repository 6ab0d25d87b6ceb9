"""The cells of one row: exported, compared on 32 images, built.

    python -m tools.export_table.cell KEY FOLDER SIZE:PRECISION ...

Writes each cell into FOLDER as soon as it is known, all precisions of a size
from one trace.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from tools.export_table.rows import ROWS, Row
from tools.export_table.sources import images, lively_source
from vitdeploy import api
from vitdeploy.artifacts.onnx_model import OnnxModel
from vitdeploy.backends import registry
from vitdeploy.backends.base import BuildOptions
from vitdeploy.backends.onnxruntime_ import GraphSession
from vitdeploy.calibration.quantize import Gates, QuantizationOptions
from vitdeploy.demo import assets
from vitdeploy.errors import VitDeployError
from vitdeploy.export.export import ExportOptions
from vitdeploy.export.forecast import tolerance_of
from vitdeploy.export.verify import heard_again
from vitdeploy.graph import files
from vitdeploy.graph.emulation import emulate
from vitdeploy.images import batches, scan
from vitdeploy.models.source import SourceModel
from vitdeploy.preprocessing import Size
from vitdeploy.target import parse_targets

BATCH = 4
CALIBRATION_IMAGES = 64
_ALL = ("sm86", "sm89", "sm120")
TARGETS = {"fp32": _ALL, "fp16": ("sm75", *_ALL), "int8": _ALL, "fp8": ("sm89", "sm120")}
"""What an engine is built for: FP32 products do not exist for SM75, FP8 begins with SM89."""

Found = dict[str, Any]
Run = Callable[[NDArray[np.float32]], NDArray[np.float32]]


def main(key: str, folder: str, *wanted: str) -> None:
    """Write the wanted cells, those of one size one after the other."""
    row = next(row for row in ROWS if row.key == key)
    began = time.perf_counter()
    for cell, found in _cells(row, [entry.split(":") for entry in wanted]):
        size, precision = cell
        now = time.perf_counter()
        content = {
            **asdict(row),
            "size": size,
            "precision": precision,
            **found,
            "seconds": round(now - began, 1),
            "versions": _versions(row),
        }
        began = now
        path = Path(folder) / f"{row.key}--{size}--{precision}.json"
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        partial.replace(path)
        print(f"{path.stem}: {found.get('error') or found['max_error']}", flush=True)


def _versions(row: Row) -> dict[str, str]:
    by_prefix = {"torchvision": "torchvision", "transformers": "transformers"}
    prefix = row.model.partition(":")[0].partition(".")[0]
    library = "vit-pytorch" if prefix == "vit_pytorch" else by_prefix.get(prefix, "timm")
    names = ("torch", library, "onnxruntime", "tensorrt-rtx-cu13")
    return {name: metadata.version(name) for name in names}


def _cells(row: Row, wanted: list[list[str]]) -> Iterator[tuple[list[str], Found]]:
    try:
        source = lively_source(row)
    except VitDeployError as error:
        yield from ((cell, _refusal(error, before_tracing=True)) for cell in wanted)
        return
    for kind in dict.fromkeys(size for size, _ in wanted):
        size = {"native": source.resolution, "other": row.other, "oblong": row.oblong}[kind]
        precisions = [precision for name, precision in wanted if name == kind]
        for precision, found in _at_size(source, kind, size, precisions):
            yield [kind, precision], {"resolution": list(size), **found}


def _at_size(
    source: SourceModel, kind: str, size: Size, precisions: list[str]
) -> Iterator[tuple[str, Found]]:
    with tempfile.TemporaryDirectory() as folder:
        try:
            sized = source.at(size)
        except VitDeployError as error:
            yield from ((one, _refusal(error, before_tracing=True)) for one in precisions)
            return
        size_cells = SizeCells(source, sized, Path(folder))
        for precision in precisions:
            try:
                found = size_cells.judged(precision)
                if precision == "fp32" and kind != "native":
                    found["wrong"] = size_cells.wrong_resamplings()
            except VitDeployError as error:
                found = _refusal(error, before_tracing=False)
            yield precision, found


def _refusal(error: VitDeployError, *, before_tracing: bool) -> Found:
    return {"error": str(error), "hint": error.hint, "before_tracing": before_tracing}


class SizeCells:
    """A source at one size: what both precisions are made from and judged by."""

    def __init__(self, source: SourceModel, sized: SourceModel, folder: Path) -> None:
        self._source = source
        self._sized = sized
        self._folder = folder
        self._images = images()

    @cached_property
    def _inputs(self) -> NDArray[np.float32]:
        preprocessing = self._source.description.preprocessing
        return np.concatenate(
            list(batches(self._images, preprocessing, self._sized.resolution, BATCH))
        )

    @cached_property
    def _expected(self) -> NDArray[np.float32]:
        return _in_batches(self._sized.logits, self._inputs)

    @cached_property
    def _exported(self) -> tuple[OnnxModel, float]:
        """The float32 graph, and the seconds it took."""
        began = time.perf_counter()
        options = ExportOptions(resolution=self._sized.resolution)
        model = api.export(self._source, options, self._folder, images=self._images)
        return model, time.perf_counter() - began

    def judged(self, precision: str) -> Found:
        model, seconds = self._exported
        if precision != "fp32":
            began = time.perf_counter()
            model = api.with_precision(model, self._request(precision), self._folder)
            seconds = time.perf_counter() - began
        answered, runtime_error = self._answered(model, precision)
        description, quantization = model.description, model.description.quantization
        return {
            "positions": self._sized.positions,
            "export_seconds": round(seconds, 1),
            "parameters": self._source.parameter_count(),
            **_compared(answered, self._expected, self._source.description.task),
            "runtime_error": runtime_error,
            "kept_float32": len(description.kept_float32),
            "operators": _operators(model),
            "quantized": len(quantization.quantized) if quantization else 0,
            "builds": _builds(model, TARGETS[precision], self._folder),
        }

    def _answered(
        self, model: OnnxModel, precision: str
    ) -> tuple[NDArray[np.float32], float | None]:
        """The graph's answers, and ONNX Runtime's own error where its rounding was too much."""
        if precision != "fp32":
            session = GraphSession(emulate(model, "fused"), optimize=False)
            return _in_batches(session.run, self._inputs), None
        answered = _in_batches(GraphSession(model.path).run, self._inputs)
        graph = files.runnable(files.load(model))
        return heard_again(graph, self._inputs, answered, self._expected)

    def _request(self, precision: str) -> api.PrecisionRequest:
        """INT8 and FP8 compute the rest in half precision, as on a GPU. What they keep of random
        weights is a figure here, no reason to refuse."""
        if precision == "fp16":
            return api.PrecisionRequest(precision="fp16", images=self._images)
        targets = parse_targets(",".join(TARGETS[precision]))
        return api.PrecisionRequest(
            precision=precision,  # type: ignore[arg-type]
            half=True,
            calibration=scan(assets.images_folder("calibration")),
            calibration_count=CALIBRATION_IMAGES,
            quantization=QuantizationOptions(targets=targets, runtime="tensorrt-rtx"),
            gates=Gates(force=True),
        )

    def wrong_resamplings(self) -> dict[str, float]:
        """How far answers would be off, in deviations, had positions been resampled wrongly.

        Nothing where the architecture resamples nothing.
        """
        size, expected = self._sized.resolution, self._expected[:BATCH]
        spread = float((self._expected - self._expected.mean(0)).std())
        found = {}
        for name in ("nearest", "corners", "transposed"):
            if name == "transposed" and size[0] == size[1]:
                continue
            with _resampling(name) as calls:
                # Some (NaFlexViT) resample while they run.
                wrong = self._source.at(size).logits(self._inputs[:BATCH])
            if calls:
                found[name] = float(np.abs(wrong - expected).max() / spread)
        return found


def _in_batches(run: Run, inputs: NDArray[np.float32]) -> NDArray[np.float32]:
    parts = [run(inputs[start : start + BATCH]) for start in range(0, len(inputs), BATCH)]
    return np.concatenate(parts)


def _compared(answered: NDArray[np.float32], expected: NDArray[np.float32], task: str) -> Found:
    """Deviations and cosines are those between images: a constant that all share hides nothing.

    What agrees is the best class of an image; of features, the image that is nearest to it. It is
    counted where the best leads by more than half precision's noise, as `export` counts it.
    """
    center = expected.mean(0)
    a, b = answered - center, expected - center
    norms = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    of_features = task == "features"
    scores = [_likenesses(each) if of_features else each / b.std() for each in (a, b)]
    choices = [each.argmax(-1) for each in scores]
    best = np.sort(scores[1], axis=-1)[:, -2:]
    decided = best[:, 1] - best[:, 0] > tolerance_of("fp16").margin
    share = np.bincount(choices[1]) / len(expected)
    share = share[share > 0]
    return {
        "images": len(expected),
        "max_error": float(np.abs(answered - expected).max() / b.std()),
        "cosine": float(((a * b).sum(-1) / norms).min()),
        "agreement": float((choices[0] == choices[1])[decided].mean()),
        "decided": int(decided.sum()),
        "entropy_bits": float(-(share * np.log2(share)).sum()),
    }


def _likenesses(features: NDArray[np.float32]) -> NDArray[np.float32]:
    """(n, n) cosines between rows of (n, width); none with itself."""
    unit = features / np.linalg.norm(features, axis=-1, keepdims=True)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -np.inf)
    return cosines


def _operators(model: OnnxModel) -> list[str]:
    """Of those that a graph of one size must not hold, the ones it does."""
    import onnx_ir as ir

    held = {node.op_type for node in ir.load(model.path).graph}
    return sorted(held & {"Resize", "If", "Loop", "Scan", "Col2Im", "Range", "NonZero"})


def _builds(model: OnnxModel, targets: tuple[str, ...], folder: Path) -> Found:
    options = BuildOptions(targets=parse_targets(",".join(targets)), batch=(1, 2, 4))
    began = time.perf_counter()
    try:
        engine = registry.get("tensorrt-rtx").build(model, options, folder / "out" / "x.engine")
    except VitDeployError as error:
        return {"error": str(error)}
    return {
        "targets": list(targets),
        "seconds": round(time.perf_counter() - began, 1),
        "megabytes": round(engine.size_bytes / 1e6, 1),
    }


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
            # What the source does itself is no mistake there.
            if options.get("align_corners"):
                return true(image, size=size, mode="bicubic", antialias=True)
            return true(image, size=size, mode="bicubic", align_corners=True)
        turned = true(image, size=(size[1], size[0]), **options)
        return turned.reshape(*turned.shape[:2], *size)

    with mock.patch.object(functional, "interpolate", wrong):
        yield calls


if __name__ == "__main__":
    main(*sys.argv[1:])
