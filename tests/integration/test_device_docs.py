"""The commands on the pages for devices exist, with the options they are shown with."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from vitdeploy.cli import cli

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("jetson.md", "rtx.md", "server.md", "cpu.md")


def commands(text: str) -> list[list[str]]:
    """What stands behind '$ ' in console blocks and calls vitdeploy, lines joined."""
    blocks = re.findall(r"```console\n(.*?)```", text, flags=re.DOTALL)
    joined = "\n".join(blocks).replace("\\\n", " ")
    lines = re.findall(r"^\$ (?:\S*/)?vitdeploy (.*)$", joined, flags=re.MULTILINE)
    lines += re.findall(r"`vitdeploy ([a-z-]+ [^`]*--[^`]*)`", text)
    return [shlex.split(line.replace("...", ""), comments=True) for line in lines]


def unknown(words: list[str]) -> list[str]:
    """Options of a command line that its command does not have; the command where there is none."""
    command = cli.get_command(click.Context(cli), words[0])
    if command is None:
        return words[:1]
    known = {option for found in command.params for option in found.opts} | {"--help"}
    return [word for word in words[1:] if word.startswith("--") and word not in known]


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_a_page(page: str) -> None:
    found = commands((DOCS / page).read_text(encoding="utf-8"))
    assert len(found) >= 3
    for words in found:
        assert unknown(words) == [], words


@pytest.mark.parametrize("page", PAGES)
def test_links_of_a_page(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    for place, anchor in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", text):
        target = DOCS / place
        assert target.is_file(), place
        titles = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), flags=re.MULTILINE)
        anchors = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
        assert not anchor or anchor in anchors, anchor


def test_what_does_not_exist_is_seen() -> None:
    assert unknown(["build-engine", "a.onnx", "--no-such"]) == ["--no-such"]
    assert unknown(["no-such"]) == ["no-such"]
    assert commands("```console\n$ vitdeploy predict a \\\n    --top 3\n```") == [
        ["predict", "a", "--top", "3"]
    ]
