"""Every command the README shows runs, in a fresh copy of the repository's recipe.

Those on the embedded model on half of its evaluation images and at half of the shown size, for the
sake of time; `make slow` runs them at the size that is shown.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from vitdeploy.cli import _COMMANDS, cli
from vitdeploy.demo import assets
from vitdeploy.recipe import read_recipe

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def bash_lines() -> list[str]:
    """The lines of the README's bash blocks, without comments."""
    blocks = re.findall(r"```bash\n(.*?)```", README, flags=re.DOTALL)
    lines = [line.split("#")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line]


def console_lines() -> list[str]:
    """What follows a '$ ' in the README's console blocks."""
    blocks = re.findall(r"```console\n(.*?)```", README, flags=re.DOTALL)
    return re.findall(r"^\$ (.*?)(?: +#.*)?$", "\n".join(blocks), flags=re.MULTILINE)


def vitdeploy(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *line.split()]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module", params=["192", pytest.param("384", marks=pytest.mark.slow)])
def outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, thousand: Path
) -> dict[str, tuple[int, str]]:
    """The exit code and the output of each line, by the line."""
    folder = tmp_path_factory.mktemp("readme")
    recipe = (ROOT / "vitdeploy.toml").read_text(encoding="utf-8")
    whole = 'evaluation = "demo"'
    assert whole in recipe
    fewer = recipe.replace(whole, f'evaluation = "{thousand.as_posix()}"')
    (folder / "vitdeploy.toml").write_text(fewer, encoding="utf-8")
    found = {}
    for line in bash_lines():
        if line.startswith("vitdeploy "):
            timed = " --accept-unstable --seconds 5" if line == "vitdeploy benchmark" else ""
            done = vitdeploy(line.replace("384", request.param) + timed, folder)
            found[line] = (done.returncode, done.stdout + done.stderr)
    assert (folder / "report" / "report.html").is_file(), found
    return found


def test_the_shown_commands_run(outcomes: dict[str, tuple[int, str]]) -> None:
    assert len(outcomes) >= 6
    failed = {line: text for line, (code, text) in outcomes.items() if code != 0}
    assert not failed


def test_the_commands_say_what_they_picked(outcomes: dict[str, tuple[int, str]]) -> None:
    built = outcomes["vitdeploy build-engine --int8"][1]
    assert "the newest of this model" in built
    assert "backend: " in built
    assert "model: demo (from vitdeploy.toml)" in outcomes["vitdeploy export --res 384"][1]


def test_every_command_is_in_the_readme_and_in_the_help() -> None:
    shown = vitdeploy("vitdeploy --help", ROOT).stdout
    for name in _COMMANDS:
        assert re.search(rf"(vitdeploy|make) {name}\b", README), name
        assert re.search(rf"^  {name} ", shown, flags=re.MULTILINE), name


def test_the_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for line in bash_lines():
        if line.startswith("make "):
            assert re.search(rf"^{line.split()[1]}:", makefile, flags=re.MULTILINE)


def test_files_the_readme_links_to_exist() -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link]
    assert links
    assert all((ROOT / link).exists() for link in links)


@pytest.mark.parametrize("line", console_lines())
def test_lines_on_ones_own_model_are_understood(line: str) -> None:
    """Every option exists and takes its value; nothing is run."""
    program, name, *arguments = shlex.split(line)
    assert program == "vitdeploy"
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    command.make_context(name, arguments)


def test_the_way_of_ones_own_model_runs(tmp_path: Path) -> None:
    """The first console block on real images, with the embedded model at a smaller size."""
    shutil.copytree(assets.images_folder("calibration"), tmp_path / "train")
    shutil.copytree(assets.images_folder("evaluation"), tmp_path / "val")
    ran = []
    for line in console_lines()[:4]:
        line = line.replace("vit_small_patch16_224 --pretrained", "demo --epochs 1")
        line = line.replace("384", "160")
        _, *arguments = shlex.split(line)
        arguments = [
            str(next(tmp_path.glob(argument))) if "*" in argument else argument
            for argument in arguments
        ]
        done = subprocess.run(
            [sys.executable, "-m", "vitdeploy", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        ran.append(arguments[0])
    assert ran == ["train", "export", "build-engine", "evaluate"]
    assert "against PyTorch" in done.stdout


def test_the_shown_functions_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (shown,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    shutil.copy(assets.CHECKPOINT, tmp_path / "mine.safetensors")
    shutil.copytree(assets.images_folder("calibration"), tmp_path / "train")
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {}
    exec(shown.replace("384", "160"), found)
    assert found["engine"].manifest.model.precision == "int8-fp32"
    assert found["engine"].manifest.model.resolution == (160, 160)


def test_the_shown_recipe_is_read(tmp_path: Path) -> None:
    (shown,) = re.findall(r"```toml\n(.*?)```", README, flags=re.DOTALL)
    (tmp_path / "vitdeploy.toml").write_text(shown, encoding="utf-8")
    recipe = read_recipe(tmp_path)
    assert recipe.model is not None
    assert recipe.model.name == "mine.safetensors"
    assert recipe.data.evaluation == "val"
