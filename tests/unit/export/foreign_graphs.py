"""ONNX files as other people's exporters write them, of ViTs whose answers vary."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import timm
import torch
import torchvision
from numpy.typing import NDArray
from tiny_vits import smooth_inputs
from torch import nn
from transformers import ViTConfig, ViTForImageClassification, ViTModel

from vitdeploy.export.adopting.adopt import AdoptOptions, PreprocessingFlags
from vitdeploy.preprocessing import Size

SIZE: Size = (32, 48)
"""A grid of 2x3 patches of 16 pixels: seven tokens with a class token."""

SMALL: dict[str, Any] = {"depth": 2, "embed_dim": 48, "num_heads": 3}
CLASSES = 7
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.3, 0.25)
FLAGS = AdoptOptions(preprocessing=PreprocessingFlags(mean=MEAN, std=STD))
"""What preprocessing nobody else tells."""


@dataclass(frozen=True)
class Exporting:
    """How a file is exported: PyTorch's TorchScript exporter, or (`dynamo`) its newer one."""

    opset: int
    dynamic: bool = False
    dynamo: bool = False
    batch: int = 1

    def __str__(self) -> str:
        kind = "dynamo" if self.dynamo else "torchscript"
        batch = "any batch" if self.dynamic else f"batch {self.batch}"
        return f"{kind} {self.opset}, {batch}"


class _Answer(nn.Module):
    """A transformers model that answers tensors."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, pixel_values: torch.Tensor) -> Any:
        found = tuple(getattr(self.model(pixel_values), name) for name in self.names)
        return found if len(found) > 1 else found[0]


def lively(module: nn.Module) -> nn.Module:
    """Weights under which every position and every part matters."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for key, parameter in module.named_parameters():
            drawn = torch.randn(parameter.shape, generator=generator)
            if "pos" in key or "token" in key or "rel" in key:
                parameter.copy_(drawn)
            elif parameter.ndim >= 2:
                parameter.copy_(drawn / parameter[0].numel() ** 0.5)
            elif key.endswith(("weight", "gamma")):
                parameter.copy_(1 + 0.1 * drawn)
            else:
                parameter.copy_(0.1 * drawn)
    return module.eval()


def timm_vit(name: str = "vit_tiny_patch16_224", **more: Any) -> nn.Module:
    kwargs = {"img_size": SIZE, "num_classes": CLASSES, **SMALL, **more}
    return lively(timm.create_model(name, **kwargs))


def plain_vit() -> nn.Module:
    """timm's ViT with attention written out: fused attention needs opset 14."""
    module = timm_vit()
    for part in module.modules():
        if hasattr(part, "fused_attn"):
            part.fused_attn = False  # type: ignore[assignment]
    return module


def transformers_vit(attention: str = "eager", *, head: bool = True) -> nn.Module:
    config = ViTConfig(
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=96,
        image_size=SIZE,
        patch_size=16,
        num_labels=CLASSES,
    )
    config._attn_implementation = attention
    if head:
        return _Answer(lively(ViTForImageClassification(config)), ("logits",)).eval()
    return _Answer(lively(ViTModel(config)), ("last_hidden_state", "pooler_output")).eval()


def torchvision_vit() -> nn.Module:
    """Its attention puts tokens before the batch. Square images alone."""
    make = torchvision.models.vision_transformer.VisionTransformer
    return lively(make(32, 16, 2, 3, 48, 96, num_classes=CLASSES))


def export(
    module: nn.Module,
    path: Path,
    how: Exporting,
    *,
    size: Size = SIZE,
    outputs: tuple[str, ...] = ("logits",),
    dynamic_size: bool = False,
) -> Path:
    options: dict[str, Any] = {}
    if how.dynamo:
        options = {"dynamo": True, "external_data": False, "verbose": False}
        if how.dynamic:
            options["dynamic_shapes"] = ({0: torch.export.Dim("batch")},)
    else:
        axes = {0: "batch"} if how.dynamic else {}
        if dynamic_size:
            axes = {0: "batch", 1: "channels", 2: "height", 3: "width"}
        options = {"dynamo": False, "dynamic_axes": {"images": axes} if axes else None}
    batch = 2 if how.dynamo and how.dynamic else how.batch
    with _quiet():
        torch.onnx.export(
            module,
            (torch.zeros(batch, 3, *size),),
            path,
            opset_version=how.opset,
            input_names=["images"],
            output_names=list(outputs),
            **options,
        )
    return path


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    said = io.StringIO()
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(said),
    ):
        warnings.simplefilter("ignore")
        yield


def run(graph: Path | ir.Model, images: NDArray, *, output: int = 0) -> NDArray[np.float32]:
    """What a graph answers, without the runtime's own fusions, which would hide ours."""
    source = str(graph) if isinstance(graph, Path) else ir.to_proto(graph).SerializeToString()
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return session.run(None, {name: images})[output]  # type: ignore[return-value]


def one_by_one(graph: Path | ir.Model, images: NDArray, **more: Any) -> NDArray[np.float32]:
    return np.concatenate([run(graph, images[i : i + 1], **more) for i in range(len(images))])


def relative_error(answered: NDArray, expected: NDArray) -> float:
    """Largest difference over the deviation between images."""
    spread = (expected - expected.mean(0)).std()
    assert spread > 0.05 * np.abs(expected).mean(), "answers that hardly vary prove nothing"
    return float(np.abs(answered - expected).max() / spread)


def images(count: int, size: Size = SIZE) -> NDArray[np.float32]:
    return smooth_inputs(count, size)


def operators(model: ir.Model) -> Counter[str]:
    return Counter(node.op_type for node in model.graph)


def checked(model: ir.Model) -> ir.Model:
    """The model, valid by onnx's own rules."""
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    return model


def changed(path: Path, change: Callable[[onnx.ModelProto], None], folder: Path) -> Path:
    proto = onnx.load(path)
    change(proto)
    target = folder / "changed.onnx"
    onnx.save(proto, target)
    return target
