"""Training batches: augmented images, one resolution per batch."""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, Sampler
from torchvision.transforms import RandomResizedCrop

from vitdeploy.images import ImageSet, decode
from vitdeploy.preprocessing import Preprocessing, Size
from vitdeploy.training.recipe import TrainingRecipe

Draw = tuple[int, int]
"""(image index, square resolution in pixels)"""


class AugmentedImages(Dataset[tuple[torch.Tensor, int]]):
    """Random crop and flip, then the model's own resize filter and normalization."""

    def __init__(
        self, images: ImageSet, preprocessing: Preprocessing, recipe: TrainingRecipe
    ) -> None:
        self._items = images.items
        self._labels = images.label_indices()
        self._preprocessing = preprocessing
        self._recipe = recipe

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, draw: Draw) -> tuple[torch.Tensor, int]:
        index, resolution = draw
        image = decode(self._items[index].path)
        top, left, height, width = RandomResizedCrop.get_params(
            image, scale=[self._recipe.min_crop, 1.0], ratio=[0.85, 1 / 0.85]
        )
        image = image.crop((left, top, left + width, top + height))
        if self._recipe.flip and torch.rand(()) < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        squash = Preprocessing(
            mean=self._preprocessing.mean,
            std=self._preprocessing.std,
            interpolation=self._preprocessing.interpolation,
            crop_mode="squash",
        )
        tensor = squash.apply(image, (resolution, resolution))
        return torch.from_numpy(tensor), int(self._labels[index])


class MixedResolutionBatches(Sampler[list[Draw]]):
    """Shuffled batches, each of one resolution, drawn by the recipe's odds.

    The order depends on the seed and the epoch alone, so that a resumed run
    sees what an uninterrupted one would have seen.
    """

    def __init__(self, count: int, native: Size, recipe: TrainingRecipe) -> None:
        self._count = count
        self._recipe = recipe
        self._resolutions = recipe.resolutions or (native[0],)
        self.epoch = 0

    def __len__(self) -> int:
        return self._count // self._recipe.batch_size

    def __iter__(self) -> Iterator[list[Draw]]:
        generator = random.Random(f"{self._recipe.seed}-{self.epoch}")
        order = list(range(self._count))
        generator.shuffle(order)
        size = self._recipe.batch_size
        for batch in range(len(self)):
            resolution = generator.choices(
                self._resolutions, self._recipe.resolution_weights or None
            )[0]
            yield [(index, resolution) for index in order[batch * size : (batch + 1) * size]]


def training_loader(
    images: ImageSet,
    preprocessing: Preprocessing,
    batches: MixedResolutionBatches,
    recipe: TrainingRecipe,
) -> DataLoader[tuple[torch.Tensor, int]]:
    """Batches of (n, channels, r, r) float32 images and (n,) int64 labels."""
    return DataLoader(
        AugmentedImages(images, preprocessing, recipe),
        batch_sampler=batches,  # pyright: ignore[reportArgumentType]  # draws are pairs
        num_workers=recipe.workers,
    )
