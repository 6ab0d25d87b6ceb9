"""GELU however it is written: found where it is one, and nowhere else."""

from __future__ import annotations

import math

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from numpy.typing import NDArray

from vitdeploy.export.passes.gelus import fuse_gelus
from vitdeploy.graph.gelus import decomposed_gelus

NUMBERS = {
    "root": math.sqrt(2),
    "inverse": 1 / math.sqrt(2),
    "half": 0.5,
    "one": 1.0,
    "two": 2.0,
    "three": 3.0,
    "slope": math.sqrt(2 / math.pi),
    "near_slope": 0.7985,
    "cubic": 0.044715,
    "quick": 1.702,
}
ERF = "inner = Div(x, root) e = Erf(inner) shifted = Add(e, one)"
TANH = """cube = Pow(x, three) c = Mul(cubic, cube) sum = Add(x, c) inner = Mul(slope, sum)
    e = Tanh(inner) shifted = Add(one, e)"""

EXACT = {
    "PyTorch's": f"{ERF} p = Mul(x, shifted) y = Mul(p, half)",
    "half first": f"{ERF} h = Mul(x, half) y = Mul(h, shifted)",
    "half of the sum": f"{ERF} h = Mul(half, shifted) y = Mul(h, x)",
    "divided by two": f"{ERF} p = Mul(shifted, x) y = Div(p, two)",
    "the inverse root": f"{ERF} p = Mul(x, shifted) y = Mul(p, half)".replace(
        "Div(x, root)", "Mul(inverse, x)"
    ),
}
APPROXIMATE = {
    "PyTorch's": f"{TANH} h = Mul(x, half) y = Mul(h, shifted)",
    "cube by products": f"{TANH} h = Mul(half, shifted) y = Mul(x, h)".replace(
        "cube = Pow(x, three)", "square = Mul(x, x) cube = Mul(square, x)"
    ),
    "factored": """square = Mul(x, x) c = Mul(cubic, square) sum = Add(one, c) s = Mul(slope, x)
        inner = Mul(s, sum) e = Tanh(inner) shifted = Add(e, one) p = Mul(x, shifted)
        y = Mul(p, half)""",
}
OTHERS = {
    "the error function": f"{ERF} y = Mul(x, shifted)",
    "another width": f"{ERF} p = Mul(x, shifted) y = Mul(p, half)".replace("root", "two"),
    "another slope": f"{TANH} h = Mul(x, half) y = Mul(h, shifted)".replace("slope", "near_slope"),
    "another cubic": f"{TANH} h = Mul(x, half) y = Mul(h, shifted)".replace("cubic", "half"),
    "without the one": "inner = Div(x, root) e = Erf(inner) p = Mul(x, e) y = Mul(p, half)",
    "of two values": f"{ERF} p = Mul(z, shifted) y = Mul(p, half)",
    "quick": "inner = Mul(quick, x) s = Sigmoid(inner) y = Mul(x, s)",
}


def model_of(body: str, *, opset: int = 20, outputs: str = "float[33] y") -> ir.Model:
    lines = body.replace(") ", ")\n")
    graph = onnx.parser.parse_graph(f"g (float[33] x, float[33] z) => ({outputs}) {{ {lines} }}")
    used = {name for node in graph.node for name in node.input}
    graph.initializer.extend(
        onnx.numpy_helper.from_array(np.array(value, np.float32), name)
        for name, value in NUMBERS.items()
        if name in used
    )
    imports = [onnx.helper.make_opsetid("", opset)]
    proto = onnx.helper.make_model(graph, opset_imports=imports, ir_version=9)
    return ir.from_proto(onnx.shape_inference.infer_shapes(proto))


def answer(model: ir.Model) -> NDArray[np.float32]:
    session = onnxruntime.InferenceSession(
        ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    x = np.linspace(-5, 5, 33, dtype=np.float32)
    return session.run(None, {"x": x, "z": x[::-1].copy()})[0]  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("approximation", "body"),
    [("none", body) for body in EXACT.values()] + [("tanh", body) for body in APPROXIMATE.values()],
)
def test_a_written_out_gelu_becomes_one_operator(approximation: str, body: str) -> None:
    model = model_of(body)
    before = answer(model)
    fuse_gelus(model)
    gelu = model.graph.outputs[0].producer()
    assert gelu is not None
    assert gelu.op_type == "Gelu"
    assert gelu.inputs[0] is model.graph.inputs[0]
    assert gelu.attributes["approximate"].as_string() == approximation
    assert np.abs(answer(model) - before).max() <= 2e-6
    other = "tanh" if approximation == "none" else "none"
    gelu.attributes["approximate"] = ir.AttrString("approximate", other)
    assert np.abs(answer(model) - before).max() > 1e-4, "the two forms are told apart"


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_gelu_stays(name: str) -> None:
    model = model_of(OTHERS[name])
    assert decomposed_gelus(model.graph) == []
    fuse_gelus(model)
    assert "Gelu" not in {node.op_type for node in model.graph}


def test_below_opset_20_the_group_is_found_and_stays() -> None:
    model = model_of(EXACT["PyTorch's"], opset=17)
    before = [node.op_type for node in model.graph]
    (group,) = decomposed_gelus(model.graph)
    assert [node.op_type for node in group.nodes] == ["Mul", "Mul", "Add", "Erf", "Div"]
    fuse_gelus(model)
    assert [node.op_type for node in model.graph] == before


def test_a_gelu_of_a_scaled_value_reads_that_value() -> None:
    """What comes before is arithmetic with single numbers too, and no part of the GELU."""
    model = model_of(f"s = Mul(z, two) {EXACT['half first']}".replace("(x", "(s"))
    before = answer(model)
    fuse_gelus(model)
    gelu = model.graph.outputs[0].producer()
    assert gelu is not None
    assert gelu.inputs[0] is not None
    assert gelu.inputs[0].name == "s"
    assert np.abs(answer(model) - before).max() <= 2e-6


def test_a_value_between_that_is_an_output_keeps_the_group() -> None:
    model = model_of(EXACT["PyTorch's"], outputs="float[33] y, float[33] shifted")
    assert decomposed_gelus(model.graph) == []
