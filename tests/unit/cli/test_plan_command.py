"""`vitdeploy plan`: every node once, with its precision and a reason, and nothing written."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from vitdeploy.artifacts.onnx_model import (
    OnnxModel,
    Quantization,
    read_onnx_model,
    with_description,
)
from vitdeploy.calibration.plan import plan
from vitdeploy.calibration.qdq import insert_qdq
from vitdeploy.cli.console import of_the_work
from vitdeploy.cli.plan import _of_one_kind, command
from vitdeploy.demo import assets
from vitdeploy.errors import CalibrationError, InputError
from vitdeploy.export.precision import to_half
from vitdeploy.graph import files
from vitdeploy.graph.inspection import read_graph

GRAPH = str(assets.GRAPH)
COMPUTING = {"MatMul", "Gemm", "Conv", "Softmax", "LayerNormalization", "Add", "Gelu"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder; what stands in it afterwards was written."""
    place = tmp_path / "work"
    place.mkdir()
    monkeypatch.chdir(place)
    return place


def run(*arguments: str) -> Result:
    done = CliRunner().invoke(command, list(arguments))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def nodes(*arguments: str) -> dict[str, tuple[str, str]]:
    """Precision and reason by name, as JSON has them."""
    record = json.loads(run(*arguments, "--json").stdout)
    found = {node["name"]: (node["precision"], node["reason"]) for node in record["nodes"]}
    assert len(found) == len(record["nodes"]), "a node comes twice"
    return found


def int8_of(folder: Path) -> OnnxModel:
    """With made-up ranges, and a description that tells of them."""
    model = read_onnx_model(assets.GRAPH)
    graph = files.load(model)
    chosen = plan(graph)
    insert_qdq(graph, chosen, dict.fromkeys(chosen.activations, 0.05))
    made = Quantization(
        "mse",
        16,
        ("0" * 64,),
        tuple(chosen.quantized),
        chosen.kept,
        dict.fromkeys(chosen.activations, "mse"),
    )
    description = with_description(model, precision="int8-fp32", quantization=made)
    files.unused_initializers_removed(graph)
    return files.save(graph, description, folder / "int8.onnx")


def test_help_shows_examples_and_options() -> None:
    done = run("--help")
    assert done.exit_code == 0
    for said in ("--int8", "--fp8", "--keep", "--no-attention", "--target", "plan model.onnx"):
        assert said in done.output


def test_every_computing_node_stands_there_once(folder: Path) -> None:
    found = nodes(GRAPH)
    graph = files.load(read_onnx_model(assets.GRAPH))
    chosen = plan(graph)
    assert {name for name, (precision, _) in found.items() if precision == "int8"} == {
        node.name for node in chosen.linear
    }
    assert {name: why for name, (precision, why) in found.items() if precision == "fp32"} == (
        chosen.kept
    )
    assert set(found) == {str(n.name) for n in graph.graph if n.op_type in COMPUTING}
    assert all(reason for _, reason in found.values())
    assert list(folder.iterdir()) == []


def test_people_read_a_paragraph_for_each_reason() -> None:
    kept = "blocks.2.mlp.fc2/MatMul"
    done = run(GRAPH, "--int8", "--keep", kept)
    lines = done.stdout.splitlines()
    found = nodes(GRAPH, "--keep", kept)
    quantized = sum(precision == "int8" for precision, _ in found.values())
    assert f": {quantized} nodes in int8 (" in lines[0]
    assert lines[0].endswith(f" % of the multiply-accumulates), {len(found) - quantized} in fp32")
    heads = [line.split(maxsplit=2) for line in lines if line[2:3] not in ("", " ")][1:]
    counted = {(precision, why): int(count) for precision, count, why in heads}
    assert counted == Counter(found.values())
    assert len(lines) < len(found) / 4
    text = " ".join(line.strip() for line in lines)
    assert "blocks.0-4.mlp.fc1/MatMul, blocks.[0-1,3-4].mlp.fc2/MatMul, head/Gemm" in text
    assert lines[-1].strip() == kept
    assert "backend: " in done.stderr


def test_every_node_has_a_line_where_that_is_asked_for() -> None:
    lines = run(GRAPH, "--all").stdout.splitlines()
    found = nodes(GRAPH)
    assert [tuple(line.split(maxsplit=2)) for line in lines[1:]] == [
        (precision, name, reason) for name, (precision, reason) in found.items()
    ]


def test_the_share_is_what_the_quantized_graph_multiplies_in_int8(tmp_path: Path) -> None:
    """Counted by name before, and by the types of the factors afterwards."""
    planned = json.loads(run(GRAPH, "--json").stdout)["share_of_macs"]
    made = int8_of(tmp_path)
    work = read_graph(made.path).summary.work
    assert planned == pytest.approx(work.by_type["int8"] / work.macs)
    assert json.loads(run(str(made.path), "--json").stdout)["share_of_macs"] == planned
    assert of_the_work(planned) == " (78 % of the multiply-accumulates)"
    little = of_the_work(0.031)
    assert little == " (3 % of the multiply-accumulates, which will hardly be faster)"
    assert of_the_work(None) == ""


