"""`vitdeploy build-engine`: options that would do nothing are refused before anything is read."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from vitdeploy.cli.build_engine import command


@pytest.mark.parametrize(
    "arguments",
    [
        ["--calib", "train"],
        ["--range", "mse"],
        ["--keep", "head/Gemm"],
        ["--no-attention"],
        ["--max-drop", "0.5"],
        ["--force"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_what_only_quantizing_takes(arguments: list[str]) -> None:
    done = CliRunner().invoke(command, ["none.onnx", *arguments])
    assert done.exit_code == 2
    assert f"{arguments[0]} goes with --int8 or --fp8, and neither was given" in done.output
    for numbers in ("--int8", "--fp8"):
        done = CliRunner().invoke(command, ["none.onnx", *arguments, numbers])
        assert "none.onnx does not exist" in str(done.exception)


def test_half_precision_is_judged_on_calibration_images() -> None:
    done = CliRunner().invoke(command, ["none.onnx", "--fp16", "--calib", "train"])
    assert "none.onnx does not exist" in str(done.exception)
