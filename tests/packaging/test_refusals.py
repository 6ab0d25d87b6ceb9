"""What cannot be is refused before the libraries that it would have used are loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vitdeploy.demo import assets

ROOT = Path(__file__).parents[2]
LIBRARIES = {
    *("torch", "torchvision", "timm", "transformers", "onnxruntime", "openvino"),
    *("tensorrt", "tensorrt_rtx", "onnx_ir", "scipy", "matplotlib", "jinja2"),
}
GRAPH = str(assets.GRAPH)
TINY = ["vit_tiny_patch16_224", "--random-weights"]
CODE = """
import sys
from vitdeploy import cli
try:
    cli.main()
finally:
    print(*sys.modules, file=sys.stdout)
"""
REFUSALS = {
    "missing graph to predict with": (["predict", "none.onnx", "a.png"], "none.onnx"),
    "missing engine to predict with": (["predict", "none.engine", "a.png"], "none.engine"),
    "no path to predict with": (["predict", "", "a.png"], "is empty"),
    "missing image": (["predict", GRAPH, "none.png"], "none.png"),
    "missing engine to judge": (["evaluate", "none.engine"], "none.engine"),
    "missing source to judge by": (
        ["evaluate", GRAPH, "--data", "IMAGES", "--model", "none.safetensors"],
        "none.safetensors",
    ),
    "missing answers to judge by": (
        ["evaluate", GRAPH, "--data", "IMAGES", "--reference", "none.npz"],
        "none.npz",
    ),
    "missing graph to build": (["build-engine", "none.onnx", "--int8"], "none.onnx"),
    "unknown backend": (["build-engine", GRAPH, "--backend", "foo"], "foo"),
    "unknown target": (["build-engine", GRAPH, "--target", "sm999"], "sm999"),
    "missing checkpoint": (["export", "none.safetensors"], "none.safetensors"),
    "missing weights": (["export", TINY[0], "--checkpoint", "none.pth"], "none.pth"),
    "missing file of code": (["export", "none.py:make", "--random-weights"], "none.py"),
    "no weights": (["export", TINY[0]], "no weights"),
    "opset": (["export", *TINY, "--opset", "3"], "opset 3"),
    "name": (["export", *TINY, "--name", "a/b"], "a/b"),
    "missing images to verify on": (["export", *TINY, "--data", "none"], "none"),
    "missing folder to draw from": (["calibrate", "none"], "none"),
    "missing graph to plan for": (["plan", "none.onnx"], "none.onnx"),
    "backend to plan for": (["plan", GRAPH, "--backend", "foo"], "foo"),
    "missing graph to pack": (["package", "none.onnx"], "none.onnx"),
    "missing images to pack": (["package", GRAPH, "--data", "none"], "image folder none"),
    "a kit in a file's place": (["package", GRAPH, "--data", "none", "-o", GRAPH], "exists"),
    "missing engine to time": (["benchmark", "none.engine"], "none.engine"),
    "missing engine to report on": (["report", "none.engine"], "none.engine"),
    "missing report": (["report", "none.json", "none.json"], "none.json"),
    "missing kit": (["run-kit", "none"], "none"),
    "missing graph to adopt": (["adopt", "none.onnx"], "none.onnx"),
    "backend to test": (["selftest", "--backend", "foo"], "foo"),
    "missing checkpoint to train": (
        ["train", "--model", "none.safetensors", "--data", "none", "-o", "a.safetensors"],
        "none.safetensors",
    ),
    "missing images to train on": (
        ["train", "--model", *TINY, "--data", "none", "-o", "a.safetensors"],
        "image folder none",
    ),
}


def loaded_by(arguments: list[str], folder: Path) -> tuple[int, str, set[str]]:
    """Exit code, standard error, and the libraries loaded."""
    done = subprocess.run(
        [sys.executable, "-c", CODE, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stderr, LIBRARIES & {*done.stdout.split()}


@pytest.mark.parametrize(("arguments", "said"), REFUSALS.values(), ids=REFUSALS)
def test_a_refusal_loads_no_library(arguments: list[str], said: str, tmp_path: Path) -> None:
    images = str(assets.images_folder("evaluation"))
    arguments = [images if each == "IMAGES" else each for each in arguments]
    code, errors, libraries = loaded_by(arguments, tmp_path)
    assert code == 2, errors
    assert said in errors
    assert not libraries


def test_what_is_not_refused_loads_them(tmp_path: Path) -> None:
    """Else the tests above would pass whatever is loaded."""
    code, errors, libraries = loaded_by(["plan", GRAPH, "--int8", "--target", "cpu"], tmp_path)
    assert code == 0, errors
    assert {"onnx_ir", "scipy"} <= libraries
