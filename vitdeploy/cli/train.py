"""`vitdeploy train`."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from vitdeploy.cli import console
from vitdeploy.cli.next_step import command_line
from vitdeploy.cli.options import (
    LARGEST_BATCH,
    LONGEST_SIDE,
    MODEL_KEYS,
    PATH,
    SEED,
    Finite,
    ModelName,
    Numbers,
    Resolution,
    json_option,
    model_options,
    requested_model,
    threads_option,
)


@click.command()
@click.option(
    "--data",
    required=True,
    help="Training images, one sub-folder a class; or "
    "'fashion-mnist' (Debian's package, or --idx).",
)
@click.option("--eval", "eval_data", type=PATH, help="Evaluation images, the same classes.")
@click.option("--idx", type=PATH, help="Folder of Fashion-MNIST's four idx files.")
@click.option(
    "-o", "--out", "output", type=PATH, required=True, help="The checkpoint, .safetensors."
)
@click.option("--overwrite", is_flag=True, help="Replace a checkpoint that is there, at the end.")
@click.option(
    "--name",
    type=ModelName(),
    help="What files and reports call the model (default: the output's name).",
)
@click.option("--epochs", type=click.IntRange(1, 1_000_000), default=10, show_default=True)
@click.option(
    "--optimizer",
    type=click.Choice(["adamw", "muon"]),
    default="adamw",
    show_default=True,
    help="muon learns faster from scratch (torch 2.9 or newer).",
)
@click.option(
    "-b", "--batch-size", type=click.IntRange(2, LARGEST_BATCH), default=64, show_default=True
)
@click.option("--lr", type=Finite(0, 1000, min_open=True), default=1e-3, show_default=True)
@click.option(
    "--ema-decay",
    type=Finite(0, 1, max_open=True),
    default=0.999,
    show_default=True,
    help="How much of the averaged weights stays at each step.",
)
@click.option(
    "--min-crop",
    type=Finite(0, 1, min_open=True),
    default=0.8,
    show_default=True,
    help="Smallest share of an image that a random crop keeps.",
)
@click.option(
    "--res",
    type=Resolution(),
    help="The model's own resolution, 96 or 96x128 (with --random-weights; other patches "
    "with --model-kwargs '{\"patch_size\": 8}').",
)
@click.option(
    "--mixed-res", type=Numbers(int, most=LONGEST_SIDE), help="Resolutions drawn per batch."
)
@click.option("--mixed-odds", type=Numbers(float), help="The odds of each.")
@click.option(
    "--mixed-precision",
    type=click.Choice(["auto", "no", "bf16", "fp16"]),
    default="auto",
    show_default=True,
    help="auto: bf16 on GPUs that have it.",
)
@click.option("-j", "--workers", type=click.IntRange(0, 1024), default=1, show_default=True)
@click.option("--seed", type=SEED, default=0, show_default=True)
@click.option("--resume", is_flag=True, help="Go on after the last finished epoch.")
@model_options
@threads_option
@json_option
def command(
    data: str, eval_data: Path | None, idx: Path | None, output: Path, as_json: bool, **options: Any
) -> None:
    """Fine-tune or train a ViT and write a checkpoint that describes itself.

    Give --model with --pretrained, --checkpoint, or --random-weights to train
    from scratch. The weights written are an average over the last steps. After
    each epoch the state is saved beside the output, for --resume.

    \b
      vitdeploy train --model vit_small_patch16_224 --pretrained \\
        --data train/ --eval val/ -o flowers.safetensors
      vitdeploy train --model vit_tiny_patch16_224 --random-weights --res 96 \\
        --data train/ -o scratch.safetensors
    """
    from vitdeploy import api
    from vitdeploy.training.destination import Destination

    if options["mixed_odds"] and not options["mixed_res"]:
        raise click.UsageError("--mixed-odds are those of --mixed-res, which was not given")
    if idx is not None and data != "fashion-mnist":
        raise click.UsageError("--idx goes with --data fashion-mnist")
    sink = console.progress()
    destination = Destination(output, resume=options["resume"], overwrite=options["overwrite"])
    _require_other_file(output, options)
    destination.require_usable()
    request = _request(options)
    images, evaluation = _images(data, eval_data, idx, _own_labels(request), sink)
    source = _starting_point(request, options, images.labels, options["name"] or output.stem)
    with api.needs_torch("training"):
        from vitdeploy.training.recipe import TrainingRecipe
    recipe = TrainingRecipe(
        epochs=options["epochs"],
        optimizer=options["optimizer"],
        batch_size=options["batch_size"],
        learning_rate=options["lr"],
        ema_decay=options["ema_decay"],
        min_crop=options["min_crop"],
        resolutions=options["mixed_res"] or (),
        resolution_weights=options["mixed_odds"] or (),
        mixed_precision=options["mixed_precision"],
        workers=options["workers"],
        seed=options["seed"],
    )
    trained, history = api.train(source, images, evaluation, recipe, destination, progress=sink)
    last = history[-1]
    top1 = "" if last.top1 is None else f", top-1 {last.top1:.2%}"
    record = {
        "path": str(output),
        "epochs": last.epoch,
        "loss": last.loss,
        "top1": last.top1,
        "weights_digest": trained.description.weights_digest,
    }
    console.emit(
        as_json,
        record,
        f"{output}: {last.epoch} epochs, loss {last.loss:.3f}{top1}\n"
        f"  next: {command_line('export', output)}",
    )


def _request(options: dict[str, Any]) -> Any:
    from vitdeploy.models.preflight import require_present
    from vitdeploy.workspace import embedded

    request = requested_model(None, {key: options[key] for key in MODEL_KEYS})
    if request is None:
        raise click.UsageError("name a model with --model")
    request = embedded(request)
    require_present(request)
    return request


def _own_labels(request: Any) -> tuple[str, ...]:
    """The labels of a checkpoint that describes itself, in its order; else none."""
    from vitdeploy.artifacts.source import description_in

    path = Path(request.name)
    description = description_in(path) if path.suffix == ".safetensors" else None
    return () if description is None else description.labels


def _images(
    data: str, eval_data: Path | None, idx: Path | None, own: tuple[str, ...], sink: Any
) -> tuple[Any, Any]:
    from vitdeploy import environment
    from vitdeploy.demo import fashion_mnist
    from vitdeploy.images import scan

    if data != "fashion-mnist":
        images = scan(Path(data))
        if set(images.labels) == set(own):  # fine-tuning keeps the order of the head's classes
            images = scan(Path(data), labels=own)
        return images, None if eval_data is None else scan(eval_data, labels=images.labels)
    root = fashion_mnist.unpack(
        idx or fashion_mnist.DEBIAN_FOLDER,
        environment.cache_folder() / "fashion-mnist",
        progress=sink,
    )
    labels = fashion_mnist.LABELS
    return scan(root / "train", labels=labels), scan(eval_data or root / "test", labels=labels)


def _starting_point(
    request: Any, options: dict[str, Any], labels: tuple[str, ...], name: str
) -> Any:
    """The model with one output per class of the images."""
    from dataclasses import replace

    from vitdeploy import api
    from vitdeploy.models.preflight import require_sizes

    request = replace(request, num_classes=request.num_classes or len(labels), labels=labels)
    if options["res"] is not None:
        request = _sized(request, options["res"])
        require_sizes(request, [options["res"]])
    mixed = options["mixed_res"] or ()
    require_sizes(request, [(side, side) for side in mixed], option="--mixed-res")
    source = api.starting_point(request, seed=options["seed"], threads=options["threads"])
    if options["res"] is not None:
        source.require_patch_multiple(source.resolution)
    return api.relabelled(source, name)


_SIZE_ARGUMENTS = {"timm": "img_size", "torchvision": "image_size"}


def _sized(request: Any, resolution: tuple[int, int]) -> Any:
    """`request` for a model made for `resolution`, by its library's own argument."""
    from dataclasses import replace

    from vitdeploy.models.names import understood

    if not request.random_weights:
        raise click.UsageError(
            "--res is the size of a model trained from --random-weights; fine-tune at other "
            "sizes with --mixed-res"
        )
    library = understood(request.name).library
    argument = _SIZE_ARGUMENTS.get(library)
    kwargs = request.model_kwargs or {}
    if argument is None:
        raise click.UsageError(f"the size of {request.name} is given with --model-kwargs")
    if argument in kwargs:
        raise click.UsageError(f"the size is given twice: --res and {argument} in --model-kwargs")
    height, width = resolution
    size = height if height == width else [height, width]
    return replace(request, model_kwargs={**kwargs, argument: size})


def _require_other_file(output: Path, options: dict[str, Any]) -> None:
    """Raise InputError where the run would replace the weights it begins with."""
    from vitdeploy.errors import InputError

    for given in (options["checkpoint"], options["model_name"]):
        # Names of models are no files; what cannot be looked at is refused when it is read.
        with suppress(OSError):
            if given is not None and Path(given).samefile(output):
                raise InputError(
                    f"{output} is the checkpoint training begins with",
                    hint="give --out another name",
                )
