"""Multiply-accumulates and parameters against PyTorch's own counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from small_graphs import exported, lively, parsed, read
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from vitdeploy.calibration.plan import plan
from vitdeploy.calibration.qdq import insert_qdq
from vitdeploy.errors import InputError
from vitdeploy.export.passes.half import to_half_types
from vitdeploy.export.passes.module_names import name_nodes_by_module
from vitdeploy.graph import shapes
from vitdeploy.graph.inspection import inspection_of, read_graph
from vitdeploy.graph.summary import Work
from vitdeploy.preprocessing import Size

VIT: tuple[str, Size, dict[str, Any]] = (
    "vit_tiny_patch16_224",
    (64, 96),
    {"depth": 2, "img_size": (64, 96), "num_classes": 10},
)
MODELS = [
    VIT,
    ("vit_tiny_r_s16_p8_224", (64, 96), {"depth": 1, "img_size": (64, 96), "num_classes": 10}),
    (
        "swin_tiny_patch4_window7_224",
        (112, 112),
        {"depths": (2, 1), "num_heads": (3, 6), "img_size": 112, "num_classes": 10},
    ),
]


def torch_macs(call: Any, *tensors: torch.Tensor) -> float:
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        call(*tensors)
    return counter.get_total_flops() / 2


def work_of(text: str, folder: Path) -> Work:
    return read_graph(parsed(text, folder)).summary.work


@pytest.mark.parametrize(("name", "size", "kwargs"), MODELS, ids=[m[0] for m in MODELS])
def test_macs_are_pytorchs(name: str, size: Size, kwargs: dict[str, Any], tmp_path: Path) -> None:
    module = lively(name, **kwargs)
    found = read(exported(module, size), tmp_path)
    work = found.summary.work
    # Swin's biases between tokens are no positions, though they are added as such.
    assert (found.positions() is None) == name.startswith("swin")
    assert work.macs == torch_macs(module, torch.zeros(1, 3, *size))
    assert work.uncounted == {}
    assert work.by_type == {"float32": work.macs}


@pytest.fixture(scope="module")
def vit() -> nn.Module:
    return lively(VIT[0], **VIT[2])


@pytest.fixture(scope="module")
def traced(vit: nn.Module) -> onnx.ModelProto:
    return ir.to_proto(name_nodes_by_module(exported(vit, VIT[1])))


@pytest.fixture
def graph(traced: onnx.ModelProto) -> ir.Model:
    """The ViT's graph anew for each test, which may change it."""
    return ir.from_proto(traced)


def test_parameters_and_attention_of_a_vit(vit: nn.Module, graph: ir.Model, tmp_path: Path) -> None:
    found = read(graph, tmp_path).summary
    count = sum(parameter.numel() for parameter in vit.parameters())
    assert found.parameters == count
    # Two products of tokens x tokens x width in each of two blocks: 4x6 patches, a class token.
    assert found.work.attention_macs == 2 * 2 * 25 * 25 * 192
    assert found.operators["LayerNormalization"].nodes == 5
    assert found.operators["Conv"].macs == 24 * 192 * 3 * 16 * 16
    assert 4 * count <= found.constants["float32"].size_bytes <= 4 * (count + 8)
    assert sum(of.size_bytes for of in found.constants.values()) < found.size_bytes


def test_half_and_quantized_graphs_cost_the_same(graph: ir.Model, tmp_path: Path) -> None:
    plain = read(graph, tmp_path).summary
    chosen = plan(graph)
    insert_qdq(graph, chosen, dict.fromkeys(chosen.activations, 0.05))
    int8 = read(graph, tmp_path).summary
    attention = plain.work.attention_macs
    patches = plain.operators["Conv"].macs
    assert int8.work.macs == plain.work.macs
    assert int8.work.by_type == {
        "int8": plain.work.macs - attention - patches,
        "float32": attention + patches,
    }
    assert int8.operators["MatMul"].types == {"int8": 8, "float32": 4}
    half = read(to_half_types(graph), tmp_path).summary
    assert half.work.by_type == {
        "int8": int8.work.by_type["int8"],
        "float16": int8.work.by_type["float32"],
    }
    assert half.operators["MatMul"].types == {"int8": 8, "float16": 4}


def test_scales_and_zero_points_are_no_parameters(
    vit: nn.Module, graph: ir.Model, tmp_path: Path
) -> None:
    chosen = plan(graph)
    insert_qdq(graph, chosen, dict.fromkeys(chosen.activations, 0.05))
    for name in {node.weight for node in chosen.linear}:
        del graph.graph.initializers[name]
    found = read(graph, tmp_path).summary
    assert found.parameters == sum(parameter.numel() for parameter in vit.parameters())


