"""`vitdeploy calibrate` as people run it, and its sets in `build-engine`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from command_line import DEMO_TOML, GRAPH, Outcome, listing, require_one_error, run
from PIL import Image

from vitdeploy.artifacts.calibration import read_manifest
from vitdeploy.artifacts.onnx_model import read_onnx_model
from vitdeploy.demo import assets


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with 'train' (24 images of two of the demo's classes) and 'val' (others)."""
    for part, name, first in (("train", "calibration", 0), ("val", "evaluation", 12)):
        for label in ("coat", "dress"):
            found = sorted((assets.images_folder(name) / label).iterdir())
            (tmp_path / part / label).mkdir(parents=True)
            for path in found[first : first + 12]:
                shutil.copy(path, tmp_path / part / label)
    return tmp_path


def spoil(folder: Path) -> dict[str, str]:
    """One file of each kind that the doctor knows, by the name of its finding."""
    generator = np.random.default_rng(0)

    def photo() -> Image.Image:
        patches = generator.integers(0, 256, (5, 7, 3), dtype=np.uint8)
        return Image.fromarray(patches).resize((90, 60), Image.Resampling.BICUBIC)

    exif = Image.Exif()
    exif[0x0112] = 6
    photo().save(folder / "rotated.jpg", exif=exif)
    photo().convert("CMYK").save(folder / "cmyk.jpg")
    Image.fromarray(generator.integers(0, 1 << 16, (30, 30)).astype(np.uint16)).save(
        folder / "deep.png"
    )
    photo().quantize(32).save(folder / "palette.gif")
    photo().convert("RGBA").save(folder / "alpha.png")
    photo().convert("L").save(folder / "gray.jpg")
    original = photo()
    original.save(folder / "first.png")
    shutil.copy(folder / "first.png", folder / "same.png")
    original.save(folder / "near.jpg", quality=70)
    (folder / "text.png").write_bytes(b"no image")
    (folder / "cut.png").write_bytes((folder / "first.png").read_bytes()[:-200])
    return {
        "unreadable": "text.png", "truncated": "cut.png", "exact_duplicates": "first.png same.png",
        "near_duplicates": "near.jpg first.png same.png", "exif_rotated": "rotated.jpg",
        "cmyk": "cmyk.jpg", "16_bit": "deep.png", "palette": "palette.gif", "alpha": "alpha.png",
        "grayscale": "gray.jpg",
    }  # fmt: skip


def test_the_recipes_images_are_drawn(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "vitdeploy.toml").write_text(DEMO_TOML)
    outcome = run(["calibrate", "--count", "40", "--json"], tmp_path, cache)
    assert outcome.code == 0, outcome.errors
    record = json.loads(outcome.output)
    assert record["counts"] == {
        path.name: 4 for path in assets.images_folder("calibration").iterdir()
    }
    assert len({image["digest"] for image in record["images"]}) == 40
    assert [finding["kind"] for finding in record["findings"]] == ["grayscale"]
    assert record["path"] == f"artifacts/calibration-{record['digest'][:8]}.json"
    again = run(["calibrate", "--count", "40", "-o", "a.json"], tmp_path, cache)
    assert again.code == 0, again.errors
    assert read_manifest(tmp_path / "a.json") == read_manifest(tmp_path / record["path"])


def test_everything_odd_is_in_one_table(place: Path, cache: Path) -> None:
    odd = spoil(place / "train" / "coat")
    outcome = run(
        ["calibrate", "train", "--eval", "val", "--model", "demo", "-o", "a.json"], place, cache
    )
    assert outcome.code == 0, outcome.errors
    findings = {f.kind: f for f in read_manifest(place / "a.json").findings}
    for kind, names in odd.items():
        found = findings[kind].about
        assert any(f"coat/{name}" in found for name in names.split()), (kind, found)
        if kind != "grayscale":  # as all of the demo's are
            assert len(found) == 1
    assert set(findings) == {*odd, "too_few", "missing_classes"}
    assert len(findings["missing_classes"].about) == 8
    assert outcome.output.count("Calibration images") == 1
    for shown in ("unreadable", "CMYK", "EXIF-rotated", "16-bit", "exact duplicates", "trouser"):
        assert shown in outcome.output
    assert "Warning" not in outcome.errors
    assert "next: vitdeploy build-engine GRAPH.onnx --int8 --calib a.json" in outcome.output


