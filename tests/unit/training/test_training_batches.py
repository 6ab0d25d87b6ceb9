"""Batches: one resolution each, augmented alike whatever process does it, none seen twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from training_shapes import RECIPE

from vitdeploy.images import ImageSet
from vitdeploy.preprocessing import Preprocessing
from vitdeploy.training.data import MixedResolutionBatches, training_batches


class TestMixedResolutions:
    RECIPE = replace(RECIPE, batch_size=8, resolutions=(32, 48, 64))

    def test_every_batch_has_one_size_and_all_are_drawn(self, images: ImageSet) -> None:
        sampler = MixedResolutionBatches(len(images), (32, 32), self.RECIPE)
        loader = training_batches(images, Preprocessing(), sampler, self.RECIPE)
        shapes = [tuple(batch.shape) for batch, _ in loader]
        assert len(shapes) == len(images) // 8
        assert {shape[:2] for shape in shapes} == {(8, 3)}
        assert {shape[2:] for shape in shapes} == {(32, 32), (48, 48), (64, 64)}

    def test_augmentation_does_not_depend_on_the_processes(self, images: ImageSet) -> None:
        epochs = []
        for workers in (0, 1, 2):
            torch.manual_seed(workers)
            recipe = replace(self.RECIPE, workers=workers)
            sampler = MixedResolutionBatches(len(images), (32, 32), recipe)
            epochs.append(
                [b for b, _ in training_batches(images, Preprocessing(), sampler, recipe)]
            )
        for others in epochs[1:]:
            assert all(torch.equal(a, b) for a, b in zip(epochs[0], others, strict=True))

    def test_an_image_is_augmented_anew_each_epoch(self, images: ImageSet) -> None:
        recipe = replace(self.RECIPE, batch_size=len(images), resolutions=(32,))
        sampler = MixedResolutionBatches(len(images), (32, 32), recipe)
        seen = []
        for epoch in (0, 1):
            sampler.epoch = epoch
            (order,) = [[draw.index for draw in batch] for batch in sampler]
            ((batch, _),) = training_batches(images, Preprocessing(), sampler, recipe)
            seen.append(batch[torch.argsort(torch.tensor(order))])
        changed = (seen[0] - seen[1]).abs().amax((1, 2, 3)) > 0.01
        assert changed.float().mean() > 0.95

    def test_labels_stay_with_their_images(self, images: ImageSet) -> None:
        recipe = replace(self.RECIPE, min_crop=1.0, flip=False)
        sampler = MixedResolutionBatches(len(images), (32, 32), recipe)
        loader = training_batches(images, Preprocessing(), sampler, recipe)
        drawn = [draw.index for batch in sampler for draw in batch]
        labels = torch.cat([labels for _, labels in loader])
        assert labels.tolist() == images.label_indices()[drawn].tolist()

    def test_an_epoch_shows_no_image_twice(self) -> None:
        sampler = MixedResolutionBatches(43, (32, 32), self.RECIPE)
        drawn = [draw.index for batch in sampler for draw in batch]
        assert len(drawn) == len(set(drawn)) == 40

    def test_the_order_depends_on_seed_and_epoch_alone(self) -> None:
        def order(seed: int, epoch: int) -> list[Any]:
            sampler = MixedResolutionBatches(64, (32, 32), replace(self.RECIPE, seed=seed))
            sampler.epoch = epoch
            return list(sampler)

        assert order(0, 1) == order(0, 1)
        assert order(0, 1) != order(0, 2)
        assert order(0, 1) != order(1, 1)

    def test_odds_are_kept(self) -> None:
        recipe = replace(self.RECIPE, batch_size=2, resolution_weights=(8.0, 1.0, 1.0))
        sampler = MixedResolutionBatches(4000, (32, 32), recipe)
        share = np.mean([batch[0].resolution == (32, 32) for batch in sampler])
        assert 0.75 < share < 0.85

    def test_without_resolutions_the_native_one(self) -> None:
        sampler = MixedResolutionBatches(32, (48, 48), RECIPE)
        assert {draw.resolution for batch in sampler for draw in batch} == {(48, 48)}
