"""How long an export takes beside a bare `torch.onnx.export` of the same module.

    python tools/measure_export.py [MODEL] [RESOLUTION] [ROUNDS]

Both in turns in one process; verification is reported apart. The goal for
ViT-B/16 at 384 is a ratio of at most 1.3.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch

from vitdeploy.export import export as stage
from vitdeploy.export.export import ExportOptions, export
from vitdeploy.models.load import ModelRequest, seeded_random_source
from vitdeploy.models.source import SourceModel


def bare(source: SourceModel, folder: Path) -> float:
    """Seconds of PyTorch's exporter alone, batch dynamic, written to a file."""
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            source.module,
            (torch.zeros(2, 3, *source.resolution),),
            dynamo=True,
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            verbose=False,
        )
        assert program is not None
        program.save(str(folder / "bare.onnx"))
    return time.perf_counter() - started


def ours(source: SourceModel, folder: Path) -> tuple[float, float]:
    """Seconds of the export without and of its verification."""
    spent = 0.0
    true = stage._verified

    def timed(*arguments: object, **options: object) -> object:
        nonlocal spent
        began = time.perf_counter()
        try:
            return true(*arguments, **options)  # type: ignore[arg-type]
        finally:
            spent += time.perf_counter() - began

    stage._verified = timed  # type: ignore[assignment]
    try:
        started = time.perf_counter()
        export(source, ExportOptions(), folder)
        return time.perf_counter() - started - spent, spent
    finally:
        stage._verified = true


def main(name: str = "vit_base_patch16_224", resolution: str = "384", rounds: str = "3") -> None:
    torch.set_num_threads(2)
    source = seeded_random_source(ModelRequest(name=name, random_weights=True), 0)
    sized = source.at((int(resolution), int(resolution)))
    ratios, verification = [], []
    with tempfile.TemporaryDirectory() as folder:
        bare(sized, Path(folder))  # the first trace imports half of PyTorch
        for _ in range(int(rounds)):
            alone = bare(sized, Path(folder))
            exported, checked = ours(sized, Path(folder))
            ratios.append(exported / alone)
            verification.append(checked)
            print(f"bare {alone:.1f} s, export {exported:.1f} s, verification {checked:.1f} s")
    print(
        f"{name} at {resolution}: {statistics.median(ratios):.2f}x a bare export "
        f"({min(ratios):.2f} to {max(ratios):.2f}), verification "
        f"{statistics.median(verification):.1f} s"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
