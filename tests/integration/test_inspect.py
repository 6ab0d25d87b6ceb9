"""`vitdeploy inspect` on graphs, engines and what is neither, without PyTorch."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import pytest

from vitdeploy.artifacts.engine import Engine, EngineManifest, write_manifest
from vitdeploy.artifacts.onnx_model import METADATA_KEY, read_onnx_model, write_sidecar
from vitdeploy.demo import assets

ROOT = Path(__file__).parents[2]
RECIPE = '[model]\nname = "demo"\n'


@dataclass(frozen=True)
class Outcome:
    code: int
    output: str
    errors: str


def inspect(folder: Path, *arguments: str, without: str = "torch torchvision timm") -> Outcome:
    """Run the command where importing these packages fails, and every warning is shown."""
    code = f"""
        import sys

        class Block:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] in {without.split()!r}:
                    raise ModuleNotFoundError(f"{{name}} is blocked here", name=name)

        sys.meta_path.insert(0, Block())
        sys.argv = ["vitdeploy", "inspect", *{list(arguments)!r}]
        from vitdeploy.cli import main
        main()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "default"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Warning" not in done.stderr
    return Outcome(done.returncode, done.stdout, done.stderr)


def record(folder: Path, *arguments: str) -> dict[str, Any]:
    done = inspect(folder, *arguments, "--json")
    assert done.code == 0, done.errors
    return json.loads(done.output)


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """A folder whose recipe names the demo model, with its graph in artifacts/."""
    (tmp_path / "vitdeploy.toml").write_text(RECIPE)
    graph = tmp_path / "artifacts" / "demo.onnx"
    graph.parent.mkdir()
    shutil.copy(assets.GRAPH, graph)
    write_sidecar(read_onnx_model(graph))
    return tmp_path


def test_the_newest_graph_and_its_checkpoint(workplace: Path) -> None:
    done = inspect(workplace, "--positions", "positions.png")
    assert done.code == 0, done.errors
    assert (workplace / "positions.png").read_bytes().startswith(b"\x89PNG")
    assert "demo.onnx (the newest of this model)" in done.errors
    assert "demo.safetensors (from vitdeploy.toml)" in done.errors
    for said in (
        "precision      fp32",
        "resolution     192x192",
        "shorter side to 192, center crop 192x192",
        "10: t-shirt, trouser",
        "verified       against PyTorch",
        "takes          input: float32 batch x 3 x 192 x 192",
        "parameters     1.11 million",
        "GMACs an image at 1x3x192x192",
        "positions      pos_embed: 12x12 of width 128 after 1 prefix token(s)",
        "resampled from pos_embed: 8x8",
        "MatMul",
    ):
        assert said in done.output


def test_json_holds_everything(workplace: Path) -> None:
    found = record(workplace)
    graph = workplace / "artifacts" / "demo.onnx"
    assert found["digest"] == hashlib.sha256(graph.read_bytes()).hexdigest()
    assert found["description"]["source"]["name"] == "demo"
    assert found["graph"]["opsets"] == {"ai.onnx": found["description"]["opset"]}
    assert found["graph"]["size_bytes"] == graph.stat().st_size
    nodes = onnx.load(graph).graph.node
    counted = sum(of["nodes"] for of in found["graph"]["operators"].values())
    assert counted == len(nodes)
    assert found["graph"]["operators"]["Softmax"]["nodes"] == 5
    assert found["positions"]["before"]["rows"] == 8
    assert found["positions"]["kept_cosine"] > 0.95


def test_a_graph_of_other_makers(tmp_path: Path) -> None:
    proto = onnx.load(assets.GRAPH)
    kept = [entry for entry in proto.metadata_props if entry.key != METADATA_KEY]
    del proto.metadata_props[:]
    proto.metadata_props.extend(kept)
    onnx.save(proto, tmp_path / "plain.onnx")
    done = inspect(tmp_path, "plain.onnx")
    assert done.code == 0, done.errors
    assert "none: this file was not written by vitdeploy" in done.output
    found = record(tmp_path, "plain.onnx", "--compare", str(assets.GRAPH))
    whole = record(tmp_path, str(assets.GRAPH))
    assert found["description"] is None
    assert found["graph"]["work"] == whole["graph"]["work"]
    assert found["positions"]["kept_cosine"] == pytest.approx(1)


