"""`ModelRequest`: how a user names a model, its weights and its preprocessing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vitdeploy.artifacts.source import Task
from vitdeploy.errors import InputError
from vitdeploy.preprocessing import CropMode, Preprocessing

_FLAGS = ("mean", "std", "interpolation", "crop_pct", "crop_mode")


@dataclass(frozen=True, kw_only=True)
class ModelRequest:
    """How a user names a model. Exactly one source of weights must be given.

    `name` is what `names.understood` takes. A checkpoint that describes itself
    and a model folder bring their own weights. `preprocessing` replaces the
    source's; `mean` to `crop_mode` replace parts of it. `task` None is what
    the source says, else one label of many.
    """

    name: str
    checkpoint: Path | None = None
    pretrained: bool = False
    random_weights: bool = False
    num_classes: int | None = None
    in_chans: int | None = None
    model_kwargs: dict[str, Any] | None = None
    labels: tuple[str, ...] | None = None
    preprocessing: Preprocessing | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    interpolation: str | None = None
    crop_pct: float | None = None
    crop_mode: CropMode | None = None
    task: Task | None = None

    def require_one_weight_source(self, *, own: bool = False) -> None:
        """Raise InputError unless weights are named once; `own`: the model may bring them."""
        given = [self.checkpoint is not None, self.pretrained, self.random_weights]
        if sum(given) == 1 or (own and not any(given)):
            return
        what = "no weights" if not any(given) else "more than one source of weights"
        raise InputError(
            f"{self.name} was given {what}",
            hint="give one of --checkpoint FILE, --pretrained, --random-weights",
        )

    def require_no_weight_source(self) -> None:
        """Raise InputError where a checkpoint named as the model is given other weights."""
        given = {
            "--checkpoint": self.checkpoint is not None,
            "--pretrained": self.pretrained,
            "--random-weights": self.random_weights,
        }
        options = [option for option, is_given in given.items() if is_given]
        if options:
            raise InputError(
                f"{Path(self.name).name} brings its own weights, and {' and '.join(options)} "
                "names others",
                hint=f"leave {' and '.join(options)} out, or name the architecture with --model",
            )

    def preprocessed(self, source: Callable[[], Preprocessing | None]) -> Preprocessing:
        """The source's preprocessing with the parts replaced that this request gives.

        `source` is asked only where something of it is needed. Raises InputError
        where neither says how pixels are normalized.
        """
        changes = {flag: value for flag in _FLAGS if (value := getattr(self, flag)) is not None}
        base = self.preprocessing
        if base is None and len(changes) < len(_FLAGS):
            base = source()
        if base is None and not {"mean", "std"} <= changes.keys():
            raise InputError(
                f"{self.name} does not say how its images are prepared",
                hint="give --mean and --std (of pixels in [0, 1]), and --interpolation, "
                "--crop-pct, --crop-mode where they differ from bicubic, 1.0, center",
            )
        # Mean and std must agree in length, so they are replaced together with the rest.
        return replace(base or Preprocessing(), **changes)
