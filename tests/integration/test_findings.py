"""What evaluate, benchmark and report leave beside engines, and what they never do there."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from command_line import DEMO_TOML, GRAPH, Outcome, bind_modes, listing, require_one_error, run

from vitdeploy.artifacts import reference
from vitdeploy.demo import assets

REFERENCE = str(assets.reference_path(assets.RESOLUTION))


@pytest.fixture
def place(tmp_path: Path, engine: Path) -> Path:
    """A working folder of the demo's, with an engine in 'artifacts'."""
    (tmp_path / "vitdeploy.toml").write_text(DEMO_TOML)
    (tmp_path / "artifacts").mkdir()
    for path in (engine, engine.with_suffix(".json")):
        shutil.copy(path, tmp_path / "artifacts")
    return tmp_path


def evaluated(place: Path, few: Path, cache: Path, *more: str) -> Outcome:
    return run(["evaluate", "--data", str(few), "--reference", REFERENCE, *more], place, cache)


class TestReadOnlyFolders:
    @pytest.mark.parametrize("command", ["evaluate", "benchmark"])
    def test_are_found_out_before_the_work(
        self, place: Path, few: Path, cache: Path, command: str
    ) -> None:
        arguments = {
            "evaluate": ["evaluate", "--data", str(few), "--reference", REFERENCE],
            "benchmark": ["benchmark", "--no-source"],
        }[command]
        artifacts = place / "artifacts"
        before = listing(artifacts)
        artifacts.chmod(0o500)
        outcome = run(arguments, place, cache, before=bind_modes)
        artifacts.chmod(0o700)
        require_one_error(outcome, 2, "Permission denied", "copy the engine and its .json")
        assert "evaluating" not in outcome.errors
        assert "timing" not in outcome.errors
        assert listing(artifacts) == before

    def test_of_results_are_found_out_before_calibration(self, place: Path, cache: Path) -> None:
        (place / "out").mkdir(mode=0o500)
        arguments = ["build-engine", GRAPH, "--int8", "--backend", "onnxruntime", "-o", "out"]
        outcome = run(arguments, place, cache, before=bind_modes)
        require_one_error(outcome, 2, "Permission denied", "--out")
        assert "calibrating" not in outcome.errors


class TestSavedReferences:
    @pytest.mark.parametrize("name", ["notes.md", "artifacts/MANIFEST", "mine.npz"])
    def test_replace_nothing_else(self, place: Path, few: Path, cache: Path, name: str) -> None:
        manifest = next((place / "artifacts").glob("*.json"))
        target = place / name.replace("MANIFEST", manifest.name)
        if not target.exists():
            target.write_text("mine")
        before = target.read_bytes()
        outcome = evaluated(place, few, cache, "--save-reference", str(target))
        require_one_error(outcome, 2, target.name, "")
        assert "evaluating" not in outcome.errors
        assert target.read_bytes() == before

    def test_replace_their_like(self, place: Path, few: Path, cache: Path) -> None:
        target = place / "again.npz"
        shutil.copy(REFERENCE, target)
        outcome = evaluated(place, few, cache, "--save-reference", str(target))
        assert outcome.code == 11, outcome.errors
        assert len(reference.load(target).logits) == 20


def test_images_calibrated_with_are_refused_before_the_source_runs(
    place: Path, cache: Path
) -> None:
    arguments = ["--int8", "--calib-images", "16", "--backend", "onnxruntime", "--json"]
    built = run(["build-engine", GRAPH, *arguments], place, cache)
    assert built.code == 0, built.errors
    calibrated = str(assets.images_folder("calibration"))
    path = json.loads(built.output)["path"]
    outcome = run(["evaluate", path, "--data", calibrated], place, cache)
    require_one_error(outcome, 2, "were used for calibration", "not seen")
    assert "evaluating" not in outcome.errors


def test_lost_classes_are_announced(place: Path, few: Path, cache: Path) -> None:
    for path in (few / "bag").iterdir():
        path.unlink()
    outcome = evaluated(place, few, cache)
    assert outcome.code == 11, outcome.errors
    assert "folders without images: bag" in outcome.errors


def test_a_class_that_cannot_be_read_is_no_pass(place: Path, few: Path, cache: Path) -> None:
    (few / "bag").chmod(0)
    arguments = ["evaluate", "--data", str(few), "--reference", REFERENCE]
    outcome = run(arguments, place, cache, before=bind_modes)
    (few / "bag").chmod(0o700)
    require_one_error(outcome, 2, "bag cannot be read: Permission denied", "readable")


