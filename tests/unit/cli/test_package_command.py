"""`vitdeploy package` refuses what cannot be packed before it quantizes or loads anything."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from PIL import Image

from vitdeploy import api
from vitdeploy.artifacts.onnx_model import read_onnx_model, with_description
from vitdeploy.cli.package import command
from vitdeploy.demo import assets
from vitdeploy.errors import InputError
from vitdeploy.graph import files

GRAPH = str(assets.GRAPH)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Twenty images of two of the demo's classes; the working folder is beside them."""
    labels = read_onnx_model(assets.GRAPH).description.source.labels[:2]
    for number in range(20):
        place = tmp_path / "val" / labels[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (16, 16), (number, 0, 0)).save(place / f"{number}.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "val"


@pytest.fixture(autouse=True)
def nothing_heavy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs are not quantized, and the source is not loaded."""

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("this takes minutes")

    for name in ("with_precision", "load_model", "baseline_from_source"):
        monkeypatch.setattr(api, name, never)


def of_other_size(data: Path) -> list[str]:
    model = read_onnx_model(assets.GRAPH)
    graph = files.load(model)
    files.save(graph, with_description(model, resolution=(224, 224)), data.parent / "224.onnx")
    return ["224.onnx"]


def truncated(data: Path) -> list[str]:
    broken = sorted(data.rglob("*.png"))[3]
    broken.write_bytes(broken.read_bytes()[:50])
    return ["--model", "demo"]


def same_name(data: Path) -> list[str]:
    shutil.copyfile(GRAPH, data.parent / assets.GRAPH.name)
    return [assets.GRAPH.name, "--model", "demo"]


REFUSED: dict[str, Callable[[Path], list[str]]] = {
    "cannot be read": truncated,
    "224.onnx has other resolution": of_other_size,
    "same name": same_name,
    "the reference outputs lack 20 of 20": lambda data: [
        "--reference", str(assets.reference_path(assets.RESOLUTION))],
    "made with other resolution": lambda data: [
        "--reference", str(assets.reference_path(assets.NATIVE))],
    "reference file no.npz does not exist": lambda data: ["--reference", "no.npz"],
    "checkpoint no.safetensors does not exist": lambda data: ["--model", "no.safetensors"],
    "no model was named": lambda data: [],
}  # fmt: skip


@pytest.mark.parametrize("said", REFUSED)
def test_it_is_refused_before_the_work(said: str, data: Path) -> None:
    more = REFUSED[said](data)
    arguments = [GRAPH, *more, "--int8", "--calib", "val", "--data", "val"]
    done = CliRunner().invoke(command, arguments)
    assert isinstance(done.exception, InputError), done.exception
    assert said in str(done.exception)
    assert done.exception.hint
    assert not (data.parent / "kit.zip").exists()


def test_what_can_be_packed_reaches_the_work(data: Path) -> None:
    arguments = [GRAPH, "--int8", "--calib", "demo", "--data", "val", "--model", "demo"]
    assert "this takes minutes" in str(CliRunner().invoke(command, arguments).exception)


def test_so_does_build_engine_of_the_images_for_max_drop(data: Path) -> None:
    from vitdeploy.cli.build_engine import command as build_engine

    truncated(data)
    arguments = [GRAPH, "--int8", "--calib", "demo", "--max-drop", "1", "--eval", "val"]
    done = CliRunner().invoke(build_engine, arguments)
    assert isinstance(done.exception, InputError), done.exception
    assert "cannot be read" in str(done.exception)


def test_calibration_images_that_nothing_is_calibrated_with(data: Path) -> None:
    done = CliRunner().invoke(command, [GRAPH, "--calib", "demo", "--data", "val", "--fp16"])
    assert done.exit_code == 2
    assert "--calib goes with --int8 or --fp8" in done.output
