"""Accuracies stand side by side in a report only where they are of the same images."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from report_samples import accuracy, report

from vitdeploy.artifacts.engine import Engine, EngineManifest
from vitdeploy.artifacts.files import to_json
from vitdeploy.artifacts.onnx_model import ModelDescription
from vitdeploy.benchmarks.accuracy.evaluation import EvaluationResult
from vitdeploy.benchmarks.report.assemble import Evidence, assemble
from vitdeploy.benchmarks.report.model import AccuracyForecast
from vitdeploy.cli.report import _evaluations, forecasts_beside
from vitdeploy.errors import InputError

MODEL: ModelDescription = report({}).model
SETS = {"large": accuracy(1, 1, 2000), "small": accuracy(1, 1, 200), "half": accuracy(1, 1, 1000)}


def engine(folder: Path, name: str) -> Engine:
    path = folder / f"{name}.engine"
    path.write_bytes(b"engine")
    manifest = EngineManifest(
        "onnxruntime", "1", MODEL, f"graph of {name}", name, ("cpu",), "a CPU", (1, 1, 8), 1.0
    )
    return Engine(path, manifest)


def result(of: str, images: str) -> EvaluationResult:
    return EvaluationResult(
        f"{of}.engine", of, "onnxruntime", MODEL, "PyTorch", images, None, (), SETS[images],
        images_digest=images,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("beside", "chosen"),
    [
        ({"a": ["small"], "b": ["small"]}, "small"),
        ({"a": ["small", "large"], "b": ["large"]}, "large"),
        ({"a": ["small", "large"], "b": ["small", "large"]}, "small"),
        ({"a": ["small", "large"], "b": ["small", "large"], "c": ["large"]}, "large"),
        ({"a": ["large", "small"], "b": ["small", "large"]}, "large"),
        ({"a": ["large"], "b": ["small"]}, "large"),
        ({"a": ["large"], "b": ["small"], "c": ["small"]}, "small"),
    ],
    ids=[
        "one set",
        "the common",
        "the newest",
        "what all have",
        "of as many the larger",
        "none",
        "the most",
    ],
)
def test_each_engine_tells_of_the_same_images(
    beside: dict[str, list[str]], chosen: str, tmp_path: Path
) -> None:
    engines = [engine(tmp_path, name) for name in beside]
    for name, newest_first in beside.items():
        for position, images in enumerate(newest_first):
            aside = f"-{len(newest_first) - position}" if position else ""
            to = tmp_path / f"{name}.accuracy{aside}.json"
            to.write_text(to_json(result(name, images)), encoding="utf-8")
    said: list[str] = []
    found = _evaluations(engines, said.append)
    assert {each.images_digest for each in found.values()} == {chosen}
    missing = [name for name, sets in beside.items() if chosen not in sets]
    assert found.keys() == beside.keys() - set(missing)
    assert [line.split()[2] for line in said] == [f"{name}.engine" for name in missing]
    assert all("other images than the rest" in line for line in said)


def test_stored_outputs_do_not_take_the_place_of_what_pytorch_told() -> None:
    stored, live = result("a", "large"), replace(result("a", "large"), native_top1=0.9)
    assert not stored.supersedes(live)
    assert live.supersedes(stored)
    assert stored.supersedes(stored)


def test_a_report_of_different_images_is_refused(tmp_path: Path) -> None:
    engines = [engine(tmp_path, name) for name in "ab"]
    same = {name: result(name, "large") for name in "ab"}
    assert assemble(Evidence(engines=engines, evaluations=same)).evaluation_images == 2000
    older = same | {"b": replace(same["b"], images_digest="")}
    assert assemble(Evidence(engines=engines, evaluations=older)).evaluation_images == 2000
    other = same | {"b": result("b", "small")}
    with pytest.raises(InputError, match=r"a.engine on 2,000, b.engine on 200"):
        assemble(Evidence(engines=engines, evaluations=other))


def test_forecasts_are_of_the_same_images_and_the_newest(tmp_path: Path) -> None:
    one = engine(tmp_path, "a")

    def write(suffix: str, images: str, lost: int) -> None:
        judged = accuracy(lost, 0, 2000)
        found = AccuracyForecast("a.onnx", "graph of a", images, "fp16", judged, judged)
        (tmp_path / f"a.forecast{suffix}.json").write_text(to_json(found), encoding="utf-8")

    write("", "small", 0)
    for number in (1, 2, 10):
        write(f"-{number}", "large", number)
    said: list[str] = []
    newest = forecasts_beside([one], said.append)["graph of a"]
    assert newest.images_digest == "small"
    of_images = forecasts_beside([one], said.append, "large")["graph of a"]
    assert of_images.fused.loss().value == pytest.approx(100 * 10 / 2000)
    assert said == []
    assert forecasts_beside([one], said.append, "half") == {}
    assert said == ["left out: a.forecast.json is of other images"]
