"""From another exporter's file to judged engines, as people run the commands."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import sysconfig
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import environment, require_one_error, run

from vitdeploy import adoption, api
from vitdeploy.artifacts.onnx_model import read_onnx_model
from vitdeploy.backends import registry
from vitdeploy.backends.base import BuildOptions
from vitdeploy.backends.onnxruntime_ import GraphSession
from vitdeploy.benchmarks.accuracy.evaluation import logits_of
from vitdeploy.demo import assets
from vitdeploy.errors import InputError
from vitdeploy.images import batches, scan
from vitdeploy.models.load import ModelRequest
from vitdeploy.models.source import SourceModel
from vitdeploy.target import parse_targets

COUNT = 400
ABSENT = ("functorch", "peft", "timm", "torch", "torchgen", "torchvision", "vit_pytorch")


@pytest.fixture(scope="module")
def source() -> SourceModel:
    return api.load_model(ModelRequest(name=str(assets.CHECKPOINT)))


@pytest.fixture(scope="module")
def place(source: SourceModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model as TorchScript exports it for one image, and the names of its classes."""
    folder = tmp_path_factory.mktemp("foreign")
    module = source.at(source.resolution).module.eval()
    shape = (1, source.description.in_chans, *source.resolution)
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module, (torch.zeros(shape),), folder / "vit.onnx", dynamo=False, opset_version=14
        )
    (folder / "labels.txt").write_text("\n".join(source.description.labels) + "\n")
    return folder


def preprocessing(source: SourceModel) -> list[str]:
    own = source.description.preprocessing
    return [
        *("--mean", ",".join(map(str, own.mean)), "--std", ",".join(map(str, own.std))),
        *("--interpolation", own.interpolation, "--crop-pct", str(own.crop_pct)),
        *("--crop-mode", own.crop_mode),
    ]


@pytest.fixture(scope="module")
def adopted(place: Path, source: SourceModel, cache: Path) -> dict[str, Any]:
    command = ["adopt", "vit.onnx", "--labels", "labels.txt", "-o", "out", "--json"]
    done = run([*command, *preprocessing(source)], place, cache)
    assert done.code == 0, done.errors
    return json.loads(done.output)


