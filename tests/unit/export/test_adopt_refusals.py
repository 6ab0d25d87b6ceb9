"""What cannot be adopted, and what an adopted graph may not be: errors with their remedies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from foreign_graphs import FLAGS, Exporting, changed, export, timm_vit
from torch import nn

from vitdeploy.errors import ExportError, InputError
from vitdeploy.export.adopting import adopt as adopting
from vitdeploy.export.adopting import open_batch
from vitdeploy.export.adopting.adopt import adopt


@pytest.fixture(scope="module")
def fixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(timm_vit(), tmp_path_factory.mktemp("fixed") / "vit.onnx", Exporting(14))


def _as_half(proto: onnx.ModelProto) -> None:
    proto.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT16


def _half_inside(proto: onnx.ModelProto) -> None:
    first = proto.graph.node[0]
    there = onnx.helper.make_node("Cast", ["images"], ["half"], to=onnx.TensorProto.FLOAT16)
    back = onnx.helper.make_node("Cast", ["half"], ["back"], to=onnx.TensorProto.FLOAT)
    for node in proto.graph.node:
        node.input[:] = ["back" if name == "images" else name for name in node.input]
    assert first is proto.graph.node[0]
    proto.graph.node.insert(0, back)
    proto.graph.node.insert(0, there)


def _quantized(proto: onnx.ModelProto) -> None:
    scale = onnx.numpy_helper.from_array(np.float32(0.1), "scale")
    zero = onnx.numpy_helper.from_array(np.int8(0), "zero")
    proto.graph.initializer.extend([scale, zero])
    answer = proto.graph.output[0].name
    proto.graph.node[-1].output[0] = "float"
    proto.graph.node.append(
        onnx.helper.make_node("QuantizeLinear", ["float", "scale", "zero"], ["q"])
    )
    proto.graph.node.append(
        onnx.helper.make_node("DequantizeLinear", ["q", "scale", "zero"], [answer])
    )


def _second_input(proto: onnx.ModelProto) -> None:
    kind = onnx.TensorProto.INT64
    proto.graph.input.append(onnx.helper.make_tensor_value_info("attention_mask", kind, [1, 7]))


def _flat_input(proto: onnx.ModelProto) -> None:
    del proto.graph.input[0].type.tensor_type.shape.dim[1:]


def _of_one_runtime(proto: onnx.ModelProto) -> None:
    proto.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    (node,) = [n for n in proto.graph.node if n.op_type == "Conv"]
    node.domain, node.op_type = "com.microsoft", "NhwcConv"


def _resampled(proto: onnx.ModelProto) -> None:
    scales = onnx.numpy_helper.from_array(np.array([1, 1, 1, 1], np.float32), "scales")
    proto.graph.initializer.append(scales)
    for node in proto.graph.node:
        node.input[:] = ["resized" if name == "images" else name for name in node.input]
    resize = onnx.helper.make_node("Resize", ["images", "", "scales"], ["resized"], mode="cubic")
    proto.graph.node.insert(0, resize)


def _branching(proto: onnx.ModelProto) -> None:
    answer = proto.graph.output[0]
    proto.graph.node[-1].output[0] = "before"
    for name in ("positive", "negative"):
        value = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
        op = "Identity" if name == "positive" else "Neg"
        node = onnx.helper.make_node(op, ["before"], [name])
        graph = onnx.helper.make_graph([node], name, [], [value])
        if name == "positive":
            then = graph
    total = onnx.helper.make_node("ReduceMax", ["before"], ["total"], keepdims=0)
    asked = onnx.helper.make_node("Cast", ["total"], ["asked"], to=onnx.TensorProto.BOOL)
    branch = onnx.helper.make_node(
        "If", ["asked"], [answer.name], then_branch=then, else_branch=graph
    )
    proto.graph.node.extend([total, asked, branch])


REFUSED = {
    "float16": (_as_half, "takes float16, not float32", "in float32"),
    "float16 inside": (_half_inside, "computes in float16", "--fp16"),
    "quantized": (_quantized, "quantized already", "float32 graph it was made from"),
    "a mask beside the images": (_second_input, "takes 2 inputs", "vision tower"),
    "no images": (_flat_input, "which are not images", "(batch, channels, height, width)"),
    "one runtime's operators": (_of_one_runtime, "com.microsoft.NhwcConv", "before a runtime"),
    "Resize": (_resampled, "resamples or branches while it runs (Resize)", "one size"),
    "If": (_branching, "resamples or branches while it runs (If)", "one size"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_taken_in_is_refused_with_a_remedy(
    name: str, fixed: Path, tmp_path: Path
) -> None:
    change, said, remedy = REFUSED[name]
    path = changed(fixed, change, tmp_path)
    with pytest.raises(InputError) as raised:
        adopt(path, tmp_path / "out", FLAGS)
    assert said in str(raised.value)
    assert remedy in str(raised.value.hint)
    assert not (tmp_path / "out").exists()


def test_a_batch_that_is_mixed_cannot_be_opened(tmp_path: Path) -> None:
    class Mixed(nn.Module):
        """Answers relative to the mean over the batch."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = timm_vit()

        def forward(self, x):  # type: ignore[no-untyped-def]
            y = self.inner(x)
            return y - 0.5 * y.mean(0, keepdim=True)

    path = export(Mixed().eval(), tmp_path / "mixed.onnx", Exporting(14, batch=2))
    with pytest.raises(
        ExportError, match=r"cannot be opened at /ReduceMean.*across images"
    ) as raised:
        adopt(path, tmp_path, FLAGS)
    assert "dynamic batch" in str(raised.value.hint)


DEFECTS = {
    "a class token for one image alone": (
        "_repeated",
        lambda graph, node, index, array, axis: node.inputs[index],
    ),
    "the batch kept in every Reshape": ("_open", lambda *given: None),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_batch_opened_wrongly_is_caught(
    name: str, fixed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attribute, defect = DEFECTS[name]
    monkeypatch.setattr(open_batch, attribute, defect)
    with pytest.raises(ExportError, match=r"batch of 2|at batch 2"):
        adopt(fixed, tmp_path / "out", FLAGS)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("part", ["LayerNormalization", "MatMul", "Softmax"])
def test_a_copy_that_computes_otherwise_is_not_written(
    part: str, fixed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = adopting.normal_form

    def wrong(model: ir.Model, *, opset: int) -> ir.Model:
        model = right(model, opset=opset)
        node = next(node for node in model.graph if node.op_type == part)
        if part == "LayerNormalization":
            node.attributes["epsilon"] = ir.AttrFloat32("epsilon", 1e-3)
        elif part == "Softmax":
            node.attributes["axis"] = ir.AttrInt64("axis", -2)
        else:
            weight = node.inputs[1]
            assert weight is not None
            assert weight.const_value is not None
            scaled = weight.const_value.numpy() * np.float32(1.001)
            weight.const_value = ir.Tensor(scaled, name=weight.name)
        return model

    monkeypatch.setattr(adopting, "normal_form", wrong)
    with pytest.raises(ExportError, match="differs from the file"):
        adopt(fixed, tmp_path / "out", FLAGS)
    assert not (tmp_path / "out").exists()


def test_answers_that_hardly_vary_prove_nothing(fixed: Path, tmp_path: Path) -> None:
    def silenced(proto: onnx.ModelProto) -> None:
        for tensor in proto.graph.initializer:
            if tensor.name == "head.weight":
                tensor.raw_data = bytes(len(tensor.raw_data))

    with pytest.raises(ExportError, match="nearly the same for every image"):
        adopt(changed(fixed, silenced, tmp_path), tmp_path / "out", FLAGS)
