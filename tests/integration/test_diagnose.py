"""`diagnose` as people call it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx_ir as ir
from command_line import DEMO_TOML, GRAPH, require_one_error, run

from vitdeploy.artifacts.onnx_model import read_onnx_model
from vitdeploy.demo import assets
from vitdeploy.graph import files


def test_a_sound_engine_and_a_graph_with_a_broken_layer(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "vitdeploy.toml").write_text(DEMO_TOML, encoding="utf-8")
    (tmp_path / "artifacts").mkdir()
    graph = tmp_path / "artifacts" / Path(GRAPH).name
    graph.write_bytes(Path(GRAPH).read_bytes())
    built = run(["build-engine", "--backend", "onnxruntime"], tmp_path, cache)
    assert built.code == 0, built.errors
    sound = run(["diagnose", "--json"], tmp_path, cache)
    assert sound.code == 0, sound.errors
    found = json.loads(sound.output)
    assert [stage["before"].split()[0] for stage in found["stages"]] == ["PyTorch", "ONNX"]
    assert found["departing"] is None

    model = read_onnx_model(assets.GRAPH)
    opened = files.load(model)
    node = next(n for n in opened.graph if n.name.endswith("mlp.fc1/MatMul"))
    weight = node.inputs[1]
    assert weight is not None
    assert weight.const_value is not None
    rolled = np.roll(weight.const_value.numpy(), 1, axis=0)
    weight.const_value = ir.Tensor(rolled, name=weight.name)
    broken = files.save(opened, model.description, tmp_path / "broken.onnx")
    outcome = run(["diagnose", str(broken.path)], tmp_path, cache)
    layer = node.name.removesuffix("/MatMul")
    require_one_error(outcome, 10, f"the first layer that does is {layer}", "--keep")
    assert "departs" in outcome.output