def test_weights_alone_in_int8_are_told_apart(tmp_path: Path) -> None:
    work = work_of(
        """g (float[1, 4, 8] x, int8[8, 16] w, float[16] s) => (float[1, 4, 16] y) {
            d = DequantizeLinear <axis = 1> (w, s)
            y = MatMul(x, d)
        }""",
        tmp_path,
    )
    assert work.by_type == {"int8 weights": 4 * 8 * 16}


def plain_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return (query @ key.transpose(-2, -1)).softmax(-1) @ value


QUERY, KEY, VALUE = torch.zeros(1, 3, 5, 16), torch.zeros(1, 3, 7, 16), torch.zeros(1, 3, 7, 16)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            """g (float[1, 6, 9, 10] x, float[8, 3, 3, 2] w) => (y) {
                y = Conv <group = 2, pads = [1, 0, 1, 0], strides = [2, 1]> (x, w)
            }""",
            torch_macs(
                lambda x, w: functional.conv2d(x, w, stride=(2, 1), padding=(1, 0), groups=2),
                torch.zeros(1, 6, 9, 10),
                torch.zeros(8, 3, 3, 2),
            ),
        ),
        (
            """g (float[1, 6, 9, 10] x, float[6, 8, 2, 3] w) => (y) {
                y = ConvTranspose <strides = [2, 2]> (x, w)
            }""",
            torch_macs(
                lambda x, w: functional.conv_transpose2d(x, w, stride=2),
                torch.zeros(1, 6, 9, 10),
                torch.zeros(6, 8, 2, 3),
            ),
        ),
        ("g (float[5, 4] a, float[7, 5] b) => (y) { y = Gemm <transA=1, transB=1> (a, b) }", 140),
        ("g (float[2, 3, 4, 5] a, float[5] b) => (y) { y = MatMul(a, b) }", 2 * 3 * 4 * 5 // 2),
        (
            "g (float[1, 3, 5, 16] a, float[1, 3, 7, 16] b) => (y) "
            '{ y = Einsum <equation = "bhid,bhjd->bhij"> (a, b) }',
            torch_macs(lambda a, b: torch.einsum("bhid,bhjd->bhij", a, b), QUERY, KEY),
        ),
        (
            "g (float[1, 3, 5, 16] a, float[1, 3, 16, 7] b) => (y) "
            '{ y = Einsum <equation = "...ij, ...jk -> ...ik"> (a, b) }',
            3 * 5 * 16 * 7,
        ),
        (
            "g (float[1, 3, 5, 16] q, float[1, 3, 7, 16] k, float[1, 3, 7, 16] v) => (y) "
            "{ y = Attention(q, k, v) }",
            torch_macs(plain_attention, QUERY, KEY, VALUE),
        ),
        (
            "g (float[1, 5, 48] q, float[1, 7, 48] k, float[1, 7, 48] v) => (y) "
            "{ y = Attention <q_num_heads = 3, kv_num_heads = 3> (q, k, v) }",
            torch_macs(plain_attention, QUERY, KEY, VALUE),
        ),
        ("g (uint8[1, 5, 8] a, uint8[8, 3] b) => (y) { y = MatMulInteger(a, b) }", 5 * 8 * 3),
    ],
    ids=["conv", "transposed", "gemm", "vector", "einsum", "ellipsis", "4d", "3d", "integer"],
)
def test_operators_against_pytorch_or_by_hand(text: str, expected: float, tmp_path: Path) -> None:
    """For one image: a graph of a fixed batch of two is halved."""
    work = work_of(text, tmp_path)
    assert work.macs == expected
    assert work.uncounted == {}


def test_what_cannot_be_counted_is_named(tmp_path: Path) -> None:
    work = work_of(
        """g (float[1, 4, 8] x, bool c) => (float[1, 4, 8] y) {
            a = com.microsoft.FusedMatMul(x, x)
            b = If (c) <
                then_branch = t () => (float[1, 4, 4] p) { p = MatMul(x, x) },
                else_branch = e () => (float[1, 4, 4] q) { q = Identity(a) }
            >
            y = MatMul(b, x)
        }""",
        tmp_path,
    )
    assert work.uncounted["com.microsoft.FusedMatMul"] == 1
    assert work.uncounted["MatMul"] >= 1


