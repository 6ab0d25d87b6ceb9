"""A training run: what changes while it lasts, and the file it is kept in after each epoch."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from timm.utils import ModelEmaV3
from torch import nn

from vitdeploy.artifacts.files import atomic_path, reading
from vitdeploy.errors import InputError, first_line
from vitdeploy.models import checkpoint
from vitdeploy.training.optimizers import build_optimizers, warmup_and_cosine
from vitdeploy.training.recipe import TrainingRecipe

SCHEMA_VERSION = 1
_ANEW = "delete it, and start again without --resume"


@dataclass(frozen=True)
class EpochResult:
    """One epoch: mean training loss, and top-1 of the averaged weights (None: not evaluated)."""

    epoch: int
    loss: float
    top1: float | None


class Run:
    """Everything that changes while training, so that it can be saved and read back."""

    def __init__(self, module: nn.Module, recipe: TrainingRecipe, steps_per_epoch: int) -> None:
        self.steps_per_epoch = steps_per_epoch
        self._epochs = recipe.epochs
        steps = max(1, recipe.epochs * steps_per_epoch)
        self.model = module.train()
        self.optimizers = build_optimizers(module, recipe)
        self.schedulers = [
            warmup_and_cosine(optimizer, steps, recipe.warmup_share)
            for optimizer in self.optimizers
        ]
        self.ema = ModelEmaV3(module, decay=recipe.ema_decay, use_warmup=True)
        self.ema.eval()
        self.updates = 0
        self.history: list[EpochResult] = []

    def save(self, path: Path, identity: dict[str, Any]) -> None:
        """Write the state; `identity` says which run it belongs to. Raises OutputError."""
        state = {
            "schema_version": SCHEMA_VERSION,
            "identity": identity,
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "schedulers": [scheduler.state_dict() for scheduler in self.schedulers],
            "ema": self.ema.module.state_dict(),
            "updates": self.updates,
            "history": [asdict(result) for result in self.history],
        }
        with atomic_path(path) as temporary, temporary.open("wb") as stream:
            try:
                torch.save(state, stream)
            except RuntimeError as error:
                # Torch says where its archive broke off; why, the stream had told it.
                if isinstance(error.__context__, OSError):
                    raise error.__context__ from error
                raise

    def restore(self, path: Path, identity: dict[str, Any]) -> None:
        """Go on from a state that was saved with the same `identity`.

        Raises InputError where it is of another run, damaged, or cannot be read.
        """
        state = _read(path)
        _require_same_run(path, state, identity)
        try:
            self._take(state)
        except checkpoint.PICKLE_ERRORS as error:
            raise InputError(
                f"{path} is not a whole state of this run: {first_line(error)}", hint=_ANEW
            ) from error

    def _take(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        for kind in ("optimizers", "schedulers"):
            for part, saved in zip(getattr(self, kind), state[kind], strict=True):
                part.load_state_dict(saved)
        self.ema.module.load_state_dict(state["ema"])
        self.updates = state["updates"]
        self.history = [EpochResult(**result) for result in state["history"]]
        self._require_consistent()

    def _require_consistent(self) -> None:
        """Raise ValueError where the parts of a state do not belong to each other."""
        numbers = [result.epoch for result in self.history]
        if not numbers or numbers != list(range(1, len(numbers) + 1)):
            raise ValueError(f"its epochs are {numbers}")
        if len(numbers) > self._epochs:
            raise ValueError(f"it is {len(numbers)} epochs old, of {self._epochs}")
        if not all(math.isfinite(result.loss) for result in self.history):
            raise ValueError("a loss in it is not finite")
        steps = len(numbers) * self.steps_per_epoch
        counts = {self.updates, *(scheduler.last_epoch for scheduler in self.schedulers)}
        if counts != {steps}:
            raise ValueError(f"its steps are {sorted(counts)}, not {steps}")
        for optimizer in self.optimizers:
            _require_fitting_moments(optimizer)


def _require_fitting_moments(optimizer: torch.optim.Optimizer) -> None:
    """Torch loads moments of any shape, and none at all, and fails or forgets at the next step."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    if parameters and not optimizer.state:
        raise ValueError("an optimizer in it has no moments")
    for parameter in parameters:
        for name, moment in optimizer.state.get(parameter, {}).items():
            scalar = name == "step" or not isinstance(moment, torch.Tensor)
            if not scalar and moment.shape != parameter.shape:
                raise ValueError(
                    f"{name} is {tuple(moment.shape)} for weights {tuple(parameter.shape)}"
                )


def _read(path: Path) -> dict[str, Any]:
    try:
        with reading(path, "training state"):
            state = torch.load(path, map_location="cpu", weights_only=True)
    except checkpoint.PICKLE_ERRORS as error:
        raise InputError(f"{path} cannot be read: {first_line(error)}", hint=_ANEW) from error
    if not isinstance(state, dict) or state.get("schema_version") != SCHEMA_VERSION:
        raise InputError(f"{path} holds no training state of this version", hint=_ANEW)
    return state


def _require_same_run(path: Path, state: dict[str, Any], identity: dict[str, Any]) -> None:
    found = state.get("identity")
    if found == identity:
        return
    known = found if isinstance(found, dict) else {}
    different = [key for key in identity if known.get(key) != identity[key]]
    raise InputError(
        f"{path} belongs to another run ({', '.join(different)} differ)",
        hint="give the same options as before, or delete it and start without --resume",
    )
