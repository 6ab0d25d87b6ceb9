"""`vitdeploy train`: the size of a model trained from nothing, and what it never replaces."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image

from vitdeploy.artifacts.source import description_in
from vitdeploy.cli.train import command
from vitdeploy.errors import InputError

SMALL = {"patch_size": 8, "embed_dim": 24, "depth": 1, "num_heads": 2}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with images of two classes."""
    generator = np.random.default_rng(0)
    for name in ("coat", "dress"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(4):
            pixels = generator.integers(0, 256, (20, 20, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / name / f"{number}.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(
    *arguments: str, model: str = "vit_tiny_patch16_224", kwargs: dict[str, object] = SMALL
) -> Result:
    short = ["--data", "images", "-b", "4", "-j", "0", "--epochs", "1", "--model", model]
    given = ["--model-kwargs", json.dumps(kwargs)] if kwargs else []
    return CliRunner().invoke(command, [*short, *given, *arguments])


def begin(*arguments: str, kwargs: dict[str, object] = SMALL) -> Result:
    return run("--random-weights", *arguments, kwargs=kwargs)


@pytest.mark.parametrize(("text", "size"), [("32", (32, 32)), ("32x48", (32, 48))])
def test_res_is_the_models_own_resolution(folder: Path, text: str, size: tuple[int, int]) -> None:
    done = begin("--res", text, "-o", "a.safetensors")
    assert done.exit_code == 0, done.output
    description = description_in(folder / "a.safetensors")
    assert description is not None
    assert description.native_resolution == size
    assert description.model_kwargs["patch_size"] == 8
    assert f"at {size[0]}x{size[1]} on " in done.output
    assert "8 images of 2 classes" in done.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--res", "36"], "not a multiple of the patch size 8x8"),
        (["--res", "0"], "not a resolution"),
        (["--res", "32", "--model-kwargs", '{"img_size": 48}'], "given twice"),
    ],
    ids=["patch", "zero", "twice"],
)
def test_sizes_that_cannot_be(folder: Path, arguments: list[str], said: str) -> None:
    done = begin(*arguments, "-o", "a.safetensors")
    assert said in done.output + str(done.exception)
    assert not (folder / "a.safetensors").exists()


def test_res_is_for_random_weights_and_libraries_that_say_their_size(folder: Path) -> None:
    done = run("--pretrained", "--res", "32", "-o", "a.safetensors")
    assert done.exit_code == 2
    assert "--random-weights" in done.output
    assert "--mixed-res" in done.output
    done = run("--random-weights", "--res", "32", "-o", "a.safetensors", model="mine:factory")
    assert done.exit_code == 2
    assert "--model-kwargs" in done.output


def test_a_checkpoint_is_replaced_only_on_demand(folder: Path) -> None:
    (folder / "a.safetensors").write_bytes(b"mine")
    done = begin("--res", "32", "-o", "a.safetensors")
    assert isinstance(done.exception, InputError)
    assert "exists already" in str(done.exception)
    assert (folder / "a.safetensors").read_bytes() == b"mine"
    assert begin("--res", "32", "-o", "a.safetensors", "--overwrite").exit_code == 0
    assert description_in(folder / "a.safetensors") is not None


@pytest.mark.parametrize("name", ["a.safetensors", "images/../a.safetensors", "link.safetensors"])
def test_the_weights_it_begins_with_are_never_replaced(folder: Path, name: str) -> None:
    assert begin("--res", "32", "-o", "a.safetensors").exit_code == 0
    (folder / "link.safetensors").symlink_to("a.safetensors")
    before = (folder / "a.safetensors").read_bytes()
    for arguments in (["--checkpoint", "a.safetensors"], ["--checkpoint", str(folder / name)]):
        done = run(*arguments, "-o", name, "--overwrite")
        assert isinstance(done.exception, InputError)
        assert "training begins with" in str(done.exception)
    done = run("-o", name, "--overwrite", model="a.safetensors", kwargs={})
    assert "training begins with" in str(done.exception)
    assert (folder / "a.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    "arguments",
    [
        ["--ema-decay", "nan"], ["--ema-decay", "1"], ["--lr", "nan"], ["--lr", "inf"],
        ["--lr", "1e38"],
        ["--min-crop", "nan"], ["--mixed-res", "32,48", "--mixed-odds", "inf,1"],
        ["--mixed-res", "32,48", "--mixed-odds", "nan,1"], ["--seed", "1" + 23 * "0"],
        ["--threads", "99999999999"], ["--mixed-res", "99999999999"], ["-b", "99999999999"],
        ["--epochs", "99999999999"], ["--workers", "99999999999"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_numbers_out_of_bounds(folder: Path, arguments: list[str]) -> None:
    done = begin("--res", "32", "-o", "a.safetensors", *arguments)
    assert done.exit_code == 2
    assert isinstance(done.exception, SystemExit)  # click's own refusal
    assert not (folder / "a.safetensors").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--mixed-odds", "1,2"], "--mixed-odds are those of --mixed-res"),
        (["--idx", "."], "--idx goes with --data fashion-mnist"),
    ],
)
def test_options_that_would_do_nothing(folder: Path, arguments: list[str], said: str) -> None:
    done = run("--random-weights", "-o", "a.safetensors", *arguments)
    assert done.exit_code == 2
    assert said in done.output