class Pooled(nn.Module):
    """Tokens whose number comes out of divisions: inference alone loses it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 16, 8, stride=8)
        self.head = nn.Linear(16, 5)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        rows, columns = images.shape[2] // 8, images.shape[3] // 8
        places = torch.arange(rows).float()[:, None] / rows + torch.arange(columns)[None].float()
        tokens = self.embed(images).flatten(2).transpose(1, 2)
        return self.head(tokens * places.reshape(1, rows * columns, 1))


def test_dynamic_sizes_are_counted_at_the_size_asked_for(tmp_path: Path) -> None:
    module = Pooled().eval()
    graph = exported(module, (32, 48), dynamic=True)
    for size in ((32, 48), (64, 24)):
        work = read(graph, tmp_path, resolution=size).summary.work
        assert work.macs == torch_macs(module, torch.zeros(1, 3, *size))
        assert work.input_shape == (1, 3, *size)
    unknown = read(graph, tmp_path).summary.work
    assert unknown.macs == 0
    assert "--res" in unknown.problem


def test_without_folding_the_divided_shapes_are_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proof above can fail: here it does."""
    monkeypatch.setattr(shapes, "_SHAPE_ARITHMETIC", frozenset())
    work = read(exported(Pooled(), (32, 48), dynamic=True), tmp_path, resolution=(32, 48))
    assert work.summary.work.uncounted


# --- files that mean no good -------------------------------------------------------------


def test_a_huge_range_is_not_computed(tmp_path: Path) -> None:
    path = parsed(
        """g (float[1, 4] x) => (y)
        <int64 zero = {0}, int64 end = {900000000000}, int64 step = {1},
         int64[1] many = {900000000000}> {
            r = Range(zero, end, step)
            o = ConstantOfShape(many)
            y = MatMul(x, o)
        }""",
        tmp_path,
    )
    assert read_graph(path).summary.work.uncounted == {"MatMul": 1}


@pytest.mark.parametrize(
    "text",
    [
        "g (float[1, 4] x) => (y) { y = MatMul(x) }",
        "g (float[1, 4] x, float[5, 3] w) => (y) { y = MatMul(x, w) }",
        "g (float[4] x, float[5, 3] w) => (y) { y = Conv(x, w) }",
        'g (float[1, 4] x) => (y) { y = Einsum <equation = "abc,de"> (x, x) }',
        "g (float[1, 4] x, int64[1] i) => (y) <int64[1] far = {99}> "
        "{ s = Shape(x) g = Gather(s, far) z = Reshape(x, g) y = MatMul(z, z) }",
        "g (float[1, 4] x) => (y) { y = Shape(nothing) }",
        "g (float[1, 4] x) => (y) { y = QLinearMatMul(x, x) }",
        "g (float[1, 4] x) => (y) { a = Identity(b) b = Identity(a) y = MatMul(a, x) }",
    ],
)
def test_broken_graphs_are_shown_without_a_count(text: str, tmp_path: Path) -> None:
    found = read_graph(parsed(text, tmp_path))
    assert found.summary.work.macs == 0
    assert found.positions() is None
    json.dumps(inspection_of(found).graph.work.uncounted)


def test_a_constant_smaller_than_its_shape_is_refused(tmp_path: Path) -> None:
    """Shape inference would reserve memory for a tensor of that rank."""
    path = parsed(
        "g (float[1, 4] x) => (y) <int64[2] s = {2, 2}> { y = ConstantOfShape(s) }", tmp_path
    )
    proto = onnx.load(path)
    proto.graph.initializer[0].dims[0] = 1 << 40
    onnx.save(proto, path)
    with pytest.raises(InputError, match="less than its shape"):
        read_graph(path)


def test_names_that_are_not_text(tmp_path: Path) -> None:
    path = parsed("g (float[1, 4] xxxx) => (float[1, 4] y) { y = Relu(xxxx) }", tmp_path)
    path.write_bytes(path.read_bytes().replace(b"xxxx", b"x\xff\xfex"))
    with pytest.raises(InputError):
        read_graph(path)


def test_types_that_do_not_exist(tmp_path: Path) -> None:
    path = parsed("g (float[1, 4] x) => (float[1, 4] y) { y = Relu(x) }", tmp_path)
    proto = onnx.load(path)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(3, np.float32), "w"))
    proto.graph.initializer[0].data_type = 999
    onnx.save(proto, path)
    assert "type 999" in read_graph(path).summary.constants
