"""What a path that leads nowhere is told, where a name of a model was asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitdeploy.errors import InputError
from vitdeploy.models.names import understood


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Below it the working folder 'here', and beside that a checkpoint."""
    (tmp_path / "here").mkdir()
    (tmp_path / "mine.safetensors").touch()
    (tmp_path / "here" / "vit.onnx").touch()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("../x", "check the path"),
        ("../mine", "did you mean ../mine.safetensors?"),
        ("./x", "check the path"),
        ("./vit.onxx", "did you mean vit.onnx?"),
        ("mine.safetensor", "check the path"),
        ("vitt.onnx", "did you mean vit.onnx?"),
    ],
)
def test_no_such_file_is_there(name: str, hint: str, folder: Path) -> None:
    with pytest.raises(InputError, match="no such file or folder is there") as caught:
        understood(name)
    assert caught.value.hint == hint


def test_a_name_of_the_hub_may_be_meant(folder: Path) -> None:
    with pytest.raises(InputError, match="google/vit does not exist") as caught:
        understood("google/vit")
    assert "transformers:google/vit" in str(caught.value.hint)
    (folder / "here" / "google").mkdir()
    with pytest.raises(InputError) as caught:
        understood("google/vit")
    assert caught.value.hint == "check the path"


def test_a_graph_is_adopted(folder: Path) -> None:
    with pytest.raises(InputError, match="no kind of checkpoint") as caught:
        understood("vit.onnx")
    assert "vitdeploy adopt" in str(caught.value.hint)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224.augreg_in21k", "vit_tiny*"])
def test_a_name_with_a_dot_or_a_star_is_no_path(name: str, folder: Path) -> None:
    assert understood(name).architecture == name
