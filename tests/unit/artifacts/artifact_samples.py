"""Small artifacts that tests of several kinds read and damage."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from vitdeploy.artifacts.engine import Engine, EngineManifest, write_manifest
from vitdeploy.artifacts.files import file_digest, to_json
from vitdeploy.artifacts.onnx_model import METADATA_KEY, ModelDescription, OnnxModel
from vitdeploy.artifacts.source import SourceDescription
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
