"""`evaluate` as people call it: tables and class maps, stored outputs, forecasts, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import GRAPH, require_one_error, run

from vitdeploy import api
from vitdeploy.artifacts.onnx_model import read_onnx_model
from vitdeploy.demo import assets

REFERENCE = ["--reference", str(assets.reference_path(assets.RESOLUTION))]


@pytest.fixture(scope="module")
def flat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty images of all classes, with a table and a class map of their labels."""
    folder = tmp_path_factory.mktemp("flat")
    (folder / "images").mkdir()
    rows = []
    for place in sorted(assets.images_folder("evaluation").iterdir()):
        for path in sorted(place.iterdir())[:2]:
            name = f"{place.name.replace(' ', '_').replace('/', '_')}-{path.name}"
            (folder / "images" / name).write_bytes(path.read_bytes())
            rows.append((name, place.name))
    labels = list(read_onnx_model(assets.GRAPH).description.source.labels)
    lines = [f"images/{name},{label}\n" for name, label in rows]
    (folder / "table.csv").write_text("path,label\n" + "".join(lines), encoding="utf-8")
    mapped = "".join(f"{name} {labels.index(label)}\n" for name, label in rows)
    (folder / "map.txt").write_text(mapped, encoding="utf-8")
    return folder


def test_a_table_and_a_class_map_say_the_same(
    engine: Path, flat: Path, tmp_path: Path, cache: Path
) -> None:
    ways = (
        ["--data", str(flat / "table.csv")],
        ["--data", str(flat / "images"), "--class-map", str(flat / "map.txt")],
    )
    found = []
    for way in ways:
        outcome = run(["evaluate", str(engine), *way, *REFERENCE, "--json"], tmp_path, cache)
        assert outcome.code == 11, outcome.errors
        found.append(json.loads(outcome.output)["comparison"])
    assert found[0] == found[1]
    assert found[0]["source_top1"] > 0.7
    assert found[0]["images_needed"] == 539
    require_one_error(outcome, 11, "20 images cannot tell", "539 images")


def test_stored_outputs_of_other_images_are_refused(
    engine: Path, flat: Path, tmp_path: Path, cache: Path
) -> None:
    own = tmp_path / "own.npz"
    data = ["--data", str(flat / "table.csv")]
    saved = run(
        ["evaluate", str(engine), *data, *REFERENCE, "--save-reference", str(own)], tmp_path, cache
    )
    assert saved.code == 11, saved.errors
    again = run(["evaluate", str(engine), *data, "--reference", str(own)], tmp_path, cache)
    assert again.code == 11, again.errors
    other = tmp_path / "other"
    for place in sorted(assets.images_folder("evaluation").iterdir()):
        (other / place.name).mkdir(parents=True)
        path = sorted(place.iterdir())[5]
        (other / place.name / path.name).write_bytes(path.read_bytes())
    refused = run(
        ["evaluate", str(engine), "--data", str(other), "--reference", str(own)], tmp_path, cache
    )
    require_one_error(refused, 2, "lack 10 of 10 images", "--save-reference")


def test_a_typed_graph_is_forecast_and_stands_beside_its_engine(
    flat: Path, tmp_path: Path, cache: Path
) -> None:
    graph = api.with_precision(
        read_onnx_model(assets.GRAPH), api.PrecisionRequest(precision="fp16"), tmp_path
    )
    data = ["--data", str(flat / "table.csv"), *REFERENCE]
    outcome = run(["evaluate", str(graph.path), *data], tmp_path, cache)
    assert outcome.code == 11, outcome.errors
    assert "forecast: drop +0.00 to +0.00 points" in outcome.output
    assert "no measurement" in outcome.output
    found = json.loads(graph.path.with_suffix(".forecast.json").read_text(encoding="utf-8"))
    assert found["graph_digest"] == graph.digest
    assert found["worst"]["max_error"] > found["fused"]["max_error"] > 1e-4


def test_a_forecast_lies_beside_the_measurement_in_the_record(
    flat: Path, tmp_path: Path, cache: Path
) -> None:
    built = run(
        ["build-engine", GRAPH, "--backend", "onnxruntime", "-o", ".", "--json"], tmp_path, cache
    )
    engine = json.loads(built.output)["path"]
    graph = tmp_path / Path(GRAPH).name
    graph.write_bytes(Path(GRAPH).read_bytes())
    data = ["--data", str(flat / "table.csv"), *REFERENCE]
    assert run(["evaluate", str(graph), *data], tmp_path, cache).code == 11
    outcome = run(["evaluate", engine, *data, "--json"], tmp_path, cache)
    found = json.loads(outcome.output)
    assert found["forecast"]["fused"]["images"] == found["comparison"]["images"] == 20
