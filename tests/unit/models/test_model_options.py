"""What the command line says of a model reaches the request, and replaces parts of the source."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from vitdeploy.cli.options import MODEL_KEYS, model_options, requested_model
from vitdeploy.errors import InputError
from vitdeploy.models import checkpoint
from vitdeploy.models.load import ModelRequest, load_source, seeded_random_source
from vitdeploy.preprocessing import Preprocessing
from vitdeploy.workspace import open_workspace

NAME = "vit_tiny_patch16_224"
TINY = {"img_size": 64, "patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 2}
FLAGS = [
    "--mean", "0,0,0", "--std", "1,1,1", "--interpolation", "bilinear", "--crop-pct", "0.5",
    "--crop-mode", "squash", "--task", "multilabel",
]  # fmt: skip


def asked(*arguments: str) -> Any:
    """The request that arguments make, or the command line's refusal as text."""
    found: list[Any] = []

    @click.command()
    @model_options
    def command(**model: Any) -> None:
        assert model.keys() == set(MODEL_KEYS)
        found.append(requested_model(None, model))

    result = CliRunner().invoke(command, list(arguments))
    return found[0] if result.exit_code == 0 else result.output


def test_flags_reach_the_request() -> None:
    request = asked("--model", NAME, "--random-weights", *FLAGS)
    assert request == ModelRequest(
        name=NAME,
        random_weights=True,
        mean=(0.0, 0.0, 0.0),
        std=(1.0, 1.0, 1.0),
        interpolation="bilinear",
        crop_pct=0.5,
        crop_mode="squash",
        task="multilabel",
    )
    described = load_source(replace(request, num_classes=3, model_kwargs=TINY)).description
    assert described.task == "multilabel"
    assert described.preprocessing == Preprocessing(
        (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), "bilinear", 0.5, "squash"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--std", "0,1,1"], "above zero"),
        (["--mean=-1,0,0"], "zero or above"),
        (["--crop-pct", "0"], "range"),
        (["--task", "detect"], "multilabel"),
        (["--interpolation", "cubic"], "bicubic"),
    ],
)
def test_values_that_cannot_be(arguments: list[str], words: str) -> None:
    assert words in asked("--model", NAME, *arguments)


def test_a_flag_without_a_model() -> None:
    assert "name it with --model" in asked("--crop-pct", "0.5")


def test_one_flag_replaces_one_part() -> None:
    request = ModelRequest(name=NAME, random_weights=True, num_classes=3, model_kwargs=TINY)
    source = load_source(request).description.preprocessing
    changed = load_source(replace(request, crop_pct=0.7)).description.preprocessing
    assert changed == replace(source, crop_pct=0.7)
    with pytest.raises(InputError, match="mean has 1 values and std 3"):
        load_source(replace(request, mean=(0.5,)))


def test_one_channel() -> None:
    request = ModelRequest(
        name=NAME, random_weights=True, num_classes=3, in_chans=1, model_kwargs=TINY
    )
    gray = load_source(replace(request, mean=(0.4,), std=(0.3,)))
    assert gray.description.in_chans == gray.description.preprocessing.channels == 1


def test_a_described_checkpoint_named_with_its_model_keeps_labels_and_preprocessing(
    tmp_path: Path,
) -> None:
    request = ModelRequest(
        name=NAME, random_weights=True, num_classes=3, model_kwargs=TINY,
        labels=("a", "b", "c"), crop_pct=0.5,
    )  # fmt: skip
    source = seeded_random_source(request, 0)
    path = tmp_path / "mine.safetensors"
    checkpoint.save(path, source.module.state_dict(), source.description)
    for kwargs in (None, {}, TINY):
        named = ModelRequest(name=NAME, checkpoint=path, model_kwargs=kwargs)
        assert load_source(named).description == source.description
    other = ModelRequest(name=NAME, checkpoint=path, num_classes=3, model_kwargs={"depth": 2})
    with pytest.raises(InputError, match="does not fit"):
        load_source(other)


def test_the_recipe_says_it_too(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "vitdeploy.toml").write_text(
        '[model]\nname = "model"\ntask = "features"\nmean = [0.1, 0.2, 0.3]\n'
        'std = [1.0, 1.0, 1.0]\ninterpolation = "lanczos"\ncrop_pct = 0.9\ncrop_mode = "border"\n'
    )
    request = open_workspace(tmp_path, lambda line: None).model_request(None)
    assert request.name == str(tmp_path / "model")
    assert request.task == "features"
    assert request.preprocessed(lambda: None) == Preprocessing(
        (0.1, 0.2, 0.3), (1.0, 1.0, 1.0), "lanczos", 0.9, "border"
    )
