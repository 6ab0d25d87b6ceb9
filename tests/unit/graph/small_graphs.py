"""Small modules as ONNX files, and random weights under which every position matters."""

from __future__ import annotations

import warnings
from pathlib import Path

import onnx
import onnx_ir as ir
import timm
import torch
from torch import nn

from vitdeploy.graph.inspection import GraphFile, read_graph
from vitdeploy.preprocessing import Size


def lively(name: str, **model_kwargs: object) -> nn.Module:
    """A timm model whose parameters all differ, its positions of unit deviation."""
    torch.manual_seed(0)
    module = timm.create_model(name, **model_kwargs).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for key, parameter in module.named_parameters():
            drawn = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(drawn if "pos_embed" in key else parameter + 0.1 * drawn)
    for part in module.modules():
        if hasattr(part, "fused_attn"):
            part.fused_attn = False  # type: ignore[assignment]
    return module


def exported(module: nn.Module, size: Size, *, dynamic: bool = False) -> ir.Model:
    """A bare torch.onnx.export with an open batch; with `dynamic` also open height and width."""
    axes = {0: torch.export.Dim("batch")}
    if dynamic:
        rows, columns = torch.export.Dim("rows", max=64), torch.export.Dim("columns", max=64)
        axes |= {2: 8 * rows, 3: 8 * columns}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module,
            (torch.zeros(2, 3, *size),),
            dynamo=True,
            opset_version=20,
            input_names=["input"],
            output_names=["logits"],
            dynamic_shapes=(axes,),
            verbose=False,
        )
    assert program is not None
    if dynamic:
        program.model.graph.inputs[0].shape = ir.Shape(("batch", 3, "height", "width"))
    return program.model


def saved(model: ir.Model, path: Path) -> Path:
    ir.save(model, path)
    return path


def read(model: ir.Model, folder: Path, *, resolution: Size | None = None) -> GraphFile:
    return read_graph(saved(model, folder / "graph.onnx"), resolution=resolution)


def parsed(text: str, folder: Path, name: str = "graph") -> Path:
    """A graph in ONNX's text form, as 'g (float[1, 3] x) => (float[1, 3] y) { y = Relu(x) }'."""
    body = onnx.parser.parse_graph(text)
    imports = [onnx.helper.make_opsetid("", 23), onnx.helper.make_opsetid("com.microsoft", 1)]
    path = folder / f"{name}.onnx"
    onnx.save(onnx.helper.make_model(body, opset_imports=imports), path)
    return path