def test_numbers_of_stages_and_blocks_stand_together() -> None:
    names = [f"layers.{s}.blocks.{b}.mlp.fc1/MatMul" for s in range(2) for b in range(3)]
    assert _of_one_kind([*names, "layers.1.downsample/MatMul_1", "a/MatMul_12", "x.3"]) == [
        "layers.*.blocks.*.mlp.fc1/MatMul (6)",
        "layers.1.downsample/MatMul",
        "a/MatMul",
        "x.3",
    ]


def test_the_target_decides_attention_and_the_rest() -> None:
    on_gpu = nodes(GRAPH, "--target", "l4", "--backend", "tensorrt")
    products = {name for name in on_gpu if name.endswith(("attn/MatMul", "attn/MatMul_1"))}
    assert products
    assert {on_gpu[name][0] for name in products} == {"int8"}
    assert {precision for precision, _ in on_gpu.values()} == {"int8", "fp16"}
    for more, said in (
        (("--no-attention",), "on request"),
        (("--backend", "tensorrt-rtx"), "weights only"),
    ):
        other = nodes(GRAPH, "--target", "l4", "--backend", "tensorrt", *more)
        assert all(other[name][0] == "fp16" and said in other[name][1] for name in products)
    wide = nodes(GRAPH, "--target", "l4", "--backend", "tensorrt", "--fp32")
    assert {precision for precision, _ in wide.values()} == {"int8", "fp32"}
    on_cpu = nodes(GRAPH, "--target", "cpu")
    assert all("on a CPU it would double the error" in on_cpu[name][1] for name in products)


def test_without_a_target_this_machines_gpu_is_planned_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("vitdeploy.environment.has_nvidia_driver", lambda: True)
    monkeypatch.setattr("vitdeploy.backends.tensorrt.device.compute_capability", lambda: 86)
    found = nodes(GRAPH, "--backend", "tensorrt")
    assert found["blocks.0.attn/MatMul"][0] == "int8"
    with pytest.raises(CalibrationError, match="sm86 cannot compute FP8"):
        run(GRAPH, "--fp8", "--backend", "tensorrt")


@pytest.mark.parametrize(
    ("backend", "more"), [("tensorrt", ()), ("tensorrt-rtx", ("--target", "cpu"))]
)
def test_a_gpu_that_is_neither_here_nor_named_has_no_plan(
    backend: str, more: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitdeploy.environment.has_nvidia_driver", lambda: False)
    with pytest.raises(InputError, match="none here to plan for") as caught:
        run(GRAPH, "--backend", backend, *more)
    assert "--target sm89" in str(caught.value.hint)


def test_fp8_is_planned_for_who_has_it() -> None:
    found = nodes(GRAPH, "--fp8", "--target", "l4,rtx-50", "--backend", "tensorrt-rtx")
    assert {precision for precision, _ in found.values()} == {"fp8", "fp16"}
    with pytest.raises(CalibrationError, match="sm86 cannot compute FP8"):
        run(GRAPH, "--fp8", "--target", "sm89,sm86", "--backend", "tensorrt-rtx")


def test_nodes_can_be_kept() -> None:
    name = "blocks.0.mlp.fc2/MatMul"
    assert nodes(GRAPH)[name][0] == "int8"
    assert nodes(GRAPH, "--keep", name)[name] == ("fp32", "kept in float on request")
    with pytest.raises(CalibrationError, match="no Linear node is called nothing"):
        run(GRAPH, "--keep", "nothing")


def test_a_quantized_graph_shows_what_it_was_made_by(tmp_path: Path) -> None:
    model = int8_of(tmp_path)
    made = model.description.quantization
    assert made is not None
    done = run(str(model.path))
    assert "int8.onnx is quantized: this is the plan it was made by" in done.stderr
    found = nodes(str(model.path))
    assert {name for name, (precision, _) in found.items() if precision == "int8"} == set(
        made.quantized
    )
    assert {name: why for name, (p, why) in found.items() if p == "fp32"} == made.kept
    half = to_half(model, tmp_path)
    assert {p for p, _ in nodes(str(half.path)).values()} == {"int8", "fp16"}


def test_two_kinds_of_numbers_exclude_each_other() -> None:
    done = CliRunner().invoke(command, [GRAPH, "--int8", "--fp8"])
    assert done.exit_code == 2
    assert "--int8 and --fp8 exclude each other" in done.output


def test_what_has_no_plan_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no graph to plan for") as caught:
        run()
    assert "vitdeploy export" in str(caught.value.hint)
    half = to_half(read_onnx_model(assets.GRAPH), tmp_path)
    with pytest.raises(CalibrationError, match="start from fp32"):
        run(str(half.path))
