"""A device runs what it must without PyTorch, timm and what came with them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vitdeploy.demo import assets

ROOT = Path(__file__).parents[2]
BLOCKED = ("torch", "torchvision", "timm", "transformers", "accelerate", "safetensors")
REFERENCE = assets.reference_path(assets.RESOLUTION)


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Modules that fail stand before the real ones, for child processes too."""
    folder = tmp_path_factory.mktemp("blocked")
    for name in BLOCKED:
        (folder / f"{name}.py").write_text(f"raise ImportError('{name} is blocked here')\n")
    path = os.pathsep.join((str(folder), str(ROOT)))
    cache = str(tmp_path_factory.mktemp("cache"))
    return {**os.environ, "PYTHONPATH": path, "XDG_CACHE_HOME": cache, "OMP_NUM_THREADS": "1"}


def vitdeploy(
    arguments: list[str], folder: Path, device: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "vitdeploy", *arguments],
        cwd=folder,
        env=device,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, device: dict[str, str]) -> Path:
    folder = tmp_path_factory.mktemp("engine")
    arguments = ["build-engine", str(assets.GRAPH), "--backend", "onnxruntime", "-o", ".", "--json"]
    done = vitdeploy(arguments, folder, device)
    assert done.returncode == 0, done.stderr
    return folder / json.loads(done.stdout)["path"]


def test_the_block_blocks(device: dict[str, str], tmp_path: Path) -> None:
    for name in BLOCKED:
        command = [sys.executable, "-c", f"import {name}"]
        done = subprocess.run(command, env=device, capture_output=True, text=True, check=False)
        assert f"{name} is blocked here" in done.stderr


COMMANDS = {
    "predict": ["predict", "ENGINE", "IMAGES/bag"],
    "predict a graph": ["predict", str(assets.GRAPH), "IMAGES/bag", "--json"],
    "evaluate": [
        *("evaluate", "ENGINE", "--data", "IMAGES", "--reference", str(REFERENCE)),
        *("--max-drop", "5"),
    ],
    "benchmark": [
        *("benchmark", "ENGINE", "--no-source", "--batch", "1", "--seconds", "1"),
        "--accept-unstable",
    ],
    "doctor": ["doctor"],
    "inspect": ["inspect", "ENGINE"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_of_a_device(
    name: str, engine: Path, device: dict[str, str], tmp_path: Path
) -> None:
    few = tmp_path / "few"
    for place in sorted(assets.images_folder("evaluation").iterdir()):
        (few / place.name).mkdir(parents=True)
        for path in sorted(place.iterdir())[:12]:
            (few / place.name / path.name).write_bytes(path.read_bytes())
    given = [
        part.replace("ENGINE", str(engine)).replace("IMAGES", str(few)) for part in COMMANDS[name]
    ]
    done = vitdeploy(given, tmp_path, device)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert "blocked here" not in done.stderr


def test_every_module_of_a_device_can_be_imported(device: dict[str, str]) -> None:
    """All but those that hold or train the source model."""
    source_side = ("vitdeploy.models", "vitdeploy.training", "vitdeploy.export", "vitdeploy.demo")
    names = []
    for path in sorted((ROOT / "vitdeploy").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(part for part in parts if part != "__init__")
        if "kit_files" in parts or name.startswith(source_side) or name == "vitdeploy.__main__":
            continue
        if not parts[-1].startswith(("torch_", "pycuda_")):
            names.append(name)
    assert len(names) > 100
    code = f"import importlib\nfor name in {names!r}:\n    importlib.import_module(name)\n"
    done = subprocess.run(
        [sys.executable, "-c", code], env=device, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
