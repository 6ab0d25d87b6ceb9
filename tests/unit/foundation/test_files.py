"""Artifacts on disk: whole or absent, strict when read, recognised by their content."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from vitdeploy.artifacts import reference
from vitdeploy.artifacts.engine import Engine, EngineManifest, read_engine, write_manifest
from vitdeploy.artifacts.files import (
    atomic_path,
    file_digest,
    from_json,
    read_text,
    require_file,
    to_json,
    write_bytes,
    write_text,
)
from vitdeploy.artifacts.lookup import newest
from vitdeploy.artifacts.onnx_model import (
    METADATA_KEY,
    ModelDescription,
    OnnxModel,
    read_onnx_model,
    recipe_digest,
    stem_of,
    write_sidecar,
)
from vitdeploy.artifacts.reference import ReferenceOutputs
from vitdeploy.artifacts.source import SourceDescription, description_in
from vitdeploy.errors import EngineError, InputError, OutputError
from vitdeploy.preprocessing import Preprocessing


def description(**changes: object) -> ModelDescription:
    source = SourceDescription(
        name="tiny",
        library="timm",
        architecture="vit_tiny_patch16_224",
        model_kwargs={"depth": 1},
        native_resolution=(32, 32),
        in_chans=3,
        labels=("a", "b"),
        weights_digest="w" * 64,
        preprocessing=Preprocessing(),
    )
    base = ModelDescription(source, (32, 48), "fp32", 20, "input", "logits")
    return replace(base, **changes)  # pyright: ignore[reportArgumentType]


def listing(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*"))


def write_half(target: Path, error: BaseException) -> None:
    with atomic_path(target) as temporary:
        temporary.write_bytes(b"half of the ne")
        raise error


class TestAtomicPath:
    @pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
    def test_what_interrupts_leaves_the_old_content(
        self, tmp_path: Path, error: type[BaseException]
    ) -> None:
        target = tmp_path / "graph.onnx"
        target.write_bytes(b"old")
        with pytest.raises(error):
            write_half(target, error())
        assert target.read_bytes() == b"old"
        assert listing(tmp_path) == ["graph.onnx"]

    def test_the_content_appears_at_the_end(self, tmp_path: Path) -> None:
        target = tmp_path / "new" / "deep" / "graph.onnx"
        with atomic_path(target) as temporary:
            assert temporary.parent == target.parent
            assert temporary.suffix == ".onnx"
            temporary.write_bytes(b"new")
            assert not target.exists()
        assert target.read_bytes() == b"new"
        assert listing(target.parent) == ["graph.onnx"]

    def test_two_writers_never_share_a_temporary_file(self, tmp_path: Path) -> None:
        target = tmp_path / "a.json"
        with atomic_path(target) as first, atomic_path(target) as second:
            assert first != second
            first.write_bytes(b"1")
            second.write_bytes(b"2")
        assert target.read_bytes() == b"1"
        assert listing(tmp_path) == ["a.json"]

    @pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
    def test_a_full_disk_is_an_output_error(self, tmp_path: Path, number: int) -> None:
        target = tmp_path / "a.json"
        target.write_bytes(b"old")
        with pytest.raises(OutputError, match="no space left") as caught:
            write_half(target, OSError(number, os.strerror(number)))
        assert "free some space" in str(caught.value.hint)
        assert isinstance(caught.value.__cause__, OSError)
        assert target.read_bytes() == b"old"
        assert listing(tmp_path) == ["a.json"]

    def test_a_really_full_disk(self, small_disk: Path) -> None:
        target = small_disk / "big.onnx"
        write_bytes(target, b"old")
        with pytest.raises(OutputError, match="no space left"):
            write_bytes(target, bytes(2 << 20))
        assert target.read_bytes() == b"old"
        assert listing(small_disk) == ["big.onnx"]

    @pytest.mark.parametrize("below", ["a.json", "deeper/a.json"])
    def test_a_file_where_the_folder_should_be(self, tmp_path: Path, below: str) -> None:
        (tmp_path / "results").write_text("a file")
        with pytest.raises(OutputError, match="cannot write"):
            write_text(tmp_path / "results" / below, "text")
        assert (tmp_path / "results").read_text() == "a file"

    def test_a_folder_where_the_file_should_be(self, tmp_path: Path) -> None:
        (tmp_path / "a.json").mkdir()
        with pytest.raises(OutputError, match="cannot write"):
            write_text(tmp_path / "a.json", "text")
        assert listing(tmp_path) == ["a.json"]

    def test_a_name_too_long(self, tmp_path: Path) -> None:
        with pytest.raises(OutputError, match="cannot write"):
            write_text(tmp_path / f"{'n' * 300}.json", "text")
        assert listing(tmp_path) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("root: a small file system cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@dataclass(frozen=True)
class Sample:
    name: str
    sizes: tuple[int, ...]
    note: str = ""


class TestJson:
    def test_round_trip(self) -> None:
        whole = description(passes=("a", "b"))
        assert from_json(to_json(whole), ModelDescription, origin="x") == whole

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ('{"name": "a", "sizes": [1], "colour": 3}', "colour"),
            ('{"name": "a"}', "sizes"),
            ('{"name": "a", "sizes": ["many"]}', "sizes"),
            ('{"name": "a", "sizes": 5}', "sizes"),
            ("[1, 2]", "Sample"),
            ("null", "Sample"),
            ('"text"', "Sample"),
            ("3", "Sample"),
            ('{"name": "a", ', "not valid JSON"),
            ("", "not valid JSON"),
        ],
    )
    def test_what_does_not_fit_is_refused_by_name(self, text: str, said: str) -> None:
        with pytest.raises(InputError, match=said) as caught:
            from_json(text, Sample, origin="here.json")
        assert str(caught.value).startswith("here.json")
        assert caught.value.hint

    def test_values_that_are_not_finite_are_never_written(self) -> None:
        with pytest.raises(ValueError, match="JSON"):
            to_json({"drop": float("nan")})


class TestNamedFiles:
    def test_near_names_are_suggested(self, tmp_path: Path) -> None:
        (tmp_path / "model_fp32.onnx").touch()
        with pytest.raises(InputError, match="does not exist") as caught:
            require_file(tmp_path / "model_fp23.onnx", what="graph")
        assert "model_fp32.onnx" in str(caught.value.hint)

    def test_a_folder_is_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="is a folder"):
            require_file(tmp_path, what="graph")

    def test_bytes_are_no_text(self, tmp_path: Path) -> None:
        (tmp_path / "a.json").write_bytes(b"\xff\xfe\x00")
        with pytest.raises(InputError, match="not text"):
            read_text(tmp_path / "a.json", what="manifest")

    def test_digest_is_sha256(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"abc")
        known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        assert file_digest(tmp_path / "a") == known


def built(folder: Path, stem: str = "tiny", content: bytes = b"engine") -> Engine:
    path = folder / f"{stem}.engine"
    path.write_bytes(content)
    manifest = EngineManifest(
        backend="onnxruntime",
        backend_version="1.0",
        model=description(),
        model_digest="m" * 64,
        engine_digest=file_digest(path),
        targets=("cpu",),
        device="a CPU",
        batch=(1, 8, 64),
        build_seconds=0.5,
        settings={"cpu_features": ["avx2"]},
    )
    engine = Engine(path, manifest)
    write_manifest(engine)
    return engine


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
        beside = engine.path.with_suffix(".json")
        beside.write_text(json.dumps(json.loads(beside.read_text()) | change))
        with pytest.raises(InputError, match=said):
            read_engine(engine.path)

    def test_a_missing_manifest_and_another_suffix(self, tmp_path: Path) -> None:
        engine = built(tmp_path)
        with pytest.raises(InputError, match="not an engine"):
            read_engine(engine.path.with_suffix(".json"))
        engine.path.with_suffix(".json").unlink()
        with pytest.raises(InputError, match="manifest"):
            read_engine(engine.path)


def small_graph() -> onnx.ModelProto:
    node = helper.make_node("Relu", ["input"], ["logits"])
    value = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 2]) for n in ("input", "logits")
    ]
    graph = helper.make_graph([node], "g", value[:1], value[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def saved_graph(path: Path, text: str | None = None) -> OnnxModel:
    proto = small_graph()
    entry = proto.metadata_props.add()
    entry.key, entry.value = METADATA_KEY, to_json(description()) if text is None else text
    path.write_bytes(proto.SerializeToString())
    return OnnxModel(path, file_digest(path), description())


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
        ]
        assert len({recipe_digest(variant) for variant in variants}) == len(variants)

    def test_file_names_hold_no_separator(self) -> None:
        named = replace(description().source, name="org/vit b.in1k")
        stem = stem_of(replace(description(), source=named), "0123456789")
        assert stem == "org-vit-b-in1k_32x48_fp32-01234567"


class TestNewest:
    def test_the_newest_of_this_model(self, tmp_path: Path) -> None:
        for age, stem in enumerate(("young", "old", "older")):
            model = saved_graph(tmp_path / f"{stem}.onnx")
            write_sidecar(model)
            os.utime(model.path, (1000 - age, 1000 - age))
        assert newest(tmp_path, "onnx", name="tiny") == tmp_path / "young.onnx"
        (tmp_path / "young.onnx").unlink()
        assert newest(tmp_path, "onnx", name="tiny") == tmp_path / "old.onnx"
        assert newest(tmp_path, "onnx", name="tiny", precision="fp16") is None
        assert newest(tmp_path, "onnx", name="other") is None
        assert newest(tmp_path, "engine", name="tiny") is None
        assert newest(tmp_path / "none", "onnx", name="tiny") is None

    def test_weights_tell_models_apart_before_names(self, tmp_path: Path) -> None:
        engine = built(tmp_path)
        found = newest(tmp_path, "engine", name="renamed", weights_digest="w" * 64)
        assert found == engine.path
        assert newest(tmp_path, "engine", name="tiny", weights_digest="v" * 64) is None

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
        assert newest(tmp_path, "onnx", name="tiny") == tmp_path / "good.onnx"


def outputs() -> ReferenceOutputs:
    logits = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    return ReferenceOutputs(logits, ("x", "y", "z"), "weights", "preprocessing", (32, 48))


def rewritten(path: Path, change: Callable[[dict[str, object]], object]) -> None:
    with np.load(path) as content:
        header, logits = json.loads(str(content["header"])), content["logits"]
    changed = change(header)
    np.savez(path, logits=logits, header=np.array(json.dumps(changed)))


class TestReferenceOutputs:
    def test_round_trip(self, tmp_path: Path) -> None:
        reference.save(outputs(), tmp_path / "r.npz")
        loaded = reference.load(tmp_path / "r.npz")
        np.testing.assert_array_equal(loaded.logits, outputs().logits)
        own, read = asdict(outputs()), asdict(loaded)
        assert all(own[key] == read[key] for key in own if key != "logits")
        assert listing(tmp_path) == ["r.npz"]

    def test_rows_follow_the_images_asked_for(self) -> None:
        np.testing.assert_array_equal(outputs().for_images(["z", "x"]), outputs().logits[[2, 0]])
        with pytest.raises(InputError, match="lack 1 of 2"):
            outputs().for_images(["x", "other"])

    @pytest.mark.parametrize(
        ("asked", "named"),
        [
            (("other", "preprocessing", (32, 48)), "weights"),
            (("weights", "other", (32, 48)), "preprocessing"),
            (("weights", "preprocessing", (48, 32)), "resolution"),
            (("other", "other", (32, 48)), "weights and preprocessing"),
        ],
    )
    def test_another_source_is_refused(
        self, asked: tuple[str, str, tuple[int, int]], named: str
    ) -> None:
        outputs().require_source("weights", "preprocessing", (32, 48))
        with pytest.raises(InputError, match=f"other {named}$"):
            outputs().require_source(*asked)

    @pytest.mark.parametrize(
        "change",
        [
            lambda header: header | {"schema_version": 2},
            lambda header: header | {"surprise": 1},
            lambda header: header | {"image_digests": ["x", "y"]},
            lambda header: header | {"resolution": [32]},
            lambda header: {k: v for k, v in header.items() if k != "weights_digest"},
            lambda header: {k: v for k, v in header.items() if k != "image_digests"},
            lambda header: list(header),
        ],
        ids=["version", "unknown", "count", "resolution", "no weights", "no images", "list"],
    )
    def test_another_header_is_refused(
        self, tmp_path: Path, change: Callable[[dict[str, object]], object]
    ) -> None:
        path = tmp_path / "r.npz"
        reference.save(outputs(), path)
        rewritten(path, change)
        with pytest.raises(InputError, match=r"r\.npz") as caught:
            reference.load(path)
        assert caught.value.hint

    def test_other_files_are_refused(self, tmp_path: Path) -> None:
        good, path = tmp_path / "good.npz", tmp_path / "bad.npz"
        reference.save(outputs(), good)
        whole = good.read_bytes()
        array = tmp_path / "array.npy"
        np.save(array, np.zeros(3))
        np.savez(tmp_path / "other.npz", logits=np.zeros(3))
        contents = [b"", b"text", array.read_bytes(), (tmp_path / "other.npz").read_bytes()]
        contents += [whole[:length] for length in range(1, len(whole), 41)]
        damaged = bytearray(whole)
        damaged[60:80] = bytes(20)
        for content in [*contents, bytes(damaged)]:
            path.write_bytes(content)
            with pytest.raises(InputError, match=r"bad\.npz"):
                reference.load(path)


class TestDescriptionIn:
    @pytest.mark.parametrize(
        "content",
        [b"", b"\x02", b"\xff" * 8, (2).to_bytes(8, "little") + b"[]", b"\x05" + bytes(7) + b"{}"],
        ids=["empty", "short", "huge", "list", "cut"],
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
