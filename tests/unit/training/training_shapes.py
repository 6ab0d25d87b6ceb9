"""Small pictures to learn from, a ViT that learns them in seconds, and a sink that interrupts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitdeploy import api
from vitdeploy.images import ImageSet, batches, scan
from vitdeploy.models.load import ModelRequest
from vitdeploy.models.source import SourceModel
from vitdeploy.preprocessing import Preprocessing
from vitdeploy.progress import SILENT, Progress, Task
from vitdeploy.training import loop
from vitdeploy.training.destination import Destination
from vitdeploy.training.recipe import TrainingRecipe
from vitdeploy.training.run import EpochResult

LABELS = ("disc", "frame", "stripes")
TINY = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 2}
RECIPE = TrainingRecipe(
    epochs=20, batch_size=16, learning_rate=3e-3, ema_decay=0.9, workers=0, mixed_precision="no"
)
SHORT = replace(RECIPE, epochs=3)


def picture(label: int, generator: np.random.Generator) -> Image.Image:
    """A disc, a frame or stripes, of random colours, place and noise."""
    y, x = np.mgrid[0:40, 0:40]
    top, left = generator.integers(14, 26, 2)
    if label == 0:
        shape = (y - top) ** 2 + (x - left) ** 2 < 100
    elif label == 1:
        distance = np.maximum(abs(y - top), abs(x - left))
        shape = (distance > 7) & (distance < 12)
    else:
        shape = (x + int(left)) % 8 < 4
    colours = generator.integers(0, 100, 3), generator.integers(156, 256, 3)
    pixels = np.where(shape[..., None], colours[1], colours[0]) + generator.normal(
        0, 8, (40, 40, 3)
    )
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def write_folder(root: Path, per_class: int, seed: int) -> ImageSet:
    generator = np.random.default_rng(seed)
    for label, name in enumerate(LABELS):
        (root / name).mkdir(parents=True)
        for number in range(per_class):
            picture(label, generator).save(root / name / f"{number}.png")
    return scan(root)


def start(
    labels: tuple[str, ...] = LABELS, *, model_kwargs: Mapping[str, Any] = TINY
) -> SourceModel:
    request = ModelRequest(
        name="vit_tiny_patch16_224",
        random_weights=True,
        num_classes=len(labels),
        labels=labels,
        model_kwargs=dict(model_kwargs),
        preprocessing=Preprocessing(),
    )
    return api.starting_point(request, seed=0)


def train(
    source: SourceModel,
    images: ImageSet,
    evaluation: ImageSet | None,
    recipe: TrainingRecipe,
    output: Path,
    *,
    progress: Progress = SILENT,
    **options: bool,
) -> tuple[SourceModel, list[EpochResult]]:
    destination = Destination(output, **options)
    return loop.train(source, images, evaluation, recipe, destination, progress=progress)


def accuracy(source: SourceModel, images: ImageSet) -> float:
    recipe = source.description.preprocessing
    logits = np.concatenate(
        [source.logits(batch) for batch in batches(images, recipe, source.resolution, 32)]
    )
    return float((logits.argmax(-1) == images.label_indices()).mean())


class Interrupt:
    """A progress sink that interrupts like Ctrl-C after some steps (None: never)."""

    def __init__(self, *, steps: int | None = None) -> None:
        self._left = steps
        self.steps = 0
        self.totals: list[int | None] = []
        self.heard: list[str] = []

    @contextmanager
    def task(self, description: str, total: int | None = None) -> Iterator[Task]:
        self.totals.append(total)
        yield self

    def advance(self, steps: int = 1) -> None:
        self.steps += steps
        if self._left is not None and self.steps >= self._left:
            raise KeyboardInterrupt

    def note(self, text: str) -> None:
        self.heard.append(text)


def listing(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
