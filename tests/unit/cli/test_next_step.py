"""The command that is proposed next can be pasted, and names the very model of the engine."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vitdeploy.artifacts.onnx_model import read_onnx_model
from vitdeploy.artifacts.source import SourceDescription
from vitdeploy.backends import registry
from vitdeploy.backends.base import Availability
from vitdeploy.cli import cli
from vitdeploy.cli.next_step import building_of, command_line, evaluation_of
from vitdeploy.demo import assets
from vitdeploy.workspace import open_workspace

GRAPH = Path("vit.onnx")


@pytest.fixture
def demo() -> SourceDescription:
    return read_onnx_model(assets.GRAPH).description.source


def proposed(
    folder: Path, source: SourceDescription, *, named: bool = True, images: Path | None = None
) -> str:
    manifest = SimpleNamespace(backend="onnxruntime", model=SimpleNamespace(source=source))
    engine: Any = SimpleNamespace(path=Path("my vit.engine"), manifest=manifest)
    place = open_workspace(folder, lambda _: None)
    return evaluation_of(engine, place, named=named, graph=GRAPH, images=images)


def test_what_the_recipe_says_is_left_out(tmp_path: Path, demo: SourceDescription) -> None:
    recipe = '[model]\nname = "demo"\n'
    (tmp_path / "vitdeploy.toml").write_text(recipe + '[data]\nevaluation = "demo"\n')
    assert proposed(tmp_path, demo, named=False) == "next: vitdeploy evaluate"
    (tmp_path / "vitdeploy.toml").write_text(recipe)
    assert proposed(tmp_path, demo, named=False) == "next: vitdeploy evaluate --data demo"


def test_what_is_known_without_one(tmp_path: Path, demo: SourceDescription) -> None:
    start = "next: vitdeploy evaluate 'my vit.engine' --model"
    other = replace(demo, weights_digest="0" * 64)
    assert proposed(tmp_path, demo) == f"{start} demo --data demo"
    known: dict[str, SourceDescription] = {
        "vit.onnx": replace(other, library="onnx"),
        "vit_tiny_patch16_224 --pretrained": replace(
            other,
            architecture="vit_tiny_patch16_224",
            origin="pretrained weights",
            model_kwargs={},
        ),
    }
    for words, source in known.items():
        assert proposed(tmp_path, source, images=Path("val")) == f"{start} {words} --data val"


def test_a_checkpoint_here_is_known_by_its_weights(
    tmp_path: Path, demo: SourceDescription, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen as if the demo were no demo."""
    (tmp_path / "a.safetensors").write_bytes(b"no checkpoint")
    (tmp_path / "mine.safetensors").write_bytes(assets.CHECKPOINT.read_bytes())
    monkeypatch.setattr("vitdeploy.cli.next_step._is_demo", lambda source: False)
    line = proposed(tmp_path, demo, images=Path("val"))
    assert line.endswith(f"--model {tmp_path / 'mine.safetensors'} --data val")
    retrained = replace(demo, weights_digest="0" * 64)
    assert "--model MODEL" in proposed(tmp_path, retrained, images=Path("val"))


def test_placeholders_are_explained(tmp_path: Path, demo: SourceDescription) -> None:
    line = proposed(tmp_path, replace(demo, weights_digest="0" * 64))
    assert "--model MODEL --data FOLDER (MODEL: what it was exported from; FOLDER: " in line


def test_an_engine_for_elsewhere_is_judged_there(
    tmp_path: Path, demo: SourceDescription, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = Availability(True, "1", can_execute=False)
    monkeypatch.setattr(registry, "probe", lambda name: away)
    assert proposed(tmp_path, demo).startswith("next, on the device: vitdeploy evaluate ")


@pytest.mark.parametrize(
    "line",
    [
        command_line("evaluate", "my vit.engine", "--model", "demo", "--data", "demo"),
        command_line("export", Path("it's.safetensors")),
        command_line("build-engine", "vit.onnx", "--int8", "--calib", "a.json"),
    ],
)
def test_a_line_is_one_that_the_command_takes(line: str) -> None:
    program, name, *words = shlex.split(line)
    assert program == "vitdeploy"
    command = cli.get_command(None, name)  # pyright: ignore[reportArgumentType]
    assert command is not None
    assert command.make_context(name, words).params


@pytest.mark.parametrize(
    ("precision", "calibrated", "images", "said"),
    [
        ("fp32", True, None, " --int8"),
        ("fp32", False, Path("my images"), " --int8 --calib 'my images'"),
        ("fp32", False, None, " (INT8: with --int8 --calib FOLDER)"),
        ("fp16", True, None, ""),
    ],
)
def test_what_is_built_of_a_graph(
    precision: str, calibrated: bool, images: Path | None, said: str
) -> None:
    graph: Any = SimpleNamespace(path=GRAPH, description=SimpleNamespace(precision=precision))
    found = building_of(graph, calibrated=calibrated, images=images)
    assert found == f"next: vitdeploy build-engine vit.onnx{said}"
