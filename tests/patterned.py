"""A small ViT that tells ten patterns apart, images of them, and layers that INT8 ruins.

Its answers mean something, so that agreement, drops and what a layer does to
them do too, and no training is needed: the head is a least-squares fit.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import torch
from PIL import Image
from unit_gain import random_vit

from vitdeploy.artifacts.onnx_model import OnnxModel
from vitdeploy.calibration.gathering import Gathering
from vitdeploy.calibration.image_set import CalibrationSet, choose
from vitdeploy.calibration.linear import linear_nodes
from vitdeploy.calibration.quantize import QuantizationOptions, tuned
from vitdeploy.calibration.tuning import Tuning
from vitdeploy.export.export import ExportOptions, export
from vitdeploy.graph import files
from vitdeploy.images import ImageSet, batches, scan
from vitdeploy.progress import SILENT, Progress

SIZE = (32, 48)
PATTERNS = 10
_PATCH = 16


def patterned_images(
    folder: Path, count: int, *, seed: int = 0, labelled: bool = False, only: int | None = None
) -> ImageSet:
    """`count` images, each unlike all others by its bytes, of all patterns in turn or of one."""
    patterns = np.random.default_rng(99).uniform(0, 255, (PATTERNS, 2, 3, 3))
    generator = np.random.default_rng(seed)
    for index in range(count):
        kind = index % PATTERNS if only is None else only
        coarse = patterns[kind].repeat(_PATCH, 0).repeat(_PATCH, 1)
        pixels = coarse + generator.normal(0, 20, (*SIZE, 3))
        place = folder / str(kind) if labelled else folder
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(place / f"{index:04d}.png")
    return scan(folder)


def patterned_model(folder: Path) -> OnnxModel:
    """A graph of two blocks that names the pattern."""
    torch.set_num_threads(1)
    source = random_vit(
        model_kwargs={
            "img_size": list(SIZE),
            "depth": 2,
            "embed_dim": 96,
            "num_heads": 3,
            "num_classes": PATTERNS,
        }
    )
    images = patterned_images(folder / "taught", 40 * PATTERNS, seed=1, labelled=True)
    pixels = np.concatenate(list(batches(images, source.description.preprocessing, SIZE, 50)))
    module = source.module.eval()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in module.parameters():  # equal ones would be stored once, and shared
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
        features = module.forward_head(
            module.forward_features(torch.from_numpy(pixels)), pre_logits=True
        )
        center = features.mean(dim=0)
        wanted = 10 * torch.eye(PATTERNS)[torch.from_numpy(images.label_indices())]
        weight = torch.linalg.lstsq(features - center, wanted - wanted.mean(dim=0)).solution
        module.head.weight.copy_(weight.T)
        module.head.bias.copy_(wanted.mean(dim=0) - center @ weight)
    return export(source, ExportOptions(), folder)


RUINOUS = 3e5
"""For `PLAIN`. `RUINOUS_TO_ALL` is so to every method, and FP16 does not hold it."""
RUINOUS_TO_ALL = 3e6

PLAIN = QuantizationOptions(method="absmax", fold=False, correct_bias=False)
"""What is least clever, so that a ruined layer stays ruined."""


@dataclass(frozen=True)
class Patterned:
    """A model, a folder of 300 images with the 32 that were drawn, and 400 others."""

    model: OnnxModel
    images: ImageSet
    calibration: CalibrationSet
    evaluation: ImageSet
    _tuned: dict[tuple[str, ...], Tuning] = field(default_factory=dict)

    def tuning(self, *layers: str, progress: Progress = SILENT) -> Tuning:
        """Of the model with `layers` ruined; made once, and a copy for each test to change."""
        if layers not in self._tuned:
            model = ruined(self.model, self.model.path.parent / "-".join(layers)[:40], *layers)
            self._tuned[layers] = tuned(Gathering(model=model, calibration=self.calibration), PLAIN)
        found = copy.copy(self._tuned[layers])
        found.gathering = replace(found.gathering, progress=progress)
        found.scales, found.shifts = dict(found.scales), dict(found.shifts)
        return found


def patterned(folder: Path) -> Patterned:
    images = patterned_images(folder / "images", 300)
    evaluation = patterned_images(folder / "evaluation", 400, seed=5)
    return Patterned(patterned_model(folder), images, choose(images, count=32), evaluation)


def ruined(model: OnnxModel, folder: Path, *layers: str, factor: float = RUINOUS) -> OnnxModel:
    """A copy of `model` in which INT8 loses what these layers compute, and float does not."""
    graph = files.load(model)
    for layer in layers:
        ruin(graph, layer, factor)
    return files.save(graph, model.description, folder / "ruined.onnx")


def ruin(graph: ir.Model, layer: str, factor: float) -> None:
    """Channels of what `layer` reads become `factor` times as large, in place.

    For a layer behind a Gelu: the columns of the layer before are multiplied
    and its own rows divided, for the channels that it uses least. Nothing folds
    that away, as Gelu is not linear and the factor is beyond what is inserted,
    and one range for all channels leaves the others no steps.
    """
    layers = {linear.name: linear for linear in linear_nodes(graph)}
    behind = layers[layer]
    gelu = next(n for n in graph.graph if n.outputs[0].name == behind.activation)
    assert gelu.op_type == "Gelu"
    assert gelu.inputs[0] is not None
    before = next(one for one in layers.values() if one.output == gelu.inputs[0].name)
    rows = _array(graph, behind.weight)
    factors = np.ones(len(rows), np.float32)
    factors[np.argsort(np.abs(rows).sum(axis=1))[:4]] = factor
    _set(graph, behind.weight, rows / factors[:, None])
    _set(graph, before.weight, _array(graph, before.weight) * factors)
    _set(graph, before.bias, _array(graph, before.bias) * factors)


def _array(graph: ir.Model, name: str) -> np.ndarray:
    tensor = graph.graph.initializers[name].const_value
    assert tensor is not None
    return tensor.numpy()


def _set(graph: ir.Model, name: str, array: np.ndarray) -> None:
    graph.graph.initializers[name].const_value = ir.Tensor(array.astype(np.float32), name=name)
