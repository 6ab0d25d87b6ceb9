"""The training loop: warm-up and cosine, an average of the weights, resume."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn

from vitdeploy.artifacts.source import SourceDescription
from vitdeploy.errors import GateFailedError, InputError
from vitdeploy.images import ImageSet, batches
from vitdeploy.models import checkpoint
from vitdeploy.models.source import SourceModel, weights_digest
from vitdeploy.progress import SILENT, Progress, Task
from vitdeploy.training.data import MixedResolutionBatches, training_batches
from vitdeploy.training.destination import Destination
from vitdeploy.training.recipe import TrainingRecipe
from vitdeploy.training.run import EpochResult, Run

_EVALUATION_BATCH = 128

Step = Callable[[torch.Tensor, torch.Tensor], float]
"""Trains on one batch of images and labels, and answers its loss."""


def train(
    source: SourceModel,
    images: ImageSet,
    evaluation: ImageSet | None,
    recipe: TrainingRecipe,
    destination: Destination,
    *,
    progress: Progress = SILENT,
) -> tuple[SourceModel, list[EpochResult]]:
    """Train `source` on labelled images and write a self-describing checkpoint.

    After each epoch everything needed to go on is written to the destination's
    state file; `resume` continues from there and refuses a state made with
    another recipe, model or image set. The file is removed at the end.

    Raises InputError for unlabelled images, too few of them, a class without
    any, an image that cannot be read, an impossible resolution, a destination
    that cannot be written or would lose a file, or a state that does not belong
    to this run; GateFailedError where the loss is no longer finite.
    """
    _require_classifier(source.description)
    _require_enough(images, recipe, source.description)
    if evaluation is not None:
        _require_comparable(evaluation, images, progress)
    for side in recipe.resolutions:
        source.require_patch_multiple((side, side), option="--mixed-res")
    destination.require_usable()
    sampler = MixedResolutionBatches(len(images), source.resolution, recipe)
    accelerator = Accelerator(mixed_precision=_precision(recipe))
    run = Run(_trainable(source, recipe).to(accelerator.device), recipe, len(sampler))
    identity = _identity(source, images, recipe)
    progress.note(_announcement(images, evaluation, sampler, accelerator))
    if destination.resume:
        run.restore(destination.state, identity)
        progress.note(f"going on after epoch {len(run.history)}")
    step = _step_function(run, recipe, accelerator)
    data = _Data(source, images, evaluation, recipe)
    for epoch in range(len(run.history), recipe.epochs):
        sampler.epoch = epoch
        started = time.perf_counter()
        result = _epoch(data, sampler, run, step, progress)
        run.history.append(result)
        seconds = time.perf_counter() - started
        progress.note(f"{_of(result.epoch, recipe)}: {_in_words(result)}, {seconds:.1f} s")
        run.save(destination.state, identity)
    trained = _finished(source, run, recipe, images)
    checkpoint.save(destination.checkpoint, trained.module.state_dict(), trained.description)
    destination.state.unlink(missing_ok=True)
    return trained, run.history


@dataclass(frozen=True)
class _Data:
    """What is trained on what, and judged on what."""

    source: SourceModel
    images: ImageSet
    evaluation: ImageSet | None
    recipe: TrainingRecipe


def _epoch(
    data: _Data, sampler: MixedResolutionBatches, run: Run, step: Step, progress: Progress
) -> EpochResult:
    recipe, evaluation = data.recipe, data.evaluation
    torch.manual_seed(recipe.seed * 100_003 + sampler.epoch)
    loss, top1 = 0.0, None
    evaluation_steps = 0 if evaluation is None else -(-len(evaluation) // _EVALUATION_BATCH)
    name = _of(sampler.epoch + 1, recipe)
    with progress.task(name, len(sampler) + evaluation_steps) as task:
        for batch, labels in training_batches(
            data.images, data.source.description.preprocessing, sampler, recipe
        ):
            loss += step(batch, labels)
            task.advance()
        _require_finite(loss, sampler.epoch)
        if evaluation is not None:
            top1 = _top1(run.ema.module, data.source, evaluation, task)
    return EpochResult(sampler.epoch + 1, loss / len(sampler), top1)


def _of(epoch: int, recipe: TrainingRecipe) -> str:
    return f"epoch {epoch}/{recipe.epochs}"


def _announcement(
    images: ImageSet,
    evaluation: ImageSet | None,
    sampler: MixedResolutionBatches,
    accelerator: Accelerator,
) -> str:
    """What is about to happen, on what, in one line."""
    judged = "not evaluated" if evaluation is None else f"evaluated on {len(evaluation)}"
    sizes = ", ".join(f"{height}x{width}" for height, width in sampler.resolutions)
    device = f"CPU, {torch.get_num_threads()} threads"
    if accelerator.device.type == "cuda":
        device = torch.cuda.get_device_name(accelerator.device)
    numbers = {"no": "float32"}.get(accelerator.mixed_precision, accelerator.mixed_precision)
    return (
        f"training on {len(images)} images of {len(images.labels)} classes, {judged}, "
        f"at {sizes} on {device} in {numbers}: {len(sampler)} steps an epoch"
    )


def _in_words(result: EpochResult) -> str:
    shown = "" if result.top1 is None else f", top-1 {result.top1:.2%}"
    return f"loss {result.loss:.4f}{shown}"


def _step_function(run: Run, recipe: TrainingRecipe, accelerator: Accelerator) -> Step:
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


def _top1(module: nn.Module, source: SourceModel, evaluation: ImageSet, task: Task) -> float:
    device = next(module.parameters()).device
    labels = torch.from_numpy(evaluation.label_indices())
    right, seen = 0, 0
    preprocessing = source.description.preprocessing
    for batch in batches(evaluation, preprocessing, source.resolution, _EVALUATION_BATCH):
        with torch.inference_mode():
            answers = module(torch.from_numpy(batch).to(device)).argmax(-1).cpu()
        right += int((answers == labels[seen : seen + len(batch)]).sum())
        seen += len(batch)
        task.advance()
    return right / seen


def _finished(
    source: SourceModel, run: Run, recipe: TrainingRecipe, images: ImageSet
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


def _require_classifier(description: SourceDescription) -> None:
    if description.task != "classify":
        raise InputError(
            f"training is for classifiers with one label an image, not for {description.task}",
            hint="leave --task out",
        )


def _require_enough(
    images: ImageSet, recipe: TrainingRecipe, description: SourceDescription
) -> None:
    indices = set(images.label_indices().tolist())
    if len(images) < recipe.batch_size:
        raise InputError(
            f"{images.root} holds {len(images)} images, less than one batch",
            hint=f"add images or give --batch-size below {len(images)}",
        )
    unseen = [label for index, label in enumerate(images.labels) if index not in indices]
    without = sorted({*images.empty_classes, *unseen})
    if without:
        raise InputError(
            f"{images.root} holds no image of {len(without)} classes: {', '.join(without[:8])}",
            hint="add images to their folders, or remove the folders of what are no classes",
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


def _require_comparable(evaluation: ImageSet, images: ImageSet, progress: Progress) -> None:
    indices = set(evaluation.label_indices().tolist())
    if evaluation.labels != images.labels:
        raise InputError(
            f"{evaluation.root} has other labels than {images.root}",
            hint="name its class folders as those of the training images",
        )
    absent = [label for index, label in enumerate(images.labels) if index not in indices]
    if absent:
        progress.note(f"{evaluation.root} holds no image of: {', '.join(absent[:8])}")


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
        line = f"{name}:{item.label}:{item.path.stat().st_size}\n"
        # Names are bytes on most systems, and need not be UTF-8.
        digest.update(line.encode(errors="backslashreplace"))
    return digest.hexdigest()
