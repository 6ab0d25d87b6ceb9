"""Training learns, leaves nothing half-written, and refuses what it cannot train on."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from training_shapes import (
    LABELS,
    RECIPE,
    SHORT,
    TINY,
    Interrupt,
    accuracy,
    listing,
    start,
    train,
    write_folder,
)

from vitdeploy.errors import GateFailedError, InputError
from vitdeploy.images import ImageSet, scan
from vitdeploy.models.load import ModelRequest, load_source
from vitdeploy.models.source import weights_digest
from vitdeploy.training.initialize import POSITION_DEVIATION
from vitdeploy.training.recipe import TrainingRecipe


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


def test_another_seed_gives_other_weights(tmp_path: Path, images: ImageSet) -> None:
    recipe = replace(RECIPE, epochs=1)
    digests = {
        train(start(), images, None, replace(recipe, seed=seed), tmp_path / f"{seed}.safetensors")[
            0
        ].description.weights_digest
        for seed in (0, 1)
    }
    assert len(digests) == 2


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
        train(start(), images, None, SHORT, output, progress=Interrupt(steps=12), overwrite=True)
    assert output.read_bytes() == b"yesterday's"


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path: Path, images: ImageSet) -> None:
    source = start()
    with torch.no_grad():
        source.module.get_parameter("head.bias").fill_(float("nan"))
    with pytest.raises(GateFailedError, match="epoch 1 is not finite") as caught:
        train(source, images, None, SHORT, tmp_path / "a.safetensors")
    assert "--lr" in str(caught.value.hint)
    assert listing(tmp_path) == []


def test_what_is_trained_on_is_said_and_each_epoch_is_timed(
    tmp_path: Path, images: ImageSet, held_out: ImageSet
) -> None:
    sink = Interrupt()
    train(start(), images, held_out, SHORT, tmp_path / "a.safetensors", progress=sink)
    assert sink.heard[0] == (
        "training on 144 images of 3 classes, evaluated on 72, at 32x32 on CPU, 1 threads "
        "in float32: 9 steps an epoch"
    )
    for number, said in enumerate(sink.heard[1:], start=1):
        pattern = rf"epoch {number}/3: loss \d\.\d{{4}}, top-1 \d+\.\d\d%, \d+\.\d s"
        assert re.fullmatch(pattern, said), said
    # Nine steps of training and one batch of evaluation, each epoch.
    assert sink.totals == [10, 10, 10]
    assert sink.steps == 30


def test_images_that_are_not_square(tmp_path: Path, images: ImageSet) -> None:
    source = start(model_kwargs={**TINY, "img_size": [32, 48]})
    recipe = replace(SHORT, epochs=1)
    trained, _ = train(source, images, images, recipe, tmp_path / "a.safetensors")
    assert trained.resolution == (32, 48)
    loaded = load_source(ModelRequest(name=str(tmp_path / "a.safetensors")))
    assert loaded.description.native_resolution == (32, 48)
    assert accuracy(loaded, images) == accuracy(trained, images)


class TestInput:
    def test_a_class_without_images(self, tmp_path: Path) -> None:
        write_folder(tmp_path / "images", 8, seed=2)
        (tmp_path / "images" / "bag").mkdir()
        with pytest.raises(InputError, match="no image of 1 classes: bag") as caught:
            train(start(), scan(tmp_path / "images"), None, SHORT, tmp_path / "a.safetensors")
        assert "remove the folders" in str(caught.value.hint)

    def test_a_label_without_images(self, tmp_path: Path, images: ImageSet) -> None:
        two = images.take(range(96))
        with pytest.raises(InputError, match="no image of 1 classes: stripes"):
            train(start(), two, None, SHORT, tmp_path / "a.safetensors")

    def test_an_evaluation_set_that_lacks_a_class_is_said(
        self, tmp_path: Path, images: ImageSet, held_out: ImageSet
    ) -> None:
        sink, recipe = Interrupt(), replace(SHORT, epochs=1)
        two = held_out.take(range(48))
        train(start(), images, two, recipe, tmp_path / "a.safetensors", progress=sink)
        assert f"{held_out.root} holds no image of: stripes" in sink.heard

    def test_an_evaluation_set_that_cannot_be_judged_is_refused_before_training(
        self, tmp_path: Path, images: ImageSet
    ) -> None:
        flat = scan(images.root / "disc")
        sink = Interrupt()
        with pytest.raises(InputError, match="without labels"):
            train(start(), images, flat, SHORT, tmp_path / "a.safetensors", progress=sink)
        assert sink.steps == 0

    @pytest.mark.parametrize("task", ["multilabel", "regress"])
    def test_other_tasks(self, tmp_path: Path, images: ImageSet, task: Any) -> None:
        source = start()
        source = replace(source, description=replace(source.description, task=task))
        with pytest.raises(InputError, match=f"not for {task}"):
            train(source, images, None, SHORT, tmp_path / "a.safetensors")

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
            {"resolutions": (32, 48), "resolution_weights": (1.0, float("inf"))},
            {"resolutions": (32, 48), "resolution_weights": (float("nan"), 1.0)},
            {"resolutions": (32,), "resolution_weights": (0.0,)},
            {"learning_rate": float("nan")},
            {"learning_rate": float("inf")},
            {"learning_rate": 1e38},
            {"min_crop": float("nan")},
            {"ema_decay": float("nan")},
            {"ema_decay": 1.0},
            {"seed": -1},
            {"seed": 10**23},
        ],
        ids=str,
    )
    def test_recipes_that_make_no_sense(self, values: dict[str, Any]) -> None:
        with pytest.raises(InputError) as caught:
            TrainingRecipe(**values)
        assert caught.value.hint


def test_starting_positions_are_wide_and_named_by_the_digest() -> None:
    source = start()
    deviation = float(source.module.get_parameter("pos_embed").detach().std())
    assert 0.7 * POSITION_DEVIATION < deviation < 1.1 * POSITION_DEVIATION
    assert source.description.weights_digest == weights_digest(source.module.state_dict())
    assert source.description.weights_digest == start().description.weights_digest
