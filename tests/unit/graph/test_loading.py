"""Graphs that parse and still make no sense are refused when they are loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from vitdeploy.artifacts.onnx_model import OnnxModel, read_onnx_model
from vitdeploy.demo import assets
from vitdeploy.errors import InputError
from vitdeploy.graph.files import load, save


def two_layers() -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["input", "weight"], ["hidden"], name="first"),
        helper.make_node("Relu", ["hidden"], ["logits"], name="second"),
    ]
    values = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 4]) for n in ("input", "logits")
    ]
    weight = numpy_helper.from_array(np.eye(4, dtype=np.float32), "weight")
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def written(proto: onnx.ModelProto, path: Path) -> OnnxModel:
    path.write_bytes(proto.SerializeToString())
    return OnnxModel(path, "digest", read_onnx_model(assets.GRAPH).description)


def duplicated(proto: onnx.ModelProto) -> None:
    proto.graph.node.append(proto.graph.node[0])


def dangling_output(proto: onnx.ModelProto) -> None:
    proto.graph.output[0].name = "nowhere"


def short_weight(proto: onnx.ModelProto) -> None:
    weight = proto.graph.initializer[0]
    weight.raw_data = weight.raw_data[:10]


def weight_of_fewer_rows(proto: onnx.ModelProto) -> None:
    weight = proto.graph.initializer[0]
    weight.raw_data = weight.raw_data[:-16]


def moved_weight(proto: onnx.ModelProto, location: str) -> None:
    weight = proto.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    entry = weight.external_data.add()
    entry.key, entry.value = "location", location


def missing_weight(proto: onnx.ModelProto) -> None:
    moved_weight(proto, "missing.bin")


def weight_outside(proto: onnx.ModelProto) -> None:
    moved_weight(proto, "../../../../etc/passwd")


CASES: dict[Callable[[onnx.ModelProto], None], str] = {
    duplicated: "hidden",
    dangling_output: "nowhere",
    short_weight: "size",
    weight_of_fewer_rows: "shape",
    missing_weight: "missing.bin",
    weight_outside: "passwd|outside|directory",
}


def test_a_whole_graph_is_loaded_with_its_values(tmp_path: Path) -> None:
    graph = load(written(two_layers(), tmp_path / "a.onnx"))
    tensor = graph.graph.initializers["weight"].const_value
    assert tensor is not None
    np.testing.assert_array_equal(tensor.numpy(), np.eye(4))


@pytest.mark.parametrize("change", CASES, ids=lambda change: change.__name__)
def test_a_graph_that_makes_no_sense_is_named(
    tmp_path: Path, change: Callable[[onnx.ModelProto], None]
) -> None:
    proto = two_layers()
    change(proto)
    model = written(proto, tmp_path / "a.onnx")
    with pytest.raises(InputError, match=CASES[change]) as caught:
        load(model)
    assert f"{model.path} cannot be " in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.hint


def test_weights_beside_the_graph_must_be_whole(tmp_path: Path) -> None:
    demo = read_onnx_model(assets.GRAPH)
    saved = save(ir.load(demo.path), demo.description, tmp_path / "a.onnx", external_data=True)
    beside = tmp_path / "a.onnx.data"
    load(saved)
    beside.write_bytes(beside.read_bytes()[:1000])
    with pytest.raises(InputError, match=r"a\.onnx cannot be"):
        load(saved)
    beside.unlink()
    with pytest.raises(InputError, match=r"a\.onnx cannot be .*: .*a\.onnx\.data"):
        load(saved)