class TestReports:
    def test_leave_damaged_engines_and_findings_out_by_name(
        self, place: Path, few: Path, cache: Path
    ) -> None:
        assert evaluated(place, few, cache).code == 11
        artifacts = place / "artifacts"
        (whole,) = artifacts.glob("*.engine")
        for name in ("changed", "undescribed", "cut"):
            shutil.copy(whole, artifacts / f"{name}.engine")
            shutil.copy(whole.with_suffix(".json"), artifacts / f"{name}.json")
        (artifacts / "changed.engine").write_bytes(b"other")
        (artifacts / "undescribed.json").unlink()
        (artifacts / "cut.json").write_text("{")
        (artifacts / "benchmark.json").write_bytes(b"\xff\xfe")
        os.utime(whole)
        outcome = run(["report"], place, cache)
        assert outcome.code == 0, outcome.errors
        written = json.loads((place / "report" / "report.json").read_text())
        assert len(written["rows"]) == 1
        assert written["rows"][0]["accuracy"]["images"] == 20
        for name in ("changed", "undescribed", "cut", "benchmark"):
            assert any(f"{name}." in note for note in written["notes"]), name
            said = [line for line in outcome.errors.splitlines() if f"artifacts/{name}." in line]
            assert len(said) == 1, name
            assert said[0].startswith("left out: ")

    def test_a_damaged_evaluation_is_no_evidence(self, place: Path, few: Path, cache: Path) -> None:
        assert evaluated(place, few, cache).code == 11
        (finding,) = (place / "artifacts").glob("*.accuracy.json")
        for damage in (b"\xff\xfe", b"[" * 100_000, b"{}"):
            finding.write_bytes(damage)
            outcome = run(["report"], place, cache)
            assert outcome.code == 0, outcome.errors
            (said,) = [line for line in outcome.errors.splitlines() if finding.name in line]
            assert said.startswith("left out: ")
            written = json.loads((place / "report" / "report.json").read_text())
            assert written["rows"][0]["accuracy"] is None

    def test_names_that_are_no_utf8_are_spelled_out(
        self, place: Path, few: Path, cache: Path
    ) -> None:
        odd = few.with_name(os.fsdecode(b"caf\xe9"))
        few.rename(odd)
        for number, path in enumerate(sorted(odd.rglob("*.png"))):
            path.rename(path.with_name(os.fsdecode(b"\xe9%d.png" % number)))
        (odd / "bag" / os.fsdecode(b"\xff.png")).write_text("broken")
        assert evaluated(place, odd, cache, "--skip-unreadable").code == 11
        outcome = run(["report"], place, cache)
        assert outcome.code == 0, outcome.errors
        for kind in ("json", "md", "html"):
            (place / "report" / f"report.{kind}").read_text(encoding="utf-8")
        written = json.loads((place / "report" / "report.json").read_text())
        assert written["evaluation_root"] == "caf\\udce9"
        assert written["unreadable"] == ["bag/\\udcff.png"]


def test_a_graph_that_lost_its_sidecar_is_still_the_newest(place: Path, cache: Path) -> None:
    shutil.copy(GRAPH, place / "artifacts" / "orphan.onnx")
    outcome = run(["build-engine", "--backend", "onnxruntime"], place, cache)
    assert outcome.code == 0, outcome.errors
    assert "graph: artifacts/orphan.onnx (the newest of this model)" in outcome.errors


def test_engines_of_other_graphs_and_options_stand_side_by_side(place: Path, cache: Path) -> None:
    for name in ("a", "b"):
        (place / name).mkdir()
        shutil.copy(GRAPH, place / name / "model.onnx")
    with (place / "b" / "model.onnx").open("ab") as stream:
        stream.write(bytes((0x12, 1, 0x78)))  # another producer's name: the same graph, other bytes
    builds = (["a/model.onnx"], ["b/model.onnx"], ["a/model.onnx", "--threads", "1"],
              ["a/model.onnx", "--batch", "4"], ["a/model.onnx"])  # fmt: skip
    paths = []
    for arguments in builds:
        more = ["--backend", "onnxruntime", "-o", "out", "--json"]
        built = run(["build-engine", *arguments, *more], place, cache)
        assert built.code == 0, built.errors
        paths.append(json.loads(built.output)["path"])
    assert len(set(paths)) == 4
    assert paths[0] == paths[4]
    assert all(path.startswith("out/model_onnxruntime-") for path in paths)