def test_weights_that_are_missing(tmp_path: Path) -> None:
    proto = onnx.load(assets.GRAPH)
    path = tmp_path / "graph.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="graph.onnx.data", size_threshold=0)
    whole = record(tmp_path, "graph.onnx")
    (tmp_path / "graph.onnx.data").unlink()
    found = record(tmp_path, "graph.onnx")
    assert len(whole["digest"]) == 64
    assert whole["graph"]["work"] == record(tmp_path, str(assets.GRAPH))["graph"]["work"]
    assert found["digest"] == ""
    assert found["graph"]["work"] == whole["graph"]["work"]
    assert found["positions"] is None
    assert "pos_embed cannot be read" in found["positions_problem"]
    assert "graph.onnx.data: MISSING" in inspect(tmp_path, "graph.onnx").output
    refused = inspect(tmp_path, "graph.onnx", "--positions", "p.png")
    assert refused.code == 2
    assert "pos_embed cannot be read" in refused.errors


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    path = tmp_path / "demo.engine"
    path.write_bytes(b"engine")
    model = read_onnx_model(assets.GRAPH)
    manifest = EngineManifest(
        backend="tensorrt",
        backend_version="10.3.0",
        model=model.description,
        model_digest=model.digest,
        engine_digest=hashlib.sha256(b"engine").hexdigest(),
        targets=("sm87",),
        device="Orin",
        batch=(1, 4, 8),
        build_seconds=12.5,
        settings={"optimization_level": 3},
        build_log=("a line of the log",),
    )
    write_manifest(Engine(path, manifest))
    return path


def test_an_engine_shows_its_manifest(engine: Path) -> None:
    done = inspect(engine.parent, engine.name, without="torch timm onnxruntime tensorrt")
    assert done.code == 0, done.errors
    for said in (
        "tensorrt 10.3.0",
        "sm87",
        "Orin in 12.5 s",
        "1 to 8, best 4",
        "optimization_level=3",
        "a line of the log",
        "source         demo",
        "shorter side to 192",
    ):
        assert said in done.output
    assert record(engine.parent, engine.name)["batch"] == [1, 4, 8]


@pytest.mark.parametrize(
    ("arguments", "said", "hint"),
    [
        (["none.onnx"], "none.onnx does not exist", "did you mean"),
        (["text.onnx"], "text.onnx is not an ONNX graph", "vitdeploy export"),
        (["empty.onnx"], "empty.onnx is not an ONNX graph", "vitdeploy export"),
        ([], "no graph", "vitdeploy export"),
        ([str(assets.GRAPH), "--res", "224"], "takes 192x192 only", "--res"),
        ([str(assets.GRAPH), "--positions", "p.txt"], "p.txt is no picture", ".png"),
        ([str(assets.GRAPH), "--compare", "text.onnx"], "text.onnx is not an ONNX graph", ""),
        ([str(assets.GRAPH), "--compare", "a.pth"], "neither a graph nor a safetensors", ".onnx"),
        ([str(assets.GRAPH), "--compare", "a.safetensors"], "a.safetensors does not exist", ""),
        (["a.engine", "--res", "224"], "are for .onnx files", "--help"),
        (["a.engine"], "a.engine does not exist", ""),
    ],
)
def test_what_cannot_be_shown(arguments: list[str], said: str, hint: str, tmp_path: Path) -> None:
    (tmp_path / "text.onnx").write_bytes(b"hello")
    (tmp_path / "empty.onnx").write_bytes(b"")
    before = sorted(tmp_path.iterdir())
    done = inspect(tmp_path, *arguments)
    assert done.code == 2, done.errors
    assert done.errors.count("error: ") == 1
    assert said in done.errors
    (hinted,) = [line for line in done.errors.splitlines() if line.startswith(" hint: ")]
    assert hint in hinted
    assert "Traceback" not in done.errors
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("missing", "arguments"),
    [
        ("matplotlib", ["--positions", "p.png"]),
        ("safetensors", ["--compare", str(assets.CHECKPOINT)]),
    ],
)
def test_a_missing_package_is_named(missing: str, arguments: list[str], tmp_path: Path) -> None:
    done = inspect(tmp_path, str(assets.GRAPH), *arguments, without=missing)
    assert done.code == 3
    assert f"{missing}, which is not installed" in done.errors
    assert "pip install" in done.errors
