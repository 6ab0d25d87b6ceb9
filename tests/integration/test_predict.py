"""`vitdeploy predict`: the answers PyTorch gives, from any engine or graph, without PyTorch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import GRAPH, Outcome, png, require_one_error, run
from PIL import Image
from torch import nn

from vitdeploy import api
from vitdeploy.artifacts.engine import Engine, read_engine
from vitdeploy.artifacts.onnx_model import OnnxModel, read_onnx_model
from vitdeploy.backends import registry
from vitdeploy.demo import assets
from vitdeploy.errors import GateFailedError, InputError
from vitdeploy.images import decode
from vitdeploy.models.load import ModelRequest
from vitdeploy.prediction import Predictions, images_named, predict


@pytest.fixture(scope="module")
def photographs() -> list[Path]:
    folders = sorted(assets.images_folder("evaluation").iterdir())
    return [sorted(folder.iterdir())[0] for folder in folders]


@pytest.fixture(scope="module")
def graph() -> OnnxModel:
    return read_onnx_model(assets.GRAPH)


def probabilities(paths: list[Path]) -> np.ndarray:
    """PyTorch's own, at the graph's resolution."""
    source = api.load_model(ModelRequest(name=str(assets.CHECKPOINT))).at(assets.RESOLUTION)
    prepare = source.description.preprocessing.apply
    batch = np.stack([prepare(decode(path), assets.RESOLUTION) for path in paths])
    return nn.functional.softmax(torch.from_numpy(source.logits(batch)), dim=-1).numpy()


def require_pytorchs(found: Predictions, paths: list[Path], labels: tuple[str, ...]) -> None:
    for prediction, path, expected in zip(
        found.predictions, paths, probabilities(paths), strict=True
    ):
        assert prediction.image == str(path)
        order = np.argsort(-expected)[: len(prediction.answers)]
        assert [answer.index for answer in prediction.answers] == order.tolist()
        assert [answer.label for answer in prediction.answers] == [labels[i] for i in order]
        scores = [answer.score for answer in prediction.answers]
        np.testing.assert_allclose(scores, expected[order], atol=1e-4)


def test_a_graph_answers_as_pytorch(graph: OnnxModel, photographs: list[Path]) -> None:
    found = predict(graph, photographs, top=3, threads=1)
    require_pytorchs(found, photographs, graph.description.source.labels)
    assert found.kind == "classes"
    assert found.unreadable == ()


def test_an_image_left_out_moves_no_answer(
    graph: OnnxModel, photographs: list[Path], tmp_path: Path
) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(photographs[0].read_bytes()[:60])
    found = predict(graph, [photographs[0], broken, *photographs[1:]], top=3, threads=1)
    require_pytorchs(found, photographs, graph.description.source.labels)
    assert [left_out.image for left_out in found.unreadable] == [str(broken)]


def test_an_engine_answers_as_pytorch(engine: Path, photographs: list[Path]) -> None:
    loaded = read_engine(engine)
    found = predict(loaded, photographs, top=5, threads=1)
    require_pytorchs(found, photographs, loaded.manifest.model.source.labels)
    assert found.runtime == "ONNX Runtime fp32"


class Fixed:
    """An engine of a fixed batch, as TensorRT has: others are refused."""

    name = "fixed"

    def __init__(self, size: int) -> None:
        self._size = size
        self.runs = 0

    def load(self, engine: Engine, *, threads: int | None = None, alone: bool = True) -> Fixed:
        return self

    def run(self, batch: np.ndarray) -> np.ndarray:
        assert len(batch) == self._size
        self.runs += 1
        return batch.mean(axis=(2, 3)) * [1, 10, 100]


def test_a_fixed_batch_is_filled_up(
    engine: Path, photographs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = Fixed(4)
    monkeypatch.setattr(registry, "get", lambda name: runtime)
    manifest = read_engine(engine).manifest
    fixed = Engine(engine, _replace(manifest, batch=(4, 4, 4)))
    found = predict(fixed, photographs[:6], top=3)
    assert runtime.runs == 2
    assert [prediction.image for prediction in found.predictions] == list(map(str, photographs[:6]))
    again = predict(fixed, photographs[5:6], top=3)
    assert again.predictions[0] == found.predictions[5]
    assert len({prediction.answers for prediction in found.predictions}) == 6


def _replace(manifest: Any, **changes: Any) -> Any:
    from dataclasses import replace

    return replace(manifest, **changes)


@pytest.mark.parametrize(
    ("task", "output", "scores"),
    [
        ("multilabel", "logits", [0.75026, 0.5, 0.11920]),
        ("multilabel", "probabilities", [1.1, 0.0, -2.0]),
        ("regress", "logits", [1.1, -2.0, 0.0]),
        ("classify", "probabilities", [1.1, 0.0, -2.0]),
    ],
)
def test_what_scores_are(
    task: str,
    output: str,
    scores: list[float],
    engine: Path,
    photographs: list[Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sigmoids of several labels, numbers as they are and in their order, probabilities kept."""
    found = _answered([1.1, -2.0, 0.0], task, output, engine, photographs[:1], monkeypatch)
    assert [answer.score for answer in found.predictions[0].answers] == pytest.approx(
        scores, abs=1e-5
    )


