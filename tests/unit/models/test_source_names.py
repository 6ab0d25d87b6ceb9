"""Names that users give to models: refused unless every file system, report and terminal takes
them."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from vitdeploy.artifacts.source import require_name
from vitdeploy.cli import cli
from vitdeploy.errors import InputError


@pytest.mark.parametrize("name", ["flowers", "my-vit_1", "My ViT 2.1", "вит", "a" * 100, "console"])
def test_a_usable_name(name: str) -> None:
    require_name(name)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("a/b", "characters"),
        ("a\\b", "characters"),
        ("a:b", "characters"),
        ("what?", "characters"),
        ("red\x1b[31m", "characters"),
        ("two\nlines", "characters"),
        ("caf\udce9", "characters"),
        ("turned\u202e", "characters"),
        ("", "0 bytes"),
        ("a" * 101, "101 bytes"),
        ("я" * 51, "102 bytes"),
        (" a", "begins or ends"),
        ("a ", "begins or ends"),
        ("a.", "begins or ends"),
        ("..", "begins or ends"),
        ("--out", "begins or ends"),
        ("con", "device"),
        ("NUL", "device"),
        ("Com1.flowers", "device"),
    ],
)
def test_a_name_that_is_refused(name: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem) as caught:
        require_name(name)
    assert str(caught.value).isprintable()
    assert "letters" in str(caught.value.hint)


@pytest.mark.parametrize(
    "arguments", [["export", "demo"], ["adopt", "a.onnx"], ["train", "--data", "d", "-o", "o"]]
)
def test_every_command_that_names_artifacts_refuses_it(arguments: list[str]) -> None:
    done = CliRunner().invoke(cli, [*arguments, "--name", "a/b"])
    assert isinstance(done.exception, InputError)
    assert "'a/b'" in str(done.exception)
