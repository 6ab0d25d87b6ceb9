"""Which images are drawn: balanced, repeatable, distinct by content."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from vitdeploy.calibration.image_set import MINIMUM, choose
from vitdeploy.errors import CalibrationError, InputError
from vitdeploy.images import ImageItem, ImageSet, image_digest


def test_classes_are_balanced_even_where_the_folder_is_not(images: ImageSet) -> None:
    light = [index for index, item in enumerate(images.items) if item.label == 0]
    dark = [index for index, item in enumerate(images.items) if item.label == 1]
    uneven = images.take([*light[:20], *dark[:9]])
    chosen = choose(uneven, count=16, seed=0)
    assert Counter(item.label for item in chosen.images.items) == {0: 8, 1: 8}
    more = choose(uneven, count=24, seed=0)
    assert Counter(item.label for item in more.images.items) == {0: 15, 1: 9}


def test_the_seed_decides(images: ImageSet) -> None:
    first = choose(images, count=16, seed=1)
    assert choose(images, count=16, seed=1) == first
    other = choose(images, count=16, seed=2)
    assert set(other.digests) != set(first.digests)
    assert other.digest != first.digest


def test_digests_name_the_files(images: ImageSet) -> None:
    chosen = choose(images, count=16)
    assert chosen.digests == tuple(image_digest(item.path) for item in chosen.images.items)
    assert len(chosen) == 16


def test_the_sets_digest_ignores_the_order(images: ImageSet) -> None:
    everything = [choose(images, count=40, seed=seed) for seed in (0, 1)]
    assert everything[0].digests != everything[1].digests
    assert everything[0].digest == everything[1].digest


def test_copies_count_once(images: ImageSet, tmp_path: Path) -> None:
    originals = images.items[:16]
    copies = []
    for number, item in enumerate(originals):
        path = tmp_path / f"copy-{number}.png"
        shutil.copy(item.path, path)
        copies.append(ImageItem(path, item.label))
    doubled = ImageSet(images.root, (*originals, *copies), images.labels)
    chosen = choose(doubled, count=32)
    assert len(chosen) == len(set(chosen.digests)) == 16
    with pytest.raises(CalibrationError, match="15 distinct") as caught:
        choose(ImageSet(images.root, (*originals[:15], *copies[:15]), images.labels), count=30)
    assert str(MINIMUM) in str(caught.value.hint)


def test_too_few_are_refused(images: ImageSet) -> None:
    with pytest.raises(InputError, match="too few"):
        choose(images, count=MINIMUM - 1)
    with pytest.raises(CalibrationError, match="15 distinct"):
        choose(images.take(range(15)), count=128)
    with pytest.raises(CalibrationError, match="0 distinct"):
        choose(images.take([]), count=128)


def test_a_smaller_folder_gives_what_it_has(images: ImageSet) -> None:
    assert len(choose(images, count=512)) == 40


def test_unlabelled_images_are_drawn_too(images: ImageSet) -> None:
    flat = ImageSet(images.root, tuple(ImageItem(item.path) for item in images.items))
    assert len(choose(flat, count=20)) == 20