def built(place: Path, cache: Path, calib: str, *more: str) -> Outcome:
    arguments = ["build-engine", GRAPH, "--int8", "--calib", calib, "--backend", "onnxruntime"]
    return run([*arguments, "-o", "out", *more], place, cache)


def test_a_set_and_its_folder_build_the_same_engine(place: Path, cache: Path) -> None:
    """And a set whose images have changed builds none."""
    drawn = run(["calibrate", "train", "--count", "20", "-o", "a.json"], place, cache)
    assert drawn.code == 0, drawn.errors
    digests = [image.digest for image in read_manifest(place / "a.json").images]
    graphs = []
    for calib, more in (("a.json", ()), ("train", ("--calib-images", "20"))):
        outcome = built(place, cache, calib, "--json", *more)
        assert outcome.code == 0, outcome.errors
        graph = read_onnx_model(place / json.loads(outcome.output)["graph"])
        assert graph.description.quantization is not None
        assert list(graph.description.quantization.image_digests) == digests
        graphs.append(graph.digest)
    assert graphs[0] == graphs[1]
    first = place / "train" / read_manifest(place / "a.json").images[0].name
    first.write_bytes(first.read_bytes() + b"\0")
    require_one_error(built(place, cache, "a.json"), 5, f"{first.name} has changed", "calibrate")
    first.unlink()
    require_one_error(built(place, cache, "a.json"), 5, f"{first.name} is missing", "calibrate")


def test_images_that_engines_are_judged_on_stop_it(place: Path, cache: Path) -> None:
    shutil.copy(sorted((place / "val" / "coat").iterdir())[3], place / "train" / "dress" / "x.png")
    before = listing(place)
    outcome = run(["calibrate", "train", "--eval", "val"], place, cache)
    require_one_error(outcome, 5, "1 calibration images of train are among", "training images")
    assert "dress/x.png" in outcome.errors
    assert listing(place) == before
    # The recipe's evaluation images are kept apart unasked, also from a set drawn before.
    drawn = run(["calibrate", "train", "-o", "a.json"], place, cache)
    assert drawn.code == 0, drawn.errors
    (place / "vitdeploy.toml").write_text(
        DEMO_TOML.replace('evaluation = "demo"', 'evaluation = "val"')
    )
    for arguments in (
        ["calibrate", "train"],
        ["build-engine", GRAPH, "--int8", "--calib", "a.json"],
    ):
        require_one_error(run(arguments, place, cache), 5, "evaluation images of val", "training")


@pytest.mark.parametrize(
    ("arguments", "code", "said", "hint"),
    [
        ([], 2, "no calibration images were named", "vitdeploy calibrate FOLDER"),
        (["none"], 2, "none does not exist", "folder"),
        (["train", "--eval", "none"], 2, "none does not exist", "folder"),
        (["train", "--count", "8"], 2, "8 calibration images are too few", "16"),
        (["train/coat"], 5, "12 distinct images, too few", "128"),
        (["train", "-o", "notes.txt"], 2, "no .json file", ".json"),
        (["train", "-o", "notes.json"], 2, "not replaced", "-o"),
        (["train", "-o", "train/coat/a.json/b.json"], 2, "cannot write", "-o"),
        (["train", "--model", "notes.json"], 2, "does not say which classes", ".onnx"),
        (["train", "--model", "vit.onnx"], 2, "vit.onnx does not exist", "path"),
        (["notes.json"], 2, "notes.json is no folder", "folder"),
        (["train", "--count", "many"], 2, "many", "--help"),
    ],
)
def test_what_is_wrong_is_said_and_leaves_nothing(
    arguments: list[str], code: int, said: str, hint: str, place: Path, cache: Path
) -> None:
    (place / "notes.json").write_text("{}")
    (place / "train/coat/a.json").write_text("{}")
    before = listing(place)
    require_one_error(run(["calibrate", *arguments], place, cache), code, said, hint)
    assert listing(place) == before
