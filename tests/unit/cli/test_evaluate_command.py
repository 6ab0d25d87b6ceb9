"""`vitdeploy evaluate` and `benchmark --data`: what they load, and what they look at first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image

from vitdeploy import api
from vitdeploy.artifacts.engine import Engine
from vitdeploy.artifacts.onnx_model import read_onnx_model
from vitdeploy.backends import onnxruntime_, registry
from vitdeploy.benchmarks.accuracy import evaluation
from vitdeploy.cli import benchmark, cli
from vitdeploy.cli import evaluate as command_module
from vitdeploy.demo import assets
from vitdeploy.errors import GateFailedError, InconclusiveError, InputError
from vitdeploy.images import decode, scan, unreadable

_SPINNING = "session.intra_op.allow_spinning"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = tmp_path_factory.mktemp("engine")
    return api.build_engine(read_onnx_model(assets.GRAPH), registry.get("onnxruntime"), folder)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Two of the demo's evaluation images of each class; of the last one files may be broken."""
    for place in sorted(assets.images_folder("evaluation").iterdir()):
        (tmp_path / "images" / place.name).mkdir(parents=True)
        for path in sorted(place.iterdir())[:2]:
            (tmp_path / "images" / place.name / path.name).write_bytes(path.read_bytes())
    return tmp_path / "images"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Whether the threads of each session that ONNX Runtime begins may spin ('0': they sleep)."""
    found: list[str] = []
    make = onnxruntime_.session_options

    def recording(*arguments: Any, **options: Any) -> Any:
        made: Any = make(*arguments, **options)
        try:
            found.append(made.get_session_config_entry(_SPINNING))
        except RuntimeError:
            found.append("not set")
        return made

    monkeypatch.setattr(onnxruntime_, "session_options", recording)
    return found


def evaluate(engine: Engine, images: Path, *more: str) -> Result:
    reference = str(assets.reference_path(assets.RESOLUTION))
    asked = ["evaluate", str(engine.path), "--data", str(images), "--reference", reference, *more]
    return CliRunner().invoke(cli, asked)


def break_last(images: Path, count: int = 1) -> list[str]:
    """Cut the last files of a folder in half; their names."""
    paths = sorted(images.rglob("*.*"))[-count:]
    for path in paths:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return [path.name for path in paths]


def test_an_engine_is_loaded_once_and_leaves_the_cores_to_decoders(
    engine: Engine, images: Path, opened: list[str]
) -> None:
    found = evaluate(engine, images)
    assert isinstance(found.exception, InconclusiveError), found.output
    assert opened == ["0"], "one session, whose threads sleep while they wait"


def test_so_it_is_on_the_way_from_files_and_not_in_timings(
    engine: Engine, images: Path, opened: list[str]
) -> None:
    (found,) = benchmark._from_files([engine], scan(images), {"batch": (4, 8), "threads": None})
    assert (found.batch, found.images) == (8, 20)
    api.load_engine(engine)
    assert opened == ["0", "not set"]


def test_an_image_cut_short_is_found_before_anything_runs(
    engine: Engine, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[object] = []
    monkeypatch.setattr(evaluation, "logits_of", lambda *a, **_: ran.append(a))
    names = break_last(images, 3)
    found = evaluate(engine, images)
    assert isinstance(found.exception, InputError)
    assert f"{names[0]} cannot be read" in str(found.exception)
    assert "(2 more of 20 cannot either: " in str(found.exception)
    assert all(name in str(found.exception) for name in names)
    assert "--skip-unreadable" in str(found.exception.hint)
    assert ran == []


def test_it_is_left_out_and_listed_where_that_is_asked_for(engine: Engine, images: Path) -> None:
    (name,) = break_last(images)
    found = evaluate(engine, images, "--skip-unreadable")
    assert isinstance(found.exception, InconclusiveError)
    assert "on 19 images" in found.output
    assert "left out, unreadable: " in found.output
    assert name in found.output


def test_leaving_all_images_out_is_refused(engine: Engine, images: Path) -> None:
    break_last(images, 20)
    found = evaluate(engine, images, "--skip-unreadable")
    assert isinstance(found.exception, InputError)
    assert "none of the 20 images can be read" in str(found.exception)


@pytest.mark.parametrize("fault", ["broken", "few"])
def test_timings_are_not_lost_for_images_that_do_not_do(
    engine: Engine, images: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[object] = []
    monkeypatch.setattr(api, "benchmark", lambda *a, **_: ran.append(a))
    batch = "8"
    if fault == "broken":
        break_last(images)
    else:
        batch = "21"
    asked = ["benchmark", str(engine.path), "--no-source", "--data", str(images)]
    found = CliRunner().invoke(cli, [*asked, "--batch", batch])
    assert isinstance(found.exception, InputError), found.output
    expected = {"broken": "cannot be read", "few": "20 images do not fill a batch of 21"}
    assert expected[fault] in str(found.exception)
    assert ran == []


def test_reading_a_file_for_a_look_finds_what_decoding_does(tmp_path: Path) -> None:
    """JPEGs are looked at in an eighth of their size; wherever they are cut, both say the same."""
    pixels = np.random.default_rng(0).integers(0, 256, (12, 16, 3), dtype=np.uint8)
    image = Image.fromarray(pixels).resize((160, 120))
    for name, options in {"a": {}, "b": {"progressive": True}}.items():
        image.save(tmp_path / f"{name}.jpg", **options)
        whole = (tmp_path / f"{name}.jpg").read_bytes()
        for cut in range(40, len(whole), len(whole) // 24):
            (tmp_path / f"{name}{cut}.jpg").write_bytes(whole[:cut])
    found = scan(tmp_path)
    broken = []
    for i, item in enumerate(found.items):
        try:
            decode(item.path)
        except InputError:
            broken.append(i)
    assert unreadable(found) == broken
    assert 40 < len(broken) < len(found)


def test_of_several_engines_all_are_judged_and_the_worst_counts(
    engine: Engine, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(engine.path.parent)
    other = registry.get("openvino")
    second = api.build_engine(read_onnx_model(assets.GRAPH), other, engine.path.parent)
    asked = ["evaluate", str(engine.path), str(second.path), "--model", "demo"]
    found = CliRunner().invoke(cli, [*asked, "--data", str(images), "--max-drop", "5"])
    assert isinstance(found.exception, InconclusiveError)
    assert str(found.exception).startswith(f"2 of 2 did not pass; {engine.path.name}: 20 images")
    for each in (engine, second):
        assert f"inconclusive: {each.path.name}: 20 images cannot tell" in found.output
        assert each.path.with_suffix(".accuracy.json").is_file()
    # An engine that fails outweighs one that cannot be told.
    broken = GateFailedError("it collapsed", hint="build it again")
    verdicts = iter([InconclusiveError("20 images cannot tell"), broken])

    def judged(*_: object) -> None:
        raise next(verdicts)

    monkeypatch.setattr(command_module, "_judge", judged)
    found = CliRunner().invoke(cli, [*asked, "--data", str(images), "--max-drop", "5"])
    assert isinstance(found.exception, GateFailedError)
    assert str(found.exception) == f"2 of 2 did not pass; {second.path.name}: it collapsed"
