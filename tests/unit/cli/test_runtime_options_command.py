"""--device and what belongs to it reach the runtime they are for."""

from __future__ import annotations

from typing import Any

import click
import pytest
from click.testing import CliRunner

from vitdeploy.backends.base import BuildOptions
from vitdeploy.backends.options import OnnxRuntimeOptions, OpenVinoOptions
from vitdeploy.cli.runtime_options import runtime_options, with_runtime_options


def read(*arguments: str) -> BuildOptions:
    found: list[BuildOptions] = []

    @click.command()
    @runtime_options
    def command(**options: Any) -> None:
        found.append(with_runtime_options(BuildOptions(threads=3), options))

    done = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return found[0]


def test_nothing_is_asked_for_by_itself() -> None:
    how = read()
    assert how == BuildOptions(threads=3)
    assert how.onnxruntime.given() == how.openvino.given() == ()


@pytest.mark.parametrize(
    ("arguments", "onnxruntime", "openvino"),
    [
        (["--device", "cuda"], OnnxRuntimeOptions(device="cuda"), OpenVinoOptions()),
        (["--device", "TensorRT"], OnnxRuntimeOptions(device="tensorrt"), OpenVinoOptions()),
        (["--device", "gpu.1"], OnnxRuntimeOptions(), OpenVinoOptions(device="GPU.1")),
        (["--hint", "throughput"], OnnxRuntimeOptions(), OpenVinoOptions(hint="throughput")),
        (
            ["--affinity", "2;3", "--graph-optimization", "basic"],
            OnnxRuntimeOptions(affinity="2;3", graph_optimization="basic"),
            OpenVinoOptions(),
        ),
    ],
)
def test_each_option_has_its_runtime(
    arguments: list[str], onnxruntime: OnnxRuntimeOptions, openvino: OpenVinoOptions
) -> None:
    how = read(*arguments)
    assert (how.onnxruntime, how.openvino) == (onnxruntime, openvino)
    names = {*onnxruntime.given(), *openvino.given()}
    assert {name.split()[0] for name in names} == {a for a in arguments if a.startswith("--")}


@pytest.mark.parametrize(("affinity", "threads"), [("", None), ("2", 2), ("1-2;3,4", 3)])
def test_how_many_threads_an_affinity_is_for(affinity: str, threads: int | None) -> None:
    assert OnnxRuntimeOptions(affinity=affinity).pinned_threads() == threads
