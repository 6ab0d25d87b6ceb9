"""The training loop: warm-up and cosine, an average of the weights, resume."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from timm.utils import ModelEmaV3
from torch import nn

from vitdeploy.artifacts.files import atomic_path
from vitdeploy.artifacts.source import SourceDescription
from vitdeploy.errors import GateFailedError, InputError
from vitdeploy.images import ImageSet, batches
from vitdeploy.models import checkpoint
from vitdeploy.models.source import SourceModel, weights_digest
from vitdeploy.progress import SILENT, Progress
from vitdeploy.training.data import MixedResolutionBatches, training_batches
from vitdeploy.training.optimizers import build_optimizers, warmup_and_cosine
from vitdeploy.training.recipe import TrainingRecipe


@dataclass(frozen=True)
class EpochResult:
    """One epoch: mean training loss, and top-1 of the averaged weights (None: not evaluated)."""

    epoch: int
    loss: float
    top1: float | None


class _Run:
    """Everything that changes while training, so that it can be saved and read back."""

    def __init__(self, module: nn.Module, recipe: TrainingRecipe, steps_per_epoch: int) -> None:
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

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "schedulers": [scheduler.state_dict() for scheduler in self.schedulers],
            "ema": self.ema.module.state_dict(),
            "updates": self.updates,
            "history": [asdict(result) for result in self.history],
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        for kind in ("optimizers", "schedulers"):
            for part, saved in zip(getattr(self, kind), state[kind], strict=True):
                part.load_state_dict(saved)
        self.ema.module.load_state_dict(state["ema"])
        self.updates = state["updates"]
        self.history = [EpochResult(**result) for result in state["history"]]


def train(
    source: SourceModel,
    images: ImageSet,
    evaluation: ImageSet | None,
    recipe: TrainingRecipe,
    output: Path,
    *,
    resume: bool = False,
    progress: Progress = SILENT,
) -> tuple[SourceModel, list[EpochResult]]:
    """Train `source` on labelled images and write a self-describing checkpoint.

    After each epoch everything needed to go on is written to
    `<output>.resume`; `resume` continues from there and refuses a state made
    with another recipe, model or image set. The file is removed at the end.

    Raises InputError for unlabelled images, too few of them, one that cannot be
    read, an impossible resolution, or a state that does not belong to this run;
    GateFailedError where the loss is no longer finite.
    """
    _require_enough(images, recipe, source.description)
    for side in recipe.resolutions:
        source.require_patch_multiple((side, side), option="--mixed-res")
    sampler = MixedResolutionBatches(len(images), source.resolution, recipe)
    accelerator = Accelerator(mixed_precision=_precision(recipe))
    run = _Run(_trainable(source, recipe).to(accelerator.device), recipe, len(sampler))
    identity = _identity(source, images, recipe)
    state_path = output.with_name(output.name + ".resume")
    if resume:
        run.restore(_read_state(state_path, identity))
    step = _step_function(run, recipe, accelerator)
    for epoch in range(len(run.history), recipe.epochs):
        sampler.epoch = epoch
        torch.manual_seed(recipe.seed * 100_003 + epoch)
        loss = 0.0
        with progress.task(f"epoch {epoch + 1}/{recipe.epochs}", len(sampler)) as task:
            for batch, labels in training_batches(
                images, source.description.preprocessing, sampler, recipe
            ):
                loss += step(batch, labels)
                task.advance()
        _require_finite(loss, epoch)
        top1 = None if evaluation is None else _top1(run.ema.module, source, evaluation)
        run.history.append(EpochResult(epoch + 1, loss / len(sampler), top1))
        shown = "" if top1 is None else f", top-1 {top1:.2%}"
        progress.note(f"epoch {epoch + 1}: loss {loss / len(sampler):.4f}{shown}")
        _write_state(state_path, identity, run)
    trained = _finished(source, run, recipe, images)
    checkpoint.save(output, trained.module.state_dict(), trained.description)
    state_path.unlink(missing_ok=True)
    return trained, run.history


def _step_function(
    run: _Run, recipe: TrainingRecipe, accelerator: Accelerator
) -> Callable[[torch.Tensor, torch.Tensor], float]:
    loss_function = nn.CrossEntropyLoss(label_smoothing=recipe.label_smoothing)
    model, *optimizers = accelerator.prepare(run.model, *run.optimizers)

    def step(batch: torch.Tensor, labels: torch.Tensor) -> float:
        with accelerator.autocast():
            loss = loss_function(model(batch.to(accelerator.device)), labels.to(accelerator.device))
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), recipe.clip_norm)
        for optimizer, scheduler in zip(optimizers, run.schedulers, strict=True):
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        run.updates += 1
        run.ema.update(run.model, step=run.updates)
        return float(loss.detach())

    return step


def _precision(recipe: TrainingRecipe) -> str:
    """bf16 where a GPU has it; on CPUs without matrix units float32 was the faster."""
    if recipe.mixed_precision != "auto":
        return recipe.mixed_precision
    return "bf16" if torch.cuda.is_available() and torch.cuda.is_bf16_supported() else "no"


def _trainable(source: SourceModel, recipe: TrainingRecipe) -> nn.Module:
    kwargs = dict(source.description.model_kwargs)
    sizes = set(recipe.resolutions) - {source.resolution[0]}
    if sizes:
        kwargs["dynamic_img_size"] = True
    module = source.library.build(source.description.architecture, model_kwargs=kwargs)
    module.load_state_dict(source.module.state_dict())
    return module


def _top1(module: nn.Module, source: SourceModel, evaluation: ImageSet) -> float:
    device = next(module.parameters()).device
    labels = torch.from_numpy(evaluation.label_indices())
    right, seen = 0, 0
    preprocessing = source.description.preprocessing
    for batch in batches(evaluation, preprocessing, source.resolution, 128):
        with torch.inference_mode():
            answers = module(torch.from_numpy(batch).to(device)).argmax(-1).cpu()
        right += int((answers == labels[seen : seen + len(batch)]).sum())
        seen += len(batch)
    return right / seen


def _finished(
    source: SourceModel, run: _Run, recipe: TrainingRecipe, images: ImageSet
) -> SourceModel:
    state = {name: tensor.cpu() for name, tensor in run.ema.module.state_dict().items()}
    module = source.library.build(
        source.description.architecture, model_kwargs=source.description.model_kwargs
    )
    module.load_state_dict(state)
    description = replace(
        source.description,
        weights_digest=weights_digest(state),
        origin=f"vitdeploy train, {len(images)} images of {images.root.name}",
        training={
            "recipe": asdict(recipe),
            "history": [asdict(result) for result in run.history],
            "torch": torch.__version__,
        },
    )
    return SourceModel(module, description, source.resolution)


def _require_enough(
    images: ImageSet, recipe: TrainingRecipe, description: SourceDescription
) -> None:
    images.label_indices()
    if len(images) < recipe.batch_size:
        raise InputError(
            f"{images.root} holds {len(images)} images, less than one batch",
            hint=f"add images or give --batch-size below {len(images)}",
        )
    if images.labels == description.labels:
        return
    if sorted(images.labels) == sorted(description.labels):
        what = "the same labels in another order"
    else:
        odd = sorted(set(images.labels) ^ set(description.labels))
        what = f"{len(images.labels)}; not common to both: {', '.join(odd[:8])}"
    raise InputError(
        f"the model has {description.num_classes} labels, the images {what}",
        hint="give --num-classes, and class folders named as the labels",
    )


def _require_finite(loss: float, epoch: int) -> None:
    if not math.isfinite(loss):
        raise GateFailedError(
            f"the loss of epoch {epoch + 1} is not finite",
            hint="start again with a smaller --lr",
        )


def _identity(source: SourceModel, images: ImageSet, recipe: TrainingRecipe) -> dict[str, Any]:
    return {
        "weights": source.description.weights_digest,
        "images": _names_digest(images),
        "labels": list(images.labels),
        # How many processes load images changes nothing in the result.
        "recipe": {k: v for k, v in asdict(recipe).items() if k != "workers"},
    }


def _names_digest(images: ImageSet) -> str:
    """sha256 over names, labels and sizes of the files, in order."""
    digest = hashlib.sha256()
    for item in images.items:
        name = item.path.relative_to(images.root).as_posix()
        digest.update(f"{name}:{item.label}:{item.path.stat().st_size}\n".encode())
    return digest.hexdigest()


def _write_state(path: Path, identity: dict[str, Any], run: _Run) -> None:
    with atomic_path(path) as temporary:
        try:
            torch.save({"identity": identity, **run.state()}, temporary)
        except RuntimeError as error:  # torch reports a full disk as RuntimeError
            raise OSError(28, str(error)) from error


def _read_state(path: Path, identity: dict[str, Any]) -> dict[str, Any]:
    if not path.is_file():
        raise InputError(f"there is nothing to resume at {path}", hint="start without --resume")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except checkpoint.PICKLE_ERRORS as error:
        raise InputError(f"{path} cannot be read", hint="start again without --resume") from error
    if not isinstance(state, dict):
        raise InputError(f"{path} holds no training state", hint="start again without --resume")
    found = state.get("identity")
    if found != identity:
        different = [key for key in identity if found is None or found.get(key) != identity[key]]
        raise InputError(
            f"{path} belongs to another run ({', '.join(different)} differ)",
            hint="give the same options as before, or start without --resume",
        )
    return state
