"""`vitdeploy selftest`."""

from __future__ import annotations

import click

from vitdeploy.cli import console
from vitdeploy.cli.options import json_option


@click.command()
@click.option(
    "--backend",
    default="auto",
    show_default=True,
    help="openvino, onnxruntime, tensorrt or tensorrt-rtx.",
)
@click.option("--target", help="Build for these, as in sm86,sm89 (default: this machine).")
@json_option
def command(backend: str, target: str | None, as_json: bool) -> None:
    """Build a tiny ViT, compare the engine with ONNX Runtime and time it.

    Needs neither a model nor PyTorch. What it prints is made to be pasted into
    a bug report. Without a GPU TensorRT-RTX only builds, and it says so.

    \b
      vitdeploy selftest --backend tensorrt
    """
    from vitdeploy import api
    from vitdeploy.artifacts.files import plain
    from vitdeploy.errors import GateFailedError
    from vitdeploy.target import parse_targets

    targets = None if target is None else parse_targets(target)
    sink = console.progress()
    chosen, why = api.choose_backend(backend, targets)
    sink.note(f"backend: {chosen.name} ({why})")
    found = api.selftest(chosen, targets, progress=sink)
    console.emit(as_json, {**plain(found), "passed": found.passed}, found.block())
    if not found.passed:
        raise GateFailedError(
            f"{found.backend} answers otherwise than ONNX Runtime",
            hint="report the lines above; until then do not use this backend here",
        )
