"""The command line's spelling of build options, read into what the backends take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from vitdeploy.backends.base import BuildOptions
from vitdeploy.backends.tensorrt.options import Shapes, TensorRTOptions
from vitdeploy.cli.tensorrt_options import build_options, read_build_options
from vitdeploy.target import CPU, parse_targets


def read(*arguments: str, targets: str | None = None) -> BuildOptions:
    found: list[BuildOptions] = []

    @click.command()
    @build_options
    def command(**options: Any) -> None:
        found.append(
            read_build_options(options, None if targets is None else parse_targets(targets))
        )

    command.main(list(arguments), standalone_mode=False)
    return found[0]


CASES: dict[str, tuple[list[str], TensorRTOptions]] = {
    "several ranges": (
        ["--batch", "1:1:1,1:8:64"],
        TensorRTOptions(batches=((1, 1, 1), (1, 8, 64))),
    ),
    "level": (["--opt-level", "0"], TensorRTOptions(optimization_level=0)),
    "cache": (["--timing-cache", "kept"], TensorRTOptions(timing_cache=Path("kept"))),
    "no cache": (["--no-timing-cache"], TensorRTOptions(without_timing_cache=True)),
    "hardware": (
        ["--hardware-compat", "ampere+"],
        TensorRTOptions(hardware_compatibility="ampere+"),
    ),
    "version": (["--version-compat"], TensorRTOptions(version_compatible=True)),
    "strip": (["--strip-weights"], TensorRTOptions(strip_weights=True)),
    "refit": (["--refit"], TensorRTOptions(refittable=True)),
    "trtexec": (
        [
            "--minShapes=input:1x3x224x224",
            "--optShapes=input:8x3x224x224",
            "--maxShapes='input':64x3x224x224",
        ],
        TensorRTOptions(
            shapes=Shapes("input", (1, 3, 224, 224), (8, 3, 224, 224), (64, 3, 224, 224))
        ),
    ),
    "one of trtexec's": (
        ["--optShapes=a:b:2x3x8x8"],
        TensorRTOptions(shapes=Shapes("a:b", (2, 3, 8, 8), (2, 3, 8, 8), (2, 3, 8, 8))),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_option_is_read(name: str) -> None:
    arguments, wanted = CASES[name]
    assert read(*arguments).tensorrt == wanted
    assert wanted.given()


def test_nothing_given_is_the_default_of_every_runtime() -> None:
    assert read() == BuildOptions()
    assert read().tensorrt.given() == ()


def test_what_all_runtimes_take() -> None:
    found = read("--batch", "8", "--threads", "2", "--workspace", "512", targets="sm86,sm89")
    assert found == BuildOptions(
        targets=parse_targets("sm86,sm89"), batch=(8, 8, 8), threads=2, workspace_bytes=512 << 20
    )
    assert read("--batch", "4").targets == (CPU,)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--batch", "1:8"], "is not a batch range"),
        (["--batch", "1:8:64,"], "is not a batch range"),
        (["--opt-level", "6"], "opt-level"),
        (["--hardware-compat", "all"], "ampere+"),
        (["--minShapes", "1x3x224x224"], "write pixels:1x3x224x224"),
        (["--minShapes", "input:1x3xAx224"], "write pixels:1x3x224x224"),
        (["--batch", "8", "--optShapes", "input:1x3x8x8"], "exclude each other"),
        (["--timing-cache", "a", "--no-timing-cache"], "exclude each other"),
        (["--minShapes", "a:1x3x8x8", "--optShapes", "b:1x3x8x8"], "several inputs: "),
    ],
)
def test_what_says_nothing_is_refused(arguments: list[str], said: str) -> None:
    with pytest.raises(click.UsageError) as caught:
        read(*arguments)
    assert said in caught.value.format_message()
