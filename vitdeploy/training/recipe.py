"""What a training run does, apart from its data and its starting weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from vitdeploy.errors import InputError

MixedPrecision = Literal["auto", "no", "bf16", "fp16"]
OptimizerName = Literal["adamw", "muon"]


@dataclass(frozen=True, kw_only=True)
class TrainingRecipe:
    """Hyper-parameters. `resolutions` are trained in turn, drawn per batch, squares in pixels.

    `resolution_weights` are the odds of each (empty: all alike). `min_crop` is
    the smallest share of an image's area that a random crop keeps.
    """

    epochs: int = 10
    optimizer: OptimizerName = "adamw"
    batch_size: int = 128
    learning_rate: float = 1e-3
    weight_decay: float = 0.05
    warmup_share: float = 0.05
    label_smoothing: float = 0.1
    ema_decay: float = 0.998
    clip_norm: float = 1.0
    min_crop: float = 0.7
    flip: bool = True
    resolutions: tuple[int, ...] = ()
    resolution_weights: tuple[float, ...] = ()
    mixed_precision: MixedPrecision = "auto"
    workers: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 2:
            raise InputError(
                f"{self.epochs} epochs of batches of {self.batch_size} images cannot be trained",
                hint="give at least one epoch and batches of two images",
            )
        if self.resolution_weights and len(self.resolution_weights) != len(self.resolutions):
            raise InputError(
                f"{len(self.resolution_weights)} odds for {len(self.resolutions)} resolutions",
                hint="give one weight per resolution, or none",
            )
        if not all(0 < odds < math.inf for odds in self.resolution_weights):
            raise InputError(
                f"the odds {self.resolution_weights} cannot be drawn by",
                hint="give a number above 0 for each resolution",
            )
        # Written so that NaN is refused too.
        if not (0 < self.learning_rate <= 1000 and 0 < self.min_crop <= 1):
            raise InputError(
                f"the learning rate is {self.learning_rate}, min_crop {self.min_crop}",
                hint="give a learning rate in (0, 1000] and a min_crop in (0, 1]",
            )
        if not 0 <= self.ema_decay < 1:
            raise InputError(
                f"an average of the weights cannot decay by {self.ema_decay}",
                hint="give an ema_decay in [0, 1); 0.999 looks back over about 1,000 steps",
            )
        if not 0 <= self.seed < 2**32:
            raise InputError(f"{self.seed} is no seed", hint=f"give a number from 0 to {2**32 - 1}")
