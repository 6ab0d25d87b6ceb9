"""Graphs on disk, and checkpoints: recognised by their content."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from artifact_samples import description, saved_graph, small_graph

from vitdeploy.artifacts.files import to_json
from vitdeploy.artifacts.onnx_model import read_onnx_model, recipe_digest, stem_of
from vitdeploy.artifacts.source import description_in
from vitdeploy.errors import InputError
from vitdeploy.preprocessing import Preprocessing


class TestOnnxModel:
    def test_round_trip(self, tmp_path: Path) -> None:
        model = saved_graph(tmp_path / "a.onnx")
        assert read_onnx_model(model.path) == model
        assert model.description.input_shape == (3, 32, 48)

    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"not a graph at all",
            os.urandom(4096),
            onnx.ModelProto(ir_version=8).SerializeToString(),
            small_graph().SerializeToString()[:-20],
        ],
        ids=["empty", "text", "random", "no graph", "truncated"],
    )
    def test_garbage_is_refused(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "a.onnx"
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"a\.onnx is not an ONNX graph") as caught:
            read_onnx_model(path)
        assert caught.value.hint

    def test_a_graph_cut_anywhere_is_refused(self, tmp_path: Path) -> None:
        whole = saved_graph(tmp_path / "whole.onnx").path.read_bytes()
        path = tmp_path / "cut.onnx"
        for length in range(0, len(whole), 7):
            path.write_bytes(whole[:length])
            with pytest.raises(InputError):
                read_onnx_model(path)

    def test_a_foreign_graph_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "foreign.onnx"
        path.write_bytes(small_graph().SerializeToString())
        with pytest.raises(InputError, match="does not describe itself"):
            read_onnx_model(path)

    @pytest.mark.parametrize(
        ("change", "said"),
        [({"schema_version": 2}, "version"), ({"schema_version": 10}, "version"), ({"x": 1}, "x")],
        ids=str,
    )
    def test_another_schema_is_refused(
        self, tmp_path: Path, change: dict[str, object], said: str
    ) -> None:
        text = json.dumps(json.loads(to_json(description())) | change, indent=2)
        model = saved_graph(tmp_path / "a.onnx", text)
        with pytest.raises(InputError, match=said):
            read_onnx_model(model.path)

    @pytest.mark.parametrize("text", ["[" * 100_000, "9" * 5000, "NaN", "5", "null"])
    def test_metadata_that_is_no_description_is_refused(self, tmp_path: Path, text: str) -> None:
        with pytest.raises(InputError, match=r"a\.onnx is not"):
            read_onnx_model(saved_graph(tmp_path / "a.onnx", text).path)

    def test_a_graph_that_may_not_be_read_is_named(self, tmp_path: Path, modes_bind: None) -> None:
        path = saved_graph(tmp_path / "a.onnx").path
        path.chmod(0)
        with pytest.raises(InputError, match=r"a\.onnx cannot be read: Permission denied"):
            read_onnx_model(path)

    def test_compact_metadata_is_as_good(self, tmp_path: Path) -> None:
        text = json.dumps(json.loads(to_json(description())), separators=(",", ":"))
        assert read_onnx_model(saved_graph(tmp_path / "a.onnx", text).path)

    def test_the_recipe_digest_depends_on_all_that_decides_the_graph(self) -> None:
        base = description()
        source = base.source
        variants = [
            base,
            replace(base, resolution=(48, 32)),
            replace(base, precision="int8-fp32"),
            replace(base, opset=19),
            replace(base, passes=("a",)),
            replace(base, parent_digest="p"),
            replace(base, source=replace(source, weights_digest="v")),
            replace(base, source=replace(source, preprocessing=Preprocessing(crop_pct=0.9))),
            replace(base, source=replace(source, labels=tuple(reversed(source.labels)))),
            replace(base, source=replace(source, task="multilabel")),
            replace(base, source=replace(source, name="other")),
            replace(base, output_name="other"),
        ]
        assert len({recipe_digest(variant) for variant in variants}) == len(variants)

    def test_file_names_hold_no_separator(self) -> None:
        named = replace(description().source, name="org/vit b.in1k")
        stem = stem_of(replace(description(), source=named), "0123456789")
        assert stem == "org-vit-b-in1k_32x48_fp32-01234567"

    @pytest.mark.parametrize("letter", ["n", "\u6f22", "\U00020000"])
    def test_file_names_are_short_enough_for_any_disk(self, letter: str) -> None:
        named = replace(description().source, name=400 * letter)
        stem = stem_of(replace(description(), source=named), "0123456789")
        assert stem == f"{120 // len(letter.encode()) * letter}_32x48_fp32-01234567"


def framed(header: bytes) -> bytes:
    """A safetensors file of this header alone."""
    return len(header).to_bytes(8, "little") + header


class TestDescriptionIn:
    @pytest.mark.parametrize("text", ["[" * 100_000, "9" * 5000, "null", '{"labels": "abc"}'])
    def test_a_description_that_is_none_is_refused(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "w.safetensors"
        path.write_bytes(framed(json.dumps({"__metadata__": {"vitdeploy": text}}).encode()))
        with pytest.raises(InputError, match=r"w\.safetensors is not"):
            description_in(path)

    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"\x02",
            b"\xff" * 8,
            framed(b"[]"),
            b"\x05" + bytes(7) + b"{}",
            framed(b"[" * 100_000),
            framed(b"9" * 5000),
            framed(b'{"__metadata__": "vitdeploy"}'),
            framed(b'{"__metadata__": null}'),
            framed(b'{"__metadata__": ["vitdeploy"]}'),
            framed(b'{"__metadata__": {"vitdeploy": 5}}'),
            framed(b"\xff\xfe"),
        ],
        ids=[
            "empty",
            "short",
            "huge",
            "list",
            "cut",
            "deep",
            "digits",
            "text",
            "null",
            "names",
            "number",
            "bytes",
        ],
    )
    def test_other_files_are_refused(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "w.safetensors"
        path.write_bytes(content)
        with pytest.raises(InputError, match="not a safetensors file"):
            description_in(path)

    @pytest.mark.parametrize("header", [{}, {"__metadata__": {"format": "pt"}}])
    def test_a_foreign_checkpoint_has_none(self, tmp_path: Path, header: object) -> None:
        text = json.dumps(header).encode()
        path = tmp_path / "w.safetensors"
        path.write_bytes(len(text).to_bytes(8, "little") + text)
        assert description_in(path) is None
