"""Models and graphs that half precision breaks unless it is done with care."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import torch
from tiny_vits import NATIVE, lively

from vitdeploy.artifacts.onnx_model import ModelDescription, OnnxModel
from vitdeploy.export.passes.module_names import name_nodes_by_module
from vitdeploy.export.trace import trace
from vitdeploy.graph import files
from vitdeploy.models.source import SourceModel

LOUD = (3, 9, 14, 20)
"""Channels that may carry a constant; their signs alternate, so that the mean stays."""


def loud_stream(
    level: float, *, channels: int = 2, width: int = 192, matters: bool = False
) -> SourceModel:
    """A residual stream with `level` in a few channels, from the patch embedding to the end.

    Every normalization undoes it: gains are multiplied by the deviation the
    constants cause. Whether what varies in these channels `matters` (or their
    gain is near zero) decides if rounding them to FP16's step at that level
    (1 at 1,500) is seen.
    """
    source = lively(img_size=list(NATIVE), embed_dim=width)
    loud = list(LOUD[:channels])
    signs = torch.tensor([(-1.0) ** index for index in range(channels)])
    deviation = level * (channels / width) ** 0.5
    with torch.no_grad():
        source.module.patch_embed.proj.bias[loud] += level * signs
        source.module.cls_token[..., loud] += level * signs
        for module in source.module.modules():
            if isinstance(module, torch.nn.LayerNorm):
                gain = module.weight[loud].clone()
                module.weight *= deviation
                if matters:
                    module.bias[loud] -= gain * level * signs
                else:
                    module.weight[loud] = 0.01 * gain
    return source


def written(source: SourceModel, folder: Path) -> OnnxModel:
    """The graph as traced. Not verified: float32 itself loses digits on a loud stream."""
    description = ModelDescription(
        source=source.description,
        resolution=source.resolution,
        precision="fp32",
        opset=20,
        input_name="input",
        output_name="logits",
    )
    return files.save(name_nodes_by_module(trace(source)), description, folder / "written.onnx")


def decomposed(model: ir.Model, epsilon: float = 1e-6) -> ir.Model:
    """The graph with every LayerNormalization written out, as exporters before opset 17 did."""
    graph = model.graph
    for node in [node for node in graph if node.op_type == "LayerNormalization"]:
        name = str(node.name).replace("LayerNormalization", "")
        value, gain, bias = node.inputs
        last = constant(graph, f"{name}axes", np.array([-1], np.int64))
        made: list[ir.Node] = []

        def op(op_type: str, *inputs: ir.Value | None, name=name, made=made) -> ir.Value:
            new = ir.node(op_type, list(inputs), name=f"{name}{op_type}_{len(made)}")
            new.outputs[0].name = f"{new.name}_out"
            made.append(new)
            return new.outputs[0]

        centered = op("Sub", value, op("ReduceMean", value, last))
        squared = op("Pow", centered, constant(graph, f"{name}two", np.float32(2)))
        variance = op("ReduceMean", squared, last)
        safe = op("Add", variance, constant(graph, f"{name}epsilon", np.float32(epsilon)))
        normal = op("Div", centered, op("Sqrt", safe))
        op("Add", op("Mul", normal, gain), bias)
        graph.insert_before(node, made)
        node.outputs[0].replace_all_uses_with(made[-1].outputs[0])
        graph.remove(node, safe=True)
    return model


def constant(graph: ir.Graph, name: str, array: np.ndarray | np.generic) -> ir.Value:
    value = ir.Value(name=name, const_value=ir.Tensor(np.asarray(array), name=name))
    value.dtype, value.shape = value.const_value.dtype, ir.Shape(list(np.shape(array)))
    graph.register_initializer(value)
    return value
