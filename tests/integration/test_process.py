"""The command as a process: its help, what it imports, its pipes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from command_line import (
    Outcome,
    environment,
    require_one_error,
    run,
    run_code,
)


def blocked(modules: str, arguments: list[str]) -> Outcome:
    """Run the command line where importing any of these modules fails."""
    code = f"""
        import sys

        class Block:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] in {modules.split()!r}:
                    raise ImportError(f"{{name}} is blocked here")

        sys.meta_path.insert(0, Block())
        sys.argv = ["vitdeploy", *{arguments!r}]
        from vitdeploy.cli import main
        main()
    """
    return run_code(code)


HEAVY = "torch torchvision timm numpy rich onnx onnx_ir onnxruntime openvino PIL scipy"


def test_help_needs_nothing_heavy() -> None:
    done = blocked(HEAVY, ["--help"])
    assert done.code == 0, done.errors
    for command in ("export", "build-engine", "evaluate", "benchmark", "report", "demo", "train"):
        assert f"\n  {command} " in done.output
    assert "130 interrupted" in done.output


def test_the_block_blocks() -> None:
    assert "is blocked here" in blocked(HEAVY, ["export", "--help"]).errors


@pytest.mark.parametrize("command", ["export", "train", "evaluate", "benchmark"])
def test_a_commands_help_needs_no_pytorch(command: str) -> None:
    done = blocked("torch torchvision timm onnxruntime openvino", [command, "--help"])
    assert done.code == 0, done.errors
    assert "--model" in done.output


def test_without_pytorch_the_remedy_is_named(tmp_path: Path) -> None:
    done = blocked("torch torchvision timm", ["export", "demo"])
    require_one_error(done, 3, "torch", "pip install")


def test_bare_and_unknown_commands(tmp_path: Path, cache: Path) -> None:
    bare = run([], tmp_path, cache)
    assert bare.code == 2
    assert "build-engine" in bare.output
    require_one_error(run(["exprot"], tmp_path, cache), 2, "exprot", "did you mean export?")


def test_a_closed_pipe_is_no_error(tmp_path: Path, cache: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "vitdeploy", "--help"],
        cwd=tmp_path,
        env=environment(cache),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        errors = process.stderr.read()
    assert "Traceback" not in errors
    assert "error:" not in errors
