"""`vitdeploy build-engine --int8`: what is refused, with which code, and what is left behind."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from command_line import Outcome, listing, require_one_error, run
from patterned import RUINOUS_TO_ALL, Patterned, patterned, patterned_images, ruined

from vitdeploy.artifacts.onnx_model import OnnxModel, read_onnx_model
from vitdeploy.cli.build_engine import command
from vitdeploy.cli.inspect import command as inspect
from vitdeploy.demo import assets
from vitdeploy.errors import CalibrationError, EngineError, InputError

FIRST = "blocks.0.mlp.fc2/MatMul"


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Patterned:
    return patterned(tmp_path_factory.mktemp("patterned"))


@pytest.fixture(scope="module")
def bad(bench: Patterned, tmp_path_factory: pytest.TempPathFactory) -> OnnxModel:
    """One layer of it that INT8 loses."""
    return ruined(bench.model, tmp_path_factory.mktemp("bad"), FIRST, factor=RUINOUS_TO_ALL)


def arguments(model: OnnxModel, bench: Patterned, *more: str) -> list[str]:
    calib = ["--calib", str(bench.images.root), "--calib-images", "32", "--range", "absmax"]
    return [str(model.path), "--int8", "--backend", "onnxruntime", "-o", "out", *calib, *more]


def build(folder: Path, cache: Path, *given: str) -> Outcome:
    return run(["build-engine", *given], folder, cache)


def within(place: Path, *given: str) -> Result:
    """In this process; an error of ours is raised."""
    before = Path.cwd()
    os.chdir(place)
    try:
        done = CliRunner().invoke(command, list(given))
    finally:
        os.chdir(before)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def test_a_lost_graph_is_refused_and_nothing_is_written(
    bad: OnnxModel, bench: Patterned, tmp_path: Path, cache: Path
) -> None:
    outcome = build(tmp_path, cache, *arguments(bad, bench))
    require_one_error(outcome, 10, FIRST, f"--keep {FIRST}")
    assert "of 64 held-out images" in outcome.errors
    assert "--force" in outcome.errors
    left = [name for name in listing(tmp_path) if not name.startswith("out/statistics")]
    assert left == ["out"]


def test_force_writes_it_and_so_does_keeping_the_layer(
    bad: OnnxModel, bench: Patterned, tmp_path: Path
) -> None:
    for more in (("--force",), ("--keep", FIRST)):
        assert within(tmp_path, *arguments(bad, bench, *more)).exit_code == 0
    graphs = sorted((tmp_path / "out").glob("*.onnx"))
    assert len(graphs) == 2
    assert len(list((tmp_path / "out").glob("*.engine"))) == 2


def test_layers_go_back_and_inspect_shows_the_curve(
    bad: OnnxModel, bench: Patterned, tmp_path: Path
) -> None:
    more = ("--max-drop", "2", "--eval", str(bench.evaluation.root), "--json")
    done = within(tmp_path, *arguments(bad, bench, *more))
    assert done.exit_code == 0
    record = json.loads(done.stdout)
    model = read_onnx_model(tmp_path / record["graph"])
    made = model.description.quantization
    assert made is not None
    assert "sensitive" in made.kept[FIRST]
    assert [(step.kept, step.verdict) for step in made.fallback] == [
        (0, "fail"),
        (1, "pass"),
        (1, "pass"),
    ]
    assert "1 nodes back in float: drop +0.00 points" in done.stderr
    shown = CliRunner().invoke(inspect, [str(model.path)]).stdout
    curve = [line for line in shown.splitlines() if line.strip().startswith("fallback")]
    assert len(curve) == 3
    assert "0 nodes back in float" in curve[0]
    assert "fail on the choosing half of 200 images" in curve[0]
    assert "pass on the held-out half of 200 images" in curve[2]


def test_it_stops_where_the_images_cannot_tell(
    bench: Patterned, tmp_path: Path, cache: Path
) -> None:
    more = ("--max-drop", "0.5", "--eval", str(bench.evaluation.root))
    outcome = build(tmp_path, cache, *arguments(bench.model, bench, *more))
    require_one_error(outcome, 11, "200 images cannot tell", "evaluation images")
    assert not list((tmp_path / "out").glob("*.onnx"))


def test_the_second_build_takes_what_the_first_gathered(bench: Patterned, tmp_path: Path) -> None:
    given = arguments(bench.model, bench)
    assert within(tmp_path, *given).exit_code == 0
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "out/statistics").iterdir()}
    assert len(kept) == 1, "absmax needs the first pass alone"
    given[given.index("absmax")] = "entropy"
    assert within(tmp_path, *given).exit_code == 0
    again = {path: path.stat().st_mtime_ns for path in (tmp_path / "out/statistics").iterdir()}
    assert len(again) == 2
    assert kept.items() <= again.items(), "the first pass was made again"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--int8", "--fp8"], "--int8 and --fp8 exclude each other"),
        (["--fp16", "--fp32"], "--fp16 and --fp32 exclude each other"),
        (["--max-drop", "1"], "--max-drop goes with --int8 or --fp8"),
        (["--fp16", "--force"], "--force goes with --int8 or --fp8"),
        (["--int8", "--eval", "x"], "--eval goes with --max-drop"),
        (["--int8", "--max-drop", "0"], "0.01<=x<=100"),
        (["--int8", "--max-drop", "nan"], "not a finite number"),
        (["--int8", "--range", "best"], "'auto'"),
    ],
)
def test_options_that_do_not_go_together(
    more: list[str], said: str, bench: Patterned, tmp_path: Path
) -> None:
    done = within(tmp_path, str(bench.model.path), *more)
    assert done.exit_code == 2
    assert said in done.output
    assert list(tmp_path.iterdir()) == []


def test_a_drop_needs_images(bench: Patterned, tmp_path: Path) -> None:
    """The recipe names none for this model."""
    with pytest.raises(InputError, match="--max-drop needs images") as caught:
        within(tmp_path, *arguments(bench.model, bench, "--max-drop", "1"))
    assert "--eval" in str(caught.value.hint)
    assert not list(tmp_path.rglob("*.*"))


def test_evaluation_images_are_none_of_the_calibration(bench: Patterned, tmp_path: Path) -> None:
    """Seen before anything is run, by the bytes."""
    folder = tmp_path / "evaluation"
    patterned_images(folder, 130, seed=9)
    for item in bench.images.items[:200]:
        (folder / f"x{item.path.name}").write_bytes(item.path.read_bytes())
    more = ("--max-drop", "5", "--eval", str(folder))
    with pytest.raises(CalibrationError, match="are among the evaluation images"):
        within(tmp_path, *arguments(bench.model, bench, *more))
    assert not list(tmp_path.rglob("statistics*"))


def test_a_quantized_graph_has_no_layers_to_choose(bench: Patterned, tmp_path: Path) -> None:
    done = within(tmp_path, *arguments(bench.model, bench, "--json"))
    int8 = read_onnx_model(tmp_path / json.loads(done.stdout)["graph"])
    more = ("--max-drop", "5", "--eval", str(bench.evaluation.root))
    with pytest.raises(InputError, match="is int8-fp32 already, and --max-drop"):
        within(tmp_path, *arguments(int8, bench, *more))


def test_fp8_for_the_cpu_runs_and_for_older_gpus_is_refused(
    bench: Patterned, tmp_path: Path
) -> None:
    given = [part if part != "--int8" else "--fp8" for part in arguments(bench.model, bench)]
    done = within(tmp_path, *given, "--json")
    record = json.loads(done.stdout)
    assert record["precision"] == "fp8-fp32"
    assert "nodes in FP8" in within(tmp_path, *given).stdout
    given[given.index("onnxruntime")] = "tensorrt-rtx"
    with pytest.raises(EngineError, match="fp8-fp16, which sm86 cannot compute"):
        within(tmp_path, *given, "--target", "sm86")


@pytest.mark.slow
def test_the_demo_keeps_every_layer_quantized(tmp_path: Path) -> None:
    """With labels, on images in the thousands, at a bound that means something."""
    given = [str(assets.GRAPH), "--int8", "--backend", "onnxruntime", "-o", "out", "--json"]
    images = ["--calib", "demo", "--calib-images", "64", "--max-drop", "1", "--eval", "demo"]
    done = within(tmp_path, *given, *images)
    assert done.exit_code == 0
    model = read_onnx_model(tmp_path / json.loads(done.stdout)["graph"])
    made = model.description.quantization
    assert made is not None
    assert [(step.kept, step.verdict, step.held_out) for step in made.fallback] == [
        (0, "pass", False),
        (0, "pass", True),
    ]
    assert all((step.drop_upper_points or 99) <= 1 for step in made.fallback)
    assert all(step.images >= 500 for step in made.fallback)
