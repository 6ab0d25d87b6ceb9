"""Training learns, resumes bit for bit, mixes resolutions, and leaves nothing half-written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vitdeploy import api
from vitdeploy.errors import GateFailedError, InputError
from vitdeploy.images import ImageSet, batches, scan
from vitdeploy.models.load import ModelRequest, load_source
from vitdeploy.models.source import SourceModel, weights_digest
from vitdeploy.preprocessing import Preprocessing
from vitdeploy.progress import Task
from vitdeploy.training.data import MixedResolutionBatches, training_batches
from vitdeploy.training.initialize import POSITION_DEVIATION, widen_positions
from vitdeploy.training.loop import train
from vitdeploy.training.recipe import TrainingRecipe

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


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> ImageSet:
    return write_folder(tmp_path_factory.mktemp("train"), 48, seed=0)


@pytest.fixture(scope="module")
def held_out(tmp_path_factory: pytest.TempPathFactory) -> ImageSet:
    return write_folder(tmp_path_factory.mktemp("held-out"), 24, seed=1)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def start(labels: tuple[str, ...] = LABELS) -> SourceModel:
    request = ModelRequest(
        name="vit_tiny_patch16_224",
        random_weights=True,
        num_classes=len(labels),
        labels=labels,
        model_kwargs=TINY,
        preprocessing=Preprocessing(),
    )
    return api.starting_point(request, seed=0)


def accuracy(source: SourceModel, images: ImageSet) -> float:
    recipe = source.description.preprocessing
    logits = np.concatenate(
        [source.logits(batch) for batch in batches(images, recipe, source.resolution, 32)]
    )
    return float((logits.argmax(-1) == images.label_indices()).mean())


class Interrupt:
    """A progress sink that interrupts like Ctrl-C, after some steps or some notes."""

    def __init__(self, *, steps: int | None = None, notes: int | None = None) -> None:
        self._steps, self._notes = steps, notes
        self.heard: list[str] = []

    @contextmanager
    def task(self, description: str, total: int | None = None) -> Iterator[Task]:
        yield self

    def advance(self, steps: int = 1) -> None:
        if self._steps is not None:
            self._steps -= steps
            if self._steps <= 0:
                raise KeyboardInterrupt

    def note(self, text: str) -> None:
        self.heard.append(text)


def listing(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_it_learns_and_the_checkpoint_is_what_it_returned(
    tmp_path: Path, images: ImageSet, held_out: ImageSet
) -> None:
    output = tmp_path / "shapes.safetensors"
    source = start()
    before = weights_digest(source.module.state_dict())
    trained, history = train(source, images, held_out, RECIPE, output)
    assert accuracy(source, held_out) < 0.6
    assert accuracy(trained, held_out) > 0.9
    assert [result.epoch for result in history] == list(range(1, RECIPE.epochs + 1))
    assert history[-1].loss < history[0].loss
    assert history[-1].top1 == pytest.approx(accuracy(trained, held_out))
    assert weights_digest(source.module.state_dict()) == before
    assert listing(tmp_path) == ["shapes.safetensors"]

    loaded = load_source(ModelRequest(name=str(output)))
    assert loaded.description.labels == LABELS
    assert loaded.description.weights_digest == trained.description.weights_digest != before
    assert loaded.description.training["recipe"]["epochs"] == RECIPE.epochs
    assert len(loaded.description.training["history"]) == RECIPE.epochs
    assert accuracy(loaded, held_out) == accuracy(trained, held_out)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("after", [9, 14])
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(
    tmp_path: Path, images: ImageSet, after: int, workers: int
) -> None:
    """A step is a batch of 16 of 144 images, so 9 is the end of an epoch and 14 its middle."""
    recipe = replace(SHORT, resolutions=(32, 48))
    whole, _ = train(start(), images, None, recipe, tmp_path / "whole.safetensors")
    output = tmp_path / "parts.safetensors"
    recipe = replace(recipe, workers=workers)
    with pytest.raises(KeyboardInterrupt):
        train(start(), images, None, recipe, output, progress=Interrupt(steps=after + 1))
    assert listing(tmp_path) == ["parts.safetensors.resume", "whole.safetensors"]
    sink = Interrupt()
    resumed, history = train(start(), images, None, recipe, output, resume=True, progress=sink)
    assert len(sink.heard) == SHORT.epochs - 1  # the first epoch was not run again
    assert len(history) == SHORT.epochs
    assert resumed.description.weights_digest == whole.description.weights_digest
    assert listing(tmp_path) == ["parts.safetensors", "whole.safetensors"]


def test_another_seed_gives_other_weights(tmp_path: Path, images: ImageSet) -> None:
    recipe = replace(RECIPE, epochs=1)
    digests = {
        train(start(), images, None, replace(recipe, seed=seed), tmp_path / f"{seed}.safetensors")[
            0
        ].description.weights_digest
        for seed in (0, 1)
    }
    assert len(digests) == 2


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"recipe": replace(SHORT, learning_rate=1e-3)}, "recipe"),
        ({"recipe": replace(SHORT, epochs=4)}, "recipe"),
        ({"seed": 1}, "weights"),
        ({"fewer": True}, "images"),
    ],
    ids=["rate", "epochs", "weights", "images"],
)
def test_a_state_of_another_run_is_refused(
    tmp_path: Path, images: ImageSet, change: dict[str, Any], named: str
) -> None:
    output = tmp_path / "a.safetensors"
    with pytest.raises(KeyboardInterrupt):
        train(start(), images, None, SHORT, output, progress=Interrupt(steps=10))
    source = start()
    if "seed" in change:
        widen_positions(source.module, seed=9)
        digest = weights_digest(source.module.state_dict())
        source = replace(source, description=replace(source.description, weights_digest=digest))
    chosen = images.take(range(32)) if "fewer" in change else images
    with pytest.raises(InputError, match=named) as caught:
        train(source, chosen, None, change.get("recipe", SHORT), output, resume=True)
    assert "--resume" in str(caught.value.hint)


def test_other_images_of_the_same_number_are_refused(
    tmp_path: Path, images: ImageSet, held_out: ImageSet
) -> None:
    output = tmp_path / "a.safetensors"
    with pytest.raises(KeyboardInterrupt):
        train(start(), held_out, None, SHORT, output, progress=Interrupt(steps=5))
    with pytest.raises(InputError, match="images"):
        train(start(), images.take(range(len(held_out))), None, SHORT, output, resume=True)


@pytest.mark.parametrize(
    "content", [None, b"", b"nothing of ours", "list"], ids=["none", "empty", "text", "list"]
)
def test_a_state_that_cannot_be_read(tmp_path: Path, images: ImageSet, content: Any) -> None:
    state = tmp_path / "a.safetensors.resume"
    if content == "list":
        torch.save([1, 2], state)
    elif content is not None:
        state.write_bytes(content)
    with pytest.raises(InputError, match="resume") as caught:
        train(start(), images, None, SHORT, tmp_path / "a.safetensors", resume=True)
    assert "without --resume" in str(caught.value.hint)


def test_interrupted_before_the_first_epoch_ends_leaves_nothing(
    tmp_path: Path, images: ImageSet
) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(start(), images, None, SHORT, tmp_path / "a.safetensors", progress=Interrupt(steps=2))
    assert listing(tmp_path) == []


def test_an_old_checkpoint_outlives_an_interrupted_run(tmp_path: Path, images: ImageSet) -> None:
    output = tmp_path / "a.safetensors"
    output.write_bytes(b"yesterday's")
    with pytest.raises(KeyboardInterrupt):
        train(start(), images, None, SHORT, output, progress=Interrupt(steps=12))
    assert output.read_bytes() == b"yesterday's"


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path: Path, images: ImageSet) -> None:
    source = start()
    with torch.no_grad():
        source.module.get_parameter("head.bias").fill_(float("nan"))
    with pytest.raises(GateFailedError, match="epoch 1 is not finite") as caught:
        train(source, images, None, SHORT, tmp_path / "a.safetensors")
    assert "--lr" in str(caught.value.hint)
    assert listing(tmp_path) == []


class TestInput:
    def test_too_few_images(self, tmp_path: Path, images: ImageSet) -> None:
        with pytest.raises(InputError, match="holds 15 images") as caught:
            train(start(), images.take(range(15)), None, SHORT, tmp_path / "a.safetensors")
        assert "--batch-size below" in str(caught.value.hint)

    def test_images_without_labels(self, tmp_path: Path, images: ImageSet) -> None:
        flat = scan(images.root / "disc")
        with pytest.raises(InputError, match="without labels"):
            train(start(), flat, None, SHORT, tmp_path / "a.safetensors")

    @pytest.mark.parametrize(
        ("labels", "named"),
        [(("disc", "b"), "b, frame"), (("disc", "stripes", "frame"), "another order")],
        ids=str,
    )
    def test_other_labels(
        self, tmp_path: Path, images: ImageSet, labels: tuple[str, ...], named: str
    ) -> None:
        with pytest.raises(InputError, match="labels") as caught:
            train(start(labels), images, None, SHORT, tmp_path / "a.safetensors")
        assert caught.value.hint
        assert named in str(caught.value)

    @pytest.mark.parametrize("evaluated", [False, True])
    def test_an_unreadable_image_is_named(self, tmp_path: Path, evaluated: bool) -> None:
        good = write_folder(tmp_path / "good", 8, seed=2)
        bad = write_folder(tmp_path / "bad", 8, seed=2)
        bad.items[3].path.write_bytes(b"")
        assert len(bad) == 24
        pair = (good, bad) if evaluated else (bad, good)
        with pytest.raises(InputError, match=str(bad.items[3].path)):
            train(start(), *pair, replace(SHORT, batch_size=24), tmp_path / "out" / "a.safetensors")
        assert not (tmp_path / "out" / "a.safetensors").exists()

    def test_an_unreadable_image_is_named_across_processes(self, tmp_path: Path) -> None:
        bad = write_folder(tmp_path / "bad", 8, seed=2)
        bad.items[3].path.write_bytes(b"")
        recipe = replace(SHORT, workers=1, batch_size=24)
        with pytest.raises(InputError, match=str(bad.items[3].path)) as caught:
            train(start(), bad, None, recipe, tmp_path / "out" / "a.safetensors")
        assert "\n" not in str(caught.value)
        assert caught.value.hint

    @pytest.mark.parametrize("size", [36, 4])
    def test_a_resolution_that_is_no_multiple_of_the_patch(
        self, tmp_path: Path, images: ImageSet, size: int
    ) -> None:
        recipe = replace(SHORT, resolutions=(32, size))
        with pytest.raises(InputError, match="multiple of the patch size") as caught:
            train(start(), images, None, recipe, tmp_path / "a.safetensors")
        assert caught.value.hint

    @pytest.mark.parametrize(
        "values",
        [
            {"epochs": 0},
            {"batch_size": 1},
            {"learning_rate": 0.0},
            {"min_crop": 0.0},
            {"resolutions": (32, 48), "resolution_weights": (1.0,)},
            {"resolution_weights": (1.0,)},
        ],
        ids=str,
    )
    def test_recipes_that_make_no_sense(self, values: dict[str, Any]) -> None:
        with pytest.raises(InputError) as caught:
            TrainingRecipe(**values)
        assert caught.value.hint


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
        share = np.mean([batch[0].resolution == 32 for batch in sampler])
        assert 0.75 < share < 0.85

    def test_without_resolutions_the_native_one(self) -> None:
        sampler = MixedResolutionBatches(32, (48, 48), RECIPE)
        assert {draw.resolution for batch in sampler for draw in batch} == {48}


def test_starting_positions_are_wide_and_named_by_the_digest() -> None:
    source = start()
    deviation = float(source.module.get_parameter("pos_embed").detach().std())
    assert 0.7 * POSITION_DEVIATION < deviation < 1.1 * POSITION_DEVIATION
    assert source.description.weights_digest == weights_digest(source.module.state_dict())
    assert source.description.weights_digest == start().description.weights_digest
