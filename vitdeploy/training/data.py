"""Training batches: augmented images, one resolution per batch."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate
from torchvision.transforms import RandomResizedCrop

from vitdeploy.errors import InputError
from vitdeploy.images import ImageSet, decode
from vitdeploy.preprocessing import Preprocessing, Size
from vitdeploy.training.recipe import TrainingRecipe

Sample = tuple[torch.Tensor, int]
Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Draw:
    """An image to augment: its index, the (height, width) in pixels, and a seed of its own.

    With the seed the augmentation does not depend on which process does it.
    """

    index: int
    resolution: Size
    seed: int


class AugmentedImages(Dataset[Sample | InputError]):
    """Random crop and flip, then the model's own resize filter and normalization.

    An image that cannot be read is answered with its error: raised in a worker
    process it would arrive without its hint and with a traceback in its text.
    """

    def __init__(
        self, images: ImageSet, preprocessing: Preprocessing, recipe: TrainingRecipe
    ) -> None:
        self._items = images.items
        self._labels = images.label_indices()
        self._squash = replace(preprocessing, crop_pct=1.0, crop_mode="squash")
        self._recipe = recipe

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, draw: Draw) -> Sample | InputError:
        try:
            image = decode(self._items[draw.index].path)
        except InputError as error:
            return error
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(draw.seed)
            image = self._augmented(image)
        tensor = self._squash.apply(image, draw.resolution)
        return torch.from_numpy(tensor), int(self._labels[draw.index])

    def _augmented(self, image: Image.Image) -> Image.Image:
        top, left, height, width = RandomResizedCrop.get_params(
            image,  # pyright: ignore[reportArgumentType]  # annotated for tensors, takes both
            scale=[self._recipe.min_crop, 1.0],
            ratio=[0.85, 1 / 0.85],
        )
        image = image.crop((left, top, left + width, top + height))
        if self._recipe.flip and torch.rand(()) < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return image


class MixedResolutionBatches(Sampler[list[Draw]]):
    """Shuffled batches, each of one resolution, drawn by the recipe's odds.

    The order depends on the seed and the epoch alone, so that a resumed run
    sees what an uninterrupted one would have seen.
    """

    def __init__(self, count: int, native: Size, recipe: TrainingRecipe) -> None:
        self._count = count
        self._recipe = recipe
        self.resolutions = tuple((side, side) for side in recipe.resolutions) or (native,)
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
                self.resolutions, self._recipe.resolution_weights or None
            )[0]
            yield [
                Draw(index, resolution, generator.getrandbits(63))
                for index in order[batch * size : (batch + 1) * size]
            ]


def training_batches(
    images: ImageSet,
    preprocessing: Preprocessing,
    batches: MixedResolutionBatches,
    recipe: TrainingRecipe,
) -> Iterator[Batch]:
    """One epoch of (n, channels, r, r) float32 images and (n,) int64 labels.

    Raises InputError naming an image that cannot be read.
    """
    loader = DataLoader(
        AugmentedImages(images, preprocessing, recipe),
        batch_sampler=batches,  # pyright: ignore[reportArgumentType]  # draws are no integers
        num_workers=recipe.workers,
        collate_fn=_collate,
    )
    for batch in loader:
        if isinstance(batch, InputError):
            raise batch
        yield batch


def _collate(samples: list[Sample | InputError]) -> Batch | InputError:
    for sample in samples:
        if isinstance(sample, InputError):
            return sample
    return default_collate(samples)
