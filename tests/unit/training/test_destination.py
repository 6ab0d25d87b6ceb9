"""Where a run may be written: nothing is lost, and what cannot be kept is refused at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from training_shapes import SHORT, Interrupt, listing, start, train

from vitdeploy.artifacts.files import atomic_path
from vitdeploy.errors import InputError, OutputError
from vitdeploy.images import ImageSet
from vitdeploy.training.destination import Destination


@pytest.mark.parametrize(
    "name", ["notes.md", "A.json", "model.onnx", "weights.pth", ".safetensors"]
)
def test_only_checkpoints_are_written(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"mine")
    with pytest.raises(InputError, match=r"does not end in \.safetensors") as caught:
        Destination(tmp_path / name, overwrite=True).require_usable()
    assert f"--out {name}.safetensors" in str(caught.value.hint)
    assert (tmp_path / name).read_bytes() == b"mine"


def test_a_file_that_is_there_is_kept_unless_given_up(tmp_path: Path) -> None:
    output = tmp_path / "a.safetensors"
    output.write_bytes(b"yesterday's")
    with pytest.raises(InputError, match="exists already") as caught:
        Destination(output).require_usable()
    assert "--overwrite" in str(caught.value.hint)
    Destination(output, overwrite=True).require_usable()
    assert output.read_bytes() == b"yesterday's"
    assert listing(tmp_path) == ["a.safetensors"]


def test_an_unfinished_run_is_kept_unless_resumed(tmp_path: Path) -> None:
    output, state = tmp_path / "a.safetensors", tmp_path / "a.safetensors.resume"
    state.write_bytes(b"hours of work")
    with pytest.raises(InputError, match=r"kept in .*a\.safetensors\.resume") as caught:
        Destination(output, overwrite=True).require_usable()
    assert "--resume" in str(caught.value.hint)
    Destination(output, resume=True).require_usable()
    assert state.read_bytes() == b"hours of work"
    state.unlink()
    with pytest.raises(InputError, match="nothing to resume"):
        Destination(output, resume=True).require_usable()


def test_a_folder_of_that_name(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").mkdir()
    with pytest.raises(OutputError, match="Is a directory"):
        Destination(tmp_path / "a.safetensors", overwrite=True).require_usable()


def test_a_name_that_only_the_state_makes_too_long(tmp_path: Path) -> None:
    """Names have 255 bytes at most, and 18 go to what marks a file as not yet whole."""
    fits = "a" * (255 - 18 - len(".safetensors"))
    with atomic_path(tmp_path / f"{fits}.safetensors"):
        pass
    (tmp_path / f"{fits}.safetensors").unlink()
    with pytest.raises(OutputError, match="too long") as caught:
        Destination(tmp_path / f"{fits}.safetensors").require_usable()
    assert caught.value.hint == "give a shorter name"
    assert listing(tmp_path) == []


@pytest.mark.usefixtures("modes_bind")
@pytest.mark.parametrize("mode", [0o500, 0o000])
def test_a_folder_without_write_permission(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    folder.chmod(mode)
    try:
        with pytest.raises(OutputError, match="Permission denied") as caught:
            Destination(folder / "a.safetensors").require_usable()
    finally:
        folder.chmod(0o700)
    assert "--out" in str(caught.value.hint)


@pytest.mark.parametrize("name", ["notes.md", "taken.safetensors"])
def test_training_asks_before_it_begins(tmp_path: Path, images: ImageSet, name: str) -> None:
    (tmp_path / name).write_bytes(b"mine")
    sink = Interrupt()
    with pytest.raises(InputError):
        train(start(), images, None, SHORT, tmp_path / name, progress=sink)
    assert sink.steps == 0
    assert listing(tmp_path) == [name]
    assert (tmp_path / name).read_bytes() == b"mine"