@pytest.fixture(scope="module")
def judged_on(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Evaluation images, as many of each class."""
    folder = tmp_path_factory.mktemp("images")
    for one in sorted(assets.images_folder("evaluation").iterdir()):
        (folder / one.name).mkdir()
        for path in sorted(one.iterdir())[: COUNT // 10]:
            (folder / one.name / path.name).write_bytes(path.read_bytes())
    return folder


def test_what_was_recognised_is_said(place: Path, source: SourceModel, cache: Path) -> None:
    done = run(["adopt", "vit.onnx", "-o", "said", *preprocessing(source)], place, cache)
    assert done.code == 0, done.errors
    depth = len(source.module.blocks)  # type: ignore[arg-type]
    said = (
        f"recognised: {2 * depth + 1} LayerNorm, {depth} GELU, {4 * depth + 1} Linear, "
        f"{depth} attention"
    )
    assert said in done.output
    assert "pooling: /ReduceMean" in done.output
    assert "not recognised: nothing" in done.output
    assert "its fixed batch opened" in done.output
    assert "it equals vit.onnx on 8 noise images at batch 1, 2 and 5" in done.output
    assert "next: vitdeploy build-engine said/vit_128x128_fp32-" in done.output


def test_the_copy_is_the_pytorch_model(
    place: Path, source: SourceModel, adopted: dict[str, Any], judged_on: Path
) -> None:
    model = read_onnx_model(place / adopted["path"])
    assert adopted["max_error"] <= 1e-5
    assert model.description.source.labels == source.description.labels
    assert model.description.source.preprocessing == source.description.preprocessing
    images = scan(judged_on).take(range(0, COUNT, 50))
    own = model.description
    answered = logits_of(GraphSession(model.path), images, own.source.preprocessing, own.resolution)
    (batch,) = batches(images, own.source.preprocessing, own.resolution, len(images))
    expected = source.logits(batch)
    assert abs(answered - expected).max() <= 1e-4 * expected.std()


def test_int8_of_it_keeps_the_accuracy(
    place: Path, adopted: dict[str, Any], judged_on: Path, cache: Path
) -> None:
    build = ["build-engine", adopted["path"], "--int8", "--calib", "demo", "--calib-images", "128"]
    built = run([*build, "--backend", "onnxruntime", "-o", "out", "--json"], place, cache)
    assert built.code == 0, built.errors
    engine = json.loads(built.output)["path"]
    judge = ["evaluate", engine, "--data", str(judged_on), "--json", "--max-drop", "3"]
    done = run([*judge, "--model", adopted["path"]], place, cache)
    assert done.code == 0, done.errors
    result = json.loads(done.output)
    assert result["source_label"] == "ONNX Runtime fp32, the adopted graph"
    assert result["comparison"]["agreement"] >= 0.985
    assert result["comparison"]["source_top1"] > 0.85, "labels and preprocessing are the model's"
    refused = run([*judge, "--model", adopted["path"], "--pretrained"], place, cache)
    require_one_error(refused, 2, "is a graph: leave --pretrained out")
    untimed = run(["benchmark", engine, "--model", adopted["path"]], place, cache)
    require_one_error(untimed, 2, "no PyTorch model to time it against", hint="--no-source")


def test_another_graph_is_no_baseline(
    place: Path, adopted: dict[str, Any], judged_on: Path
) -> None:
    demo, own = read_onnx_model(assets.GRAPH), read_onnx_model(place / adopted["path"])
    with pytest.raises(InputError, match="was not made from"):
        adoption.baseline_from_graph(own, demo.description, scan(judged_on))


@pytest.mark.parametrize("precision", [["--fp16"], ["--int8", "--calib-images", "32"]])
def test_tensorrt_rtx_takes_it(
    precision: list[str], place: Path, adopted: dict[str, Any], cache: Path
) -> None:
    build = ["build-engine", adopted["path"], *precision, "--calib", "demo", "--target"]
    done = run([*build, "sm86,sm89", "-o", "rtx", "--json"], place, cache)
    assert done.code == 0, done.errors
    record = json.loads(done.output)
    assert record["backend"] == "tensorrt-rtx"
    assert record["precision"].endswith("fp16")


def test_the_float_graph_builds_everywhere(place: Path, adopted: dict[str, Any]) -> None:
    model = read_onnx_model(place / adopted["path"])
    for name, targets in (("openvino", "cpu"), ("tensorrt-rtx", "sm89")):
        options = BuildOptions(targets=parse_targets(targets))
        engine = api.build_engine(model, registry.get(name), place / "engines", options)
        assert engine.manifest.model == model.description


@pytest.fixture
def without_torch(tmp_path: Path) -> Path:
    """The installed packages but for PyTorch and what stands on it."""
    folder = tmp_path / "packages"
    folder.mkdir()
    for entry in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if entry.name.split("-")[0].split(".")[0] not in ABSENT and entry.suffix != ".pth":
            (folder / entry.name).symlink_to(entry)
    return folder


def test_neither_adopting_nor_a_preprocessor_file_needs_pytorch(
    place: Path, source: SourceModel, without_torch: Path, cache: Path, tmp_path: Path
) -> None:
    height, width = source.resolution
    own = source.description.preprocessing
    (tmp_path / "vit.onnx").write_bytes((place / "vit.onnx").read_bytes())
    processor = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "do_rescale": True,
        "do_normalize": True,
        "rescale_factor": 1 / 255,
        "resample": 3,
        "size": {"height": height, "width": width},
        "image_mean": own.mean,
        "image_std": own.std,
    }
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(processor))
    settings = environment(cache)
    settings["PYTHONPATH"] = os.pathsep.join([settings["PYTHONPATH"], str(without_torch)])
    command = [sys.executable, "-S", "-m", "vitdeploy", "adopt", "vit.onnx", "-o", "out", "--json"]
    done = subprocess.run(
        command, cwd=tmp_path, env=settings, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "squash" in json.loads(done.stdout)["preprocessing"]
    probe = [sys.executable, "-S", "-c", "import torch"]
    absent = subprocess.run(probe, cwd=tmp_path, env=settings, capture_output=True, check=False)
    assert b"No module named 'torch'" in absent.stderr
