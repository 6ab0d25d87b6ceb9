"""Graphs written out by hand, a few lines each, over tokens of eight channels."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import numpy_helper

from vitdeploy.backends.onnxruntime_ import GraphSession
from vitdeploy.calibration.linear import LinearNode, linear_nodes
from vitdeploy.graph import files

TOKENS, CHANNELS = 5, 8
PIXELS = np.random.default_rng(0).normal(size=(3, 1, TOKENS, CHANNELS)).astype(np.float32)
"""(images, 1, tokens, channels)."""


def written(
    body: str,
    outputs: str = "float[n, 1, t, c] logits",
    *,
    opset: int = 20,
    **arrays: tuple[int, ...] | NDArray,
) -> ir.Model:
    """The graph of `body`; `start` holds the tokens. `arrays` become constants, shapes random."""
    proto = onnx.parser.parse_model(f"""
    <ir_version: 9, opset_import: ["" : {opset}]>
    written (float[n, 1, {TOKENS}, {CHANNELS}] pixels) => ({outputs})
    {{
        start = Tanh (pixels)
        {body}
    }}
    """)
    generator = np.random.default_rng(1)
    for name, given in arrays.items():
        array = given if isinstance(given, np.ndarray) else generator.normal(size=given)
        if array.dtype.kind == "f":
            array = array.astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    for index, node in enumerate(proto.graph.node):
        node.name = node.name or f"{node.op_type}_{index}"
    return ir.from_proto(onnx.shape_inference.infer_shapes(proto))


def linears(graph: ir.Model) -> dict[str, LinearNode]:
    return {linear.name: linear for linear in linear_nodes(graph)}


def answers(graph: ir.Model, pixels: NDArray[np.float32] = PIXELS) -> list[NDArray[np.float32]]:
    return GraphSession(files.serialize(graph), optimize=False).run_all(pixels)


def furthest(left: list[NDArray[np.float32]], right: list[NDArray[np.float32]]) -> float:
    """The largest difference of any output, in deviations of that output between images."""
    gaps = []
    for one, other in zip(left, right, strict=True):
        spread = float((one - one.mean(0)).std())
        assert spread > 1e-3, "these answers do not vary, so any would pass"
        gaps.append(float(np.abs(one - other).max()) / spread)
    return max(gaps)