def test_features_are_summed_up(
    engine: Path, photographs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    values = [[3.0, 4.0], [0.0, 0.0]]
    found = _answered(values, "classify", "tokens", engine, photographs[:1], monkeypatch)
    features = found.predictions[0].features
    assert features is not None
    assert (features.shape, features.norm, features.mean) == ((2, 2), 5.0, 1.75)
    assert features.first == (3.0, 4.0, 0.0, 0.0)
    assert found.predictions[0].answers == ()


def test_what_is_not_finite_is_no_answer(
    engine: Path, photographs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(GateFailedError, match="not finite"):
        _answered([np.nan, 1, 2], "classify", "logits", engine, photographs[:1], monkeypatch)


def _answered(
    row: Any, task: str, output: str, engine: Path, paths: list[Path], monkeypatch: Any
) -> Predictions:
    class Told:
        name = "told"

        def load(self, engine: Engine, *, threads: int | None = None, alone: bool = True) -> Told:
            return self

        def run(self, batch: np.ndarray) -> np.ndarray:
            return np.array([row] * len(batch), np.float32)

    monkeypatch.setattr(registry, "get", lambda name: Told())
    manifest = read_engine(engine).manifest
    source = _replace(manifest.model.source, task=task, labels=("a", "b", "c"))
    model = _replace(manifest.model, source=source, output=output)
    return predict(Engine(engine, _replace(manifest, model=model)), paths, top=3)


def test_folders_and_files_in_natural_order(tmp_path: Path) -> None:
    for name in ("b/10.png", "b/2.png", "a.PNG", "b/c/1.jpg", "b/notes.txt", "b/.hidden.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save((tmp_path / name), "PNG")
    found = images_named([tmp_path / "b", tmp_path / "a.PNG"])
    assert [path.name for path in found] == ["2.png", "10.png", "1.jpg", "a.PNG"]
    (tmp_path / "empty").mkdir()
    for wrong in ([], [tmp_path / "empty"], [tmp_path / "missing.png"]):
        with pytest.raises(InputError) as caught:
            images_named(wrong)
        assert caught.value.hint


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    folder = tmp_path / "mixed"
    folder.mkdir()
    (folder / "1.png").write_bytes(png(1))
    (folder / "2.png").write_bytes(png(2)[:40])
    (folder / "3.png").write_bytes(png(200))
    return folder


def test_the_command(mixed: Path, cache: Path) -> None:
    arguments = ["predict", GRAPH, "mixed", "--top", "2", "--threads", "1"]
    said = run(arguments, mixed.parent, cache)
    assert said.code == 0, said.errors
    lines = said.output.splitlines()
    assert lines[0].endswith("(the graph, on the CPU)")
    assert [line for line in lines if not line.startswith(" ")][1:] == [
        "mixed/1.png",
        "mixed/3.png",
    ]
    assert len(lines) == 1 + 2 * 3
    assert "left out: image mixed/2.png cannot be read" in said.errors
    record = _record(run([*arguments, "--json"], mixed.parent, cache))
    assert [entry["image"] for entry in record["predictions"]] == ["mixed/1.png", "mixed/3.png"]
    assert record["unreadable"][0]["image"] == "mixed/2.png"
    assert len(record["predictions"][0]["answers"]) == 2


def test_without_a_readable_image(mixed: Path, cache: Path) -> None:
    done = run(["predict", GRAPH, "mixed/2.png"], mixed.parent, cache)
    require_one_error(done, 2, "none of 1 image can", "JPEG")
    require_one_error(run(["predict", GRAPH, "no.png"], mixed.parent, cache), 2, "does not exist")
    require_one_error(run(["predict", "mixed/1.png", "mixed"], mixed.parent, cache), 2, "engine")


def _record(done: Outcome) -> dict[str, Any]:
    assert done.code == 0, done.errors
    return json.loads(done.output)
