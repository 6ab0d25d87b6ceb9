"""Engines on disk, and finding the artifacts of a model."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from artifact_samples import built, saved_graph, small_graph

from vitdeploy.artifacts.engine import beside, read_engine
from vitdeploy.artifacts.lookup import made_from
from vitdeploy.artifacts.onnx_model import ModelDescription, write_sidecar
from vitdeploy.errors import EngineError, InputError, OutputError


class TestEngine:
    def test_round_trip(self, tmp_path: Path) -> None:
        engine = built(tmp_path)
        assert read_engine(engine.path) == engine
        assert engine.size_bytes == len(b"engine")

    def test_changed_bytes_are_refused(self, tmp_path: Path) -> None:
        engine = built(tmp_path)
        engine.path.write_bytes(b"Engine")
        with pytest.raises(EngineError, match="not the file") as caught:
            read_engine(engine.path)
        assert caught.value.hint

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"schema_version": 2}, "version"),
            ({"schema_version": 10}, "version"),
            ({"kind": "onnx"}, "kind|engine"),
            ({"surprise": 1}, "surprise"),
        ],
        ids=str,
    )
    def test_another_schema_is_refused(
        self, tmp_path: Path, change: dict[str, object], said: str
    ) -> None:
        engine = built(tmp_path)
        manifest = engine.path.with_suffix(".json")
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | change))
        with pytest.raises(InputError, match=said):
            read_engine(engine.path)

    @pytest.mark.parametrize(
        "change",
        [
            {"batch": [-1, 0, 5]},
            {"batch": [4, 2, 8]},
            {"batch": [1, 8]},
            {"settings": {"cpu_features": 5}},
            {"settings": {"cpu_features": [1, 2]}},
            {"build_seconds": "0.5"},
            {"targets": "cpu"},
        ],
        ids=str,
    )
    def test_values_that_make_no_sense_are_refused(
        self, tmp_path: Path, change: dict[str, object]
    ) -> None:
        engine = built(tmp_path)
        manifest = engine.path.with_suffix(".json")
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | change))
        with pytest.raises(InputError, match=r"batch|cpu_features|build_seconds|targets") as caught:
            read_engine(engine.path)
        assert "tiny.json" in str(caught.value)

    def test_findings_need_a_folder_that_can_be_written(
        self, tmp_path: Path, modes_bind: None
    ) -> None:
        engine = built(tmp_path)
        assert beside(engine.path, "benchmark.json") == tmp_path / "benchmark.json"
        tmp_path.chmod(0o500)
        try:
            with pytest.raises(OutputError, match=r"benchmark\.json") as caught:
                beside(engine.path, "benchmark.json")
        finally:
            tmp_path.chmod(0o700)
        assert "copy the engine" in str(caught.value.hint)

    def test_a_missing_manifest_and_another_suffix(self, tmp_path: Path) -> None:
        engine = built(tmp_path)
        with pytest.raises(InputError, match="not an engine"):
            read_engine(engine.path.with_suffix(".json"))
        engine.path.with_suffix(".json").unlink()
        with pytest.raises(InputError, match=r"has no manifest: .* is not beside it"):
            read_engine(engine.path)


def named(name: str) -> Callable[[ModelDescription], bool]:
    return lambda found: found.source.name == name


class TestNewest:
    def test_those_wanted_and_the_newest_first(self, tmp_path: Path) -> None:
        for age, stem in enumerate(("young", "old", "older")):
            model = saved_graph(tmp_path / f"{stem}.onnx")
            write_sidecar(model)
            os.utime(model.path, (1000 - age, 1000 - age))
        found = made_from(tmp_path, "onnx", named("tiny"))
        assert [path.stem for path in found] == ["young", "old", "older"]
        assert made_from(tmp_path, "onnx", named("other")) == []
        assert made_from(tmp_path, "engine", named("tiny")) == []
        assert made_from(tmp_path / "none", "onnx", named("tiny")) == []

    def test_an_engine_is_known_by_its_graph(self, tmp_path: Path) -> None:
        engine = built(tmp_path)
        assert made_from(tmp_path, "engine", named("tiny")) == [engine.path]
        assert made_from(tmp_path, "engine", named("other")) == []

    @pytest.mark.parametrize(
        "text",
        [
            "{",
            "[]",
            "null",
            '{"kind": "onnx"}',
            '{"kind": "onnx", "description": 3}',
            '{"kind": "onnx", "description": {"source": "tiny"}}',
            '{"kind": "onnx", "description": {"source": null}}',
        ],
    )
    def test_other_json_files_are_passed_over(self, tmp_path: Path, text: str) -> None:
        write_sidecar(saved_graph(tmp_path / "good.onnx"))
        (tmp_path / "zz.json").write_text(text)
        (tmp_path / "zz.onnx").touch()
        assert made_from(tmp_path, "onnx", named("tiny")) == [tmp_path / "good.onnx"]

    @pytest.mark.parametrize("sidecar", [None, "", "{", '{"kind": "onnx"}'])
    def test_a_graph_without_a_whole_sidecar_says_itself_what_it_is(
        self, tmp_path: Path, sidecar: str | None
    ) -> None:
        """A kill between the two writes leaves the graph alone."""
        orphan = saved_graph(tmp_path / "orphan.onnx").path
        if sidecar is not None:
            orphan.with_suffix(".json").write_text(sidecar)
        (tmp_path / ".tiny.0123.partial.onnx").write_bytes(orphan.read_bytes())
        said: list[str] = []
        assert made_from(tmp_path, "onnx", named("tiny"), left_out=said.append) == [orphan]
        assert made_from(tmp_path, "onnx", named("other"), left_out=said.append) == []
        assert said == []

    def test_what_nothing_describes_is_passed_over_aloud(self, tmp_path: Path) -> None:
        engine = built(tmp_path)
        (tmp_path / "lost.engine").write_bytes(b"engine")
        (tmp_path / "damaged.engine").write_bytes(b"engine")
        (tmp_path / "damaged.json").write_text("{")
        (tmp_path / "foreign.onnx").write_bytes(small_graph().SerializeToString())
        said: list[str] = []
        for kind, path in (("engine", [engine.path]), ("onnx", [])):
            assert made_from(tmp_path, kind, named("tiny"), left_out=said.append) == path
        assert [line.split("/")[-1].split(" ")[0] for line in said] == [
            "damaged.json",
            "lost.engine",
            "foreign.onnx",
        ]
        assert all(line.startswith("left out: ") for line in said)

    def test_a_folder_that_cannot_be_read_is_not_taken_for_an_empty_one(
        self, tmp_path: Path, modes_bind: None
    ) -> None:
        built(tmp_path)
        tmp_path.chmod(0)
        try:
            with pytest.raises(InputError, match="cannot be read: Permission denied"):
                made_from(tmp_path, "engine", named("tiny"))
        finally:
            tmp_path.chmod(0o700)
