"""`Preprocessing` held to timm's own evaluation transform, and its identity."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from matplotlib import cbook
from numpy.typing import NDArray
from PIL import Image
from timm.data.transforms_factory import create_transform

from vitdeploy.errors import InputError
from vitdeploy.preprocessing import CropMode, Preprocessing

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
TOLERANCE = 1e-6


@cache
def portrait() -> Image.Image:
    """512x600 pixels of a real photograph."""
    path = Path(str(cbook.get_sample_data("grace_hopper.jpg", asfileobj=False)))
    return Image.open(path).convert("RGB")


def photograph(height: int, width: int) -> Image.Image:
    assert height <= portrait().height
    assert width <= portrait().width
    return portrait().crop((0, 0, width, height))


def timm_output(
    image: Image.Image, recipe: Preprocessing, size: tuple[int, int]
) -> NDArray[np.float32]:
    transform = create_transform(
        (len(recipe.mean), *size),
        is_training=False,
        mean=recipe.mean,
        std=recipe.std,
        interpolation=recipe.interpolation,
        crop_pct=recipe.crop_pct,
        crop_mode=recipe.crop_mode,
    )
    return cast("Callable[[Image.Image], torch.Tensor]", transform)(image).numpy()


@pytest.mark.parametrize("shape", [(333, 500), (500, 333), (28, 28), (97, 256)])
@pytest.mark.parametrize("size", [(96, 96), (96, 160), (160, 96), (33, 33)])
@pytest.mark.parametrize("crop_pct", [0.875, 0.9, 1.0])
@pytest.mark.parametrize("crop_mode", ["center", "squash", "border"])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
def test_equals_timm(
    shape: tuple[int, int],
    size: tuple[int, int],
    crop_pct: float,
    crop_mode: CropMode,
    interpolation: str,
) -> None:
    recipe = Preprocessing(MEAN, STD, interpolation, crop_pct, crop_mode)
    image = photograph(*shape)
    own = recipe.apply(image, size)
    assert own.shape == (3, *size)
    assert own.dtype == np.float32
    assert own.flags.c_contiguous
    np.testing.assert_allclose(own, timm_output(image, recipe, size), rtol=0, atol=TOLERANCE)


def test_equals_timm_in_one_channel() -> None:
    recipe = Preprocessing((0.3,), (0.4,), crop_pct=0.875)
    image = photograph(120, 77).convert("L")
    own = recipe.apply(image, (64, 64))
    assert own.shape == (1, 64, 64)
    np.testing.assert_allclose(own, timm_output(image, recipe, (64, 64)), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    "change",
    [
        {"mean": MEAN[::-1]},
        {"mean": (0.5, 0.5, 0.5)},
        {"std": (0.5, 0.5, 0.5)},
        {"interpolation": "bilinear"},
        {"crop_pct": 0.9},
        {"crop_mode": "squash"},
        {"crop_mode": "border"},
    ],
    ids=str,
)
def test_a_planted_defect_is_seen(change: dict[str, object]) -> None:
    recipe = Preprocessing(MEAN, STD, crop_pct=0.875)
    image = photograph(333, 500)
    wrong = replace(recipe, **change).apply(image, (224, 224))  # pyright: ignore[reportArgumentType]
    assert np.abs(wrong - timm_output(image, recipe, (224, 224))).max() > 1000 * TOLERANCE


def test_swapped_channels_are_seen() -> None:
    recipe = Preprocessing(MEAN, STD)
    image = photograph(333, 500)
    swapped = Image.merge("RGB", image.split()[::-1])
    difference = recipe.apply(swapped, (224, 224)) - timm_output(image, recipe, (224, 224))
    assert np.abs(difference).max() > 1000 * TOLERANCE


def test_the_image_given_is_left_alone() -> None:
    image = photograph(64, 64)
    before = image.tobytes()
    Preprocessing().apply(image, (64, 64))[:] = 7
    assert image.tobytes() == before


def test_digest_changes_with_every_field() -> None:
    base = Preprocessing(MEAN, STD, "bicubic", 0.9, "center")
    others = {
        "mean": (0.485, 0.456, 0.4061),
        "std": (0.229, 0.224, 0.2251),
        "interpolation": "lanczos",
        "crop_pct": 0.91,
        "crop_mode": "squash",
    }
    assert others.keys() == {field.name for field in fields(Preprocessing)}
    digests = {
        replace(base, **{name: value}).digest  # pyright: ignore[reportArgumentType]
        for name, value in others.items()
    }
    assert len(digests | {base.digest}) == len(others) + 1
    assert replace(base).digest == base.digest


@pytest.mark.parametrize(
    ("recipe", "size", "words"),
    [
        (Preprocessing(crop_pct=0.875), (224, 224), "shorter side to 256, center crop 224x224"),
        (Preprocessing(crop_pct=0.875), (384, 384), "shorter side to 438, center crop 384x384"),
        (Preprocessing(crop_mode="squash"), (384, 512), "squash to 384x512, center crop 384x512"),
        (Preprocessing(crop_mode="border"), (96, 64), "fit into 96x64, pad to 96x64"),
        (Preprocessing(), (384, 512), "cover 384x512, center crop 384x512"),
    ],
)
def test_describe_at_says_what_is_done(
    recipe: Preprocessing, size: tuple[int, int], words: str
) -> None:
    text = recipe.describe_at(size)
    assert text.startswith(words)
    assert "bicubic" in text
    assert str(recipe.mean) in text


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"interpolation": "cubic"}, "cubic"),
        ({"crop_mode": "middle"}, "middle"),
        ({"crop_pct": 0.0}, "0.0"),
        ({"crop_pct": 1.01}, "1.01"),
        ({"crop_pct": float("nan")}, "nan"),
        ({"mean": (0.5,)}, "1 values"),
        ({"mean": (0.5, 0.5), "std": (0.5, 0.5)}, "2 values"),
        ({"std": (0.5, 0.5, 0.0)}, "0.0"),
        ({"std": (0.5, 0.5, -1.0)}, "-1.0"),
        ({"std": (0.5, 0.5, float("nan"))}, "nan"),
        ({"std": (0.5, 0.5, float("inf"))}, "inf"),
        ({"mean": (0.5, 0.5, float("nan"))}, "nan"),
        ({"mean": (127.0, 127.0, 127.0)}, "127"),
        ({"std": (58.0, 57.0, 57.0)}, "58"),
    ],
    ids=str,
)
def test_bad_values_are_refused(values: dict[str, object], named: str) -> None:
    with pytest.raises(InputError, match=named) as caught:
        Preprocessing(**values)  # pyright: ignore[reportArgumentType]
    assert caught.value.hint
