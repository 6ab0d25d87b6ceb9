"""What a draw passes over, reads, says and refuses."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from vitdeploy.artifacts.calibration import Finding
from vitdeploy.artifacts.source import SourceDescription
from vitdeploy.calibration import drawing
from vitdeploy.calibration.examination import Broken, Picture, examine
from vitdeploy.calibration.image_set import CalibrationSet, choose, require_unseen
from vitdeploy.errors import CalibrationError
from vitdeploy.images import ImageItem, ImageSet, decode, scan
from vitdeploy.preprocessing import Preprocessing


def fill(folder: Path, names: list[str], *, first: int = 0) -> Path:
    """Images of noise, each from its own seed."""
    for seed, name in enumerate(names, first):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(seed).integers(0, 256, (16, 20, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / name)
    return folder


def classes(folder: Path, *names: str, each: int) -> Path:
    return fill(folder, [f"{name}/{i:03d}.png" for name in names for i in range(each)])


def said(chosen: CalibrationSet) -> dict[str, Finding]:
    return {finding.kind: finding for finding in chosen.findings}


def source(*labels: str, in_chans: int = 3) -> SourceDescription:
    return SourceDescription(
        name="vit",
        library="timm",
        architecture="vit_tiny_patch16_224",
        model_kwargs={},
        native_resolution=(224, 224),
        in_chans=in_chans,
        labels=labels,
        weights_digest="0",
        preprocessing=Preprocessing(),
    )


class TestPassedOver:
    def test_another_of_the_class_is_drawn_for_each(self, tmp_path: Path) -> None:
        root = classes(tmp_path, "a", "b", each=20)
        for name in ("a/000.png", "a/001.png", "a/002.png"):
            (root / name).write_bytes(b"no image")
        for i in (3, 4):
            cut = (root / f"a/{i:03d}.png").read_bytes()[:-60]
            (root / f"a/{i:03d}.png").write_bytes(cut)
        shutil.copy(root / "a/006.png", root / "a/005.png")
        for seed in range(10):
            chosen = choose(scan(root), count=28, seed=seed)
            assert Counter(item.label for item in chosen.images.items) == {0: 14, 1: 14}
            used = {chosen.images.name(i) for i in range(28)}
            assert not used & {f"a/{i:03d}.png" for i in range(5)}
            assert len(used & {"a/005.png", "a/006.png"}) == 1

    def test_all_of_them_are_listed(self, tmp_path: Path) -> None:
        root = classes(tmp_path, "a", "b", each=20)
        (root / "a/000.png").write_bytes(b"no image")
        (root / "b/001.png").write_bytes(b"no image")
        (root / "a/003.png").write_bytes((root / "a/003.png").read_bytes()[:-60])
        shutil.copy(root / "a/006.png", root / "b/005.png")
        found = said(choose(scan(root), count=100))
        assert set(found["unreadable"].about) == {"a/000.png", "b/001.png"}
        assert set(found["truncated"].about) == {"a/003.png"}
        (copy,) = found["exact_duplicates"].about.items()
        assert copy in (("b/005.png", "as a/006.png"), ("a/006.png", "as b/005.png"))
        assert set(found) == {"unreadable", "truncated", "exact_duplicates", "too_few"}

    def test_a_clean_folder_has_nothing_to_say(self, tmp_path: Path) -> None:
        assert choose(scan(classes(tmp_path, "a", "b", each=20)), count=40).findings == ()

    def test_too_few_say_why(self, tmp_path: Path) -> None:
        root = fill(tmp_path, [f"{i}.png" for i in range(15)])
        (root / "15.png").write_bytes(b"no image")
        shutil.copy(root / "1.png", root / "16.png")
        expected = (
            r"15 distinct images, too few .*1 cannot be read \(15.png\) and 1 are copies of others"
        )
        with pytest.raises(CalibrationError, match=expected):
            choose(scan(root), count=20)

    def test_fewer_than_asked_are_a_finding(self, tmp_path: Path) -> None:
        root = fill(tmp_path, [f"{i}.png" for i in range(17)])
        assert "17 of the 18 images" in said(choose(scan(root), count=18))["too_few"].meaning
        assert "too_few" not in said(choose(scan(root), count=17))

    def test_one_picture_in_many_files_is_refused(self, tmp_path: Path) -> None:
        image = Image.fromarray(np.arange(60, dtype=np.uint8).reshape(4, 5, 3))
        for i in range(20):
            image.save(tmp_path / f"{i}.png", dpi=(72 + i, 72))
        assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 20
        with pytest.raises(CalibrationError, match="show the same picture"):
            choose(scan(tmp_path), count=20)
        fill(tmp_path, ["20.png"])
        found = said(choose(scan(tmp_path), count=21))["near_duplicates"]
        assert len(found.about) == 19
        assert "about 2 different" in found.meaning


def test_what_pillow_warns_of_is_no_warning_of_ours(tmp_path: Path) -> None:
    """Warnings are errors here: with one, the image would be unreadable."""
    root = fill(tmp_path, [f"{i}.png" for i in range(20)])
    image = Image.open(root / "3.png")
    image.save(root / "20.jpg", exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x09broken")
    with pytest.warns(UserWarning, match="Corrupt EXIF data"):
        decode(root / "20.jpg")
    assert "unreadable" not in said(choose(scan(root), count=21))


class TestCost:
    def test_only_the_images_drawn_are_read(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Those that cannot be used, and not one more than the set holds."""
        root = classes(tmp_path, "a", "b", each=200)
        for i in range(0, 200, 5):
            (root / f"a/{i:03d}.png").write_bytes(b"no image")
        read: list[Path] = []

        def counted(path: Path) -> Picture | Broken:
            read.append(path)
            return examine(path)

        monkeypatch.setattr(drawing, "examine", counted)
        chosen = choose(scan(root), count=50)
        broken = said(chosen)["unreadable"].about
        assert len(read) == len(set(read)) == 50 + len(broken)
        assert 1 <= len(broken) < 20

    def test_few_images_are_held_at_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The first to be examined waits; the others under way are bounded."""
        import threading

        root = fill(tmp_path, [f"{i}.png" for i in range(60)])
        started: list[Path] = []
        enough = threading.Event()

        def slow(path: Path) -> Picture | Broken:
            started.append(path)
            if len(started) == 1:
                enough.wait(0.5)
                assert len(started) <= 8
            return examine(path)

        monkeypatch.setattr(drawing, "examine", slow)
        assert len(choose(scan(root), count=60)) == 60

    def test_the_draw_does_not_depend_on_which_thread_is_faster(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import random
        import time

        root = classes(tmp_path, "a", "b", "c", each=15)
        for name in ("a/003.png", "b/004.png", "c/001.png", "c/002.png"):
            (root / name).write_bytes(b"no image")
        expected = choose(scan(root), count=30, seed=5)
        generator = random.Random(0)

        def uneven(path: Path) -> Picture | Broken:
            time.sleep(generator.random() / 100)
            return examine(path)

        monkeypatch.setattr(drawing, "examine", uneven)
        assert choose(scan(root), count=30, seed=5) == expected


class TestBalance:
    @given(
        counts=st.lists(st.integers(1, 12), min_size=1, max_size=6),
        broken=st.sets(st.integers(0, 71), max_size=20),
        count=st.integers(1, 80),
        seed=st.integers(0, 5),
    )
    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_no_class_gets_more_while_another_has_some_left(
        self,
        monkeypatch: pytest.MonkeyPatch,
        counts: list[int],
        broken: set[int],
        count: int,
        seed: int,
    ) -> None:
        labels = [label for label, held in enumerate(counts) for _ in range(held)]
        items = tuple(ImageItem(Path(str(i)), label) for i, label in enumerate(labels))
        images = ImageSet(Path(), items, tuple(map(str, range(len(counts)))))

        def made_up(path: Path) -> Picture | Broken:
            if int(path.name) in broken:
                return Broken("unreadable", "")
            return Picture(path.name, path.name, bytes(72), {})

        monkeypatch.setattr(drawing, "examine", made_up)
        drawn = drawing.draw(images, count, seed)
        usable = Counter(label for i, label in enumerate(labels) if i not in broken)
        assert len(drawn.chosen) == min(count, sum(usable.values()))
        got = Counter(labels[i] for i in drawn.chosen)
        most = max(got.values(), default=0)
        assert all(got[label] >= min(most - 1, held) for label, held in usable.items())

    def test_with_fewer_images_than_classes_the_seed_decides_which(self, tmp_path: Path) -> None:
        root = classes(tmp_path, *(f"c{i:02d}" for i in range(20)), each=2)
        drawn = [choose(scan(root), count=16, seed=seed) for seed in range(8)]
        left = [set(said(chosen)["classes_not_drawn"].about) for chosen in drawn]
        assert all(len(names) == 4 for names in left)
        assert len(set.union(*left)) > 10
        assert "--count" in said(drawn[0])["classes_not_drawn"].remedy


class TestClasses:
    def test_the_models_classes_are_asked_for(self, tmp_path: Path) -> None:
        images = scan(classes(tmp_path, "ant", "bee", each=10))
        found = said(choose(images, count=20, source=source("ant", "bee", "cat", "dog")))
        assert set(found["missing_classes"].about) == {"cat", "dog"}
        found = said(choose(images, count=20, source=source("ant", "wasp")))
        assert set(found["missing_classes"].about) == {"wasp"}
        assert set(found["unknown_classes"].about) == {"bee"}
        assert choose(images, count=20, source=source("ant", "bee")).findings == ()

    def test_names_that_have_nothing_in_common_are_one_finding(self, tmp_path: Path) -> None:
        images = scan(classes(tmp_path, "n01", "n02", each=10))
        found = choose(images, count=20, source=source("ant", "bee")).findings
        assert [finding.kind for finding in found] == ["missing_classes"]
        assert "none of 2 class folders" in found[0].meaning

    def test_numbered_classes_are_as_many_folders(self, tmp_path: Path) -> None:
        images = scan(classes(tmp_path, "ant", "bee", each=10))
        assert choose(images, count=20, source=source("0", "1")).findings == ()
        assert "missing_classes" in said(choose(images, count=20, source=source("0", "1", "2")))

    def test_without_a_model_folders_without_images_are(self, tmp_path: Path) -> None:
        (classes(tmp_path, "ant", "bee", each=10) / "cat").mkdir()
        assert set(said(choose(scan(tmp_path), count=20))["missing_classes"].about) == {"cat"}

    def test_counts_are_by_name(self, tmp_path: Path) -> None:
        chosen = choose(scan(classes(tmp_path, "ant", "bee", each=10)), count=17)
        assert sorted(chosen.counts()) == ["ant", "bee"]
        assert sorted(chosen.counts().values()) == [8, 9]

    def test_gray_images_are_usual_for_a_model_of_one_channel(self, tmp_path: Path) -> None:
        root = fill(tmp_path, [f"{i}.png" for i in range(20)])
        Image.open(root / "3.png").convert("L").save(root / "3.png")
        assert set(said(choose(scan(root), count=20))["grayscale"].about) == {"3.png"}
        assert choose(scan(root), count=20, source=source("a", in_chans=1)).findings == ()


class TestOverlap:
    def test_an_evaluation_image_among_them_is_refused(self, tmp_path: Path) -> None:
        root = fill(tmp_path / "train", [f"{i}.png" for i in range(20)])
        held = fill(tmp_path / "val", [f"{i}.png" for i in range(30)], first=100)
        chosen = choose(scan(root), count=20, evaluation=scan(held))
        shutil.copy(root / "7.png", held / "other.png")
        with pytest.raises(CalibrationError, match=r"^1 calibration .*7\.png \(there other\.png\)"):
            choose(scan(root), count=20, evaluation=scan(held))
        with pytest.raises(CalibrationError, match="among the evaluation images") as caught:
            require_unseen(chosen, scan(held))
        assert "training images" in str(caught.value.hint)

    def test_of_the_others_only_the_length_is_looked_at(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from vitdeploy.calibration import image_set

        root = fill(tmp_path / "train", [f"{i}.png" for i in range(20)])
        chosen = choose(scan(root), count=20)
        lengths = {path.stat().st_size for path in root.iterdir()}
        held = tmp_path / "val"
        held.mkdir()
        for i in range(50):
            (held / f"{i}.png").write_bytes(bytes(max(lengths) + 1 + i))
        (held / "same-length.png").write_bytes(bytes(max(lengths)))
        read: list[str] = []

        def counted(path: Path) -> str:
            read.append(path.name)
            return "0"

        monkeypatch.setattr(image_set, "image_digest", counted)
        require_unseen(chosen, scan(held))
        assert read == ["same-length.png"]


def test_a_set_that_changed_is_known(tmp_path: Path) -> None:
    root = fill(tmp_path, [f"{i}.png" for i in range(20)])
    chosen = choose(scan(root), count=20)
    chosen.require_unchanged()
    fill(tmp_path, ["3.png"], first=900)
    (root / "4.png").unlink()
    with pytest.raises(CalibrationError, match=r"^2 of 20 .*3.png has changed") as caught:
        chosen.require_unchanged()
    assert "4.png is missing" in str(caught.value)
    assert "vitdeploy calibrate" in str(caught.value.hint)
