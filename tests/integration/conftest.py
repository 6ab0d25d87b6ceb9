"""What several tests of the command line work on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import ENOUGH, GRAPH, run

from vitdeploy.demo import assets


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    folder = tmp_path_factory.mktemp("engine")
    built = run(
        ["build-engine", GRAPH, "--backend", "onnxruntime", "-o", ".", "--json"], folder, cache
    )
    assert built.code == 0, built.errors
    return folder / json.loads(built.output)["path"]


@pytest.fixture(scope="session")
def training_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    for name, content in ENOUGH.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder / "images"


@pytest.fixture
def few(tmp_path: Path) -> Path:
    """Two of the demo's evaluation images of each class."""
    return _of_each_class(2, tmp_path / "few")


@pytest.fixture(scope="session")
def thousand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Half of the demo's evaluation images: enough for a verdict at half a point."""
    return _of_each_class(100, tmp_path_factory.mktemp("thousand") / "images")


def _of_each_class(count: int, folder: Path) -> Path:
    for place in sorted(assets.images_folder("evaluation").iterdir()):
        (folder / place.name).mkdir(parents=True)
        for path in sorted(place.iterdir())[:count]:
            (folder / place.name / path.name).write_bytes(path.read_bytes())
    return folder
