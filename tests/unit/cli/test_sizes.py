"""--res: engines of a range of sizes are judged, timed and reported at the size asked for."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from vitdeploy import api
from vitdeploy.artifacts.engine import Engine
from vitdeploy.artifacts.files import read_text, to_json
from vitdeploy.artifacts.onnx_model import (
    METADATA_KEY,
    ModelDescription,
    ResolutionRange,
    read_onnx_model,
)
from vitdeploy.artifacts.reference import ReferenceOutputs, save
from vitdeploy.artifacts.source import SourceDescription
from vitdeploy.backends import registry
from vitdeploy.benchmarks.speed import loadgen
from vitdeploy.benchmarks.speed.driving import OwnDriver
from vitdeploy.cli import cli
from vitdeploy.errors import InconclusiveError, InputError
from vitdeploy.images import image_digest
from vitdeploy.preprocessing import Preprocessing

SIZES = ResolutionRange((8, 8), (16, 16), (4, 4))
SOURCE = SourceDescription(
    "pixels", "timm", "pixels", {}, (8, 8), 3, ("low", "high"), "ab" * 32,
    Preprocessing(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0)),
)  # fmt: skip


def graph(folder: Path, sizes: ResolutionRange | None) -> Path:
    """Two logits: the mean of the pixels less 0.5, and the number of pixels over 1000."""
    described = ModelDescription(
        SOURCE, (8, 8), "fp32", 17, "images", "logits", resolution_range=sizes
    )
    shape = ["n", 3, "height", "width"] if sizes else ["n", 3, 8, 8]
    constants = [
        numpy_helper.from_array(np.array(value, np.float32), name)
        for name, value in (("half", 0.5), ("zero", 0.0), ("thousandth", 0.001 / 3))
    ]
    nodes = [
        helper.make_node("ReduceMean", ["images"], ["mean"], axes=[1, 2, 3]),
        helper.make_node("Sub", ["mean", "half"], ["first"]),
        helper.make_node("Mul", ["images", "zero"], ["zeros"]),
        helper.make_node("Exp", ["zeros"], ["ones"]),
        helper.make_node("ReduceSum", ["ones", "axes"], ["pixels"]),
        helper.make_node("Mul", ["pixels", "thousandth"], ["second"]),
        helper.make_node("Concat", ["first", "second"], ["wide"], axis=1),
        helper.make_node("Flatten", ["wide"], ["logits"]),
    ]
    constants.append(numpy_helper.from_array(np.array([1, 2, 3], np.int64), "axes"))
    model = helper.make_model(
        helper.make_graph(
            nodes, "pixels",
            [helper.make_tensor_value_info("images", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 2])],
            constants,
        ),
        opset_imports=[helper.make_opsetid("", 17)], ir_version=8,
    )  # fmt: skip
    helper.set_model_props(model, {METADATA_KEY: to_json(described)})
    path = folder / f"pixels_{'range' if sizes else 'fixed'}.onnx"
    onnx.save(model, str(path))
    return path


def engine(folder: Path, sizes: ResolutionRange | None = SIZES) -> Engine:
    folder.mkdir(exist_ok=True)
    return api.build_engine(
        read_onnx_model(graph(folder, sizes)), registry.get("onnxruntime"), folder
    )


def run(*arguments: object):
    return CliRunner().invoke(cli, list(map(str, arguments)), catch_exceptions=True)


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "picture.png"
    Image.fromarray(np.full((16, 16, 3), 200, np.uint8)).save(path)
    return path


def test_a_graph_says_which_sizes_it_takes() -> None:
    own = ModelDescription(SOURCE, (8, 8), "fp32", 17, "images", "logits", resolution_range=SIZES)
    assert own.at(None) == own.at((8, 8)) == own
    assert own.at((12, 16)) == replace(own, resolution=(12, 16))
    for size in ((20, 8), (8, 4), (10, 8)):
        with pytest.raises(InputError, match=r"takes 8x8 to 16x16 in steps of 4, not \d+x\d+"):
            own.at(size)
    with pytest.raises(InputError, match="takes 8x8 only, not 12x12"):
        replace(own, resolution_range=None).at((12, 12))


def test_predict_takes_the_size_asked_for(tmp_path: Path, picture: Path) -> None:
    path = engine(tmp_path / "e").path
    scores = []
    for given, size in ((), 8), (("--res", "16"), 16):
        found = run("predict", path, picture, "--json", *given)
        assert found.exit_code == 0, found.output
        answers = json.loads(found.stdout)["predictions"][0]["answers"]
        scores.append(np.log(next(a["score"] for a in answers if a["label"] == "high")))
        scores[-1] -= np.log(next(a["score"] for a in answers if a["label"] == "low"))
        assert scores[-1] == pytest.approx(size * size / 1000 - (200 / 255 - 0.5), abs=1e-3)
        assert f"pixels fp32 at {size}x{size}" in found.stdout
        assert ("size: 8x8 of 8x8 to 16x16" in found.stderr) == (not given)
    fixed = run("predict", engine(tmp_path / "f", None).path, picture, "--res", "16")
    assert isinstance(fixed.exception, InputError)
    assert "takes 8x8 only" in str(fixed.exception)


def judged(path: Path, folder: Path, size: int) -> None:
    """Evaluate at a size against the very answers of the graph there, and expect a record."""
    images = sorted(folder.rglob("*.png"))
    bytes_of = [np.asarray(Image.open(p), np.float32) for p in images]
    logits = np.array([(b.mean() / 255 - 0.5, size * size / 1000) for b in bytes_of], np.float32)
    digests = tuple(map(image_digest, images))
    known = (SOURCE.weights_digest, SOURCE.preprocessing.digest, (size, size), "logits")
    save(ReferenceOutputs(logits, digests, *known), folder.parent / f"{size}.npz")
    given = ["--data", folder, "--reference", folder.parent / f"{size}.npz", "--res", size]
    found = run("evaluate", path, *given)
    assert isinstance(found.exception, InconclusiveError), found.output
    assert f"images at {size}x{size}" in found.output


def test_findings_of_several_sizes_stand_side_by_side(tmp_path: Path) -> None:
    for number in range(24):
        label, value = (("low", 255 - number), ("high", number))[number % 2]
        (tmp_path / "data" / label).mkdir(parents=True, exist_ok=True)
        pixels = np.full((16, 16, 3), value, np.uint8)
        Image.fromarray(pixels).save(tmp_path / "data" / label / f"{number}.png")
    path = engine(tmp_path / "e").path
    for size in (8, 16):
        judged(path, tmp_path / "data", size)
    assert path.with_suffix(".accuracy-1.json").exists()
    for size in (8, 16):
        found = run("report", path, "--res", size, "-o", tmp_path / str(size))
        assert found.exit_code == 0, found.output
        page = read_text(tmp_path / str(size) / "report.md", what="report")
        assert f"pixels at {size}x{size}" in page
        assert f"run at {size}x{size}, takes 8x8 to 16x16 in steps of 4" in page
        assert "on 24 images" in page
    nothing = run("report", path, "--res", "12", "-o", tmp_path / "12")
    assert "accuracy.json is of 16x16: report --res 16x16 shows it" in nothing.output


def test_a_range_and_a_fixed_size_are_timed_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = count()
    driver = OwnDriver(lambda: 0.002 * next(ticks), lambda _: None)
    monkeypatch.setattr(loadgen, "best_driver", lambda: driver)
    both = [engine(tmp_path / "e", sizes).path for sizes in (None, SIZES)]
    given = ["--no-source", "--quick", "--batch", "1", "--seconds", "1", "--accept-unstable"]
    found = run("benchmark", *both, *given, "--res", "8")
    assert found.exit_code == 0, found.output
    kept = json.loads(read_text(tmp_path / "e" / "benchmark.json", what="findings"))
    assert kept["resolution"] == [8, 8]
    assert len(kept["engine_digests"]) == 2
    refused = run("benchmark", *both, *given, "--res", "16")
    assert "takes 8x8 only" in str(refused.exception)
    one = run("benchmark", both[1], "--scenario", "single-stream", "--seconds", "1", "--res", "12")
    assert one.exit_code == 0, one.output
    scenarios = json.loads(read_text(both[1].with_suffix(".scenarios.json"), what="findings"))
    assert scenarios["resolution"] == [12, 12]
