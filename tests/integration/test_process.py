"""The command as a process: its help, what it imports, its pipes."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from command_line import (
    KILL_AFTER_S,
    Outcome,
    environment,
    require_one_error,
    run,
)


def blocked(modules: str, arguments: list[str]) -> subprocess.CompletedProcess[str]:
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
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=environment(Path("unused")),
        capture_output=True,
        text=True,
        timeout=KILL_AFTER_S,
        check=False,
    )


HEAVY = "torch torchvision timm numpy rich onnx onnx_ir onnxruntime openvino PIL scipy"


def test_help_needs_nothing_heavy() -> None:
    done = blocked(HEAVY, ["--help"])
    assert done.returncode == 0, done.stderr
    for command in ("export", "build-engine", "evaluate", "benchmark", "report", "demo", "train"):
        assert f"\n  {command} " in done.stdout
    assert "130 interrupted" in done.stdout


def test_the_block_blocks() -> None:
    assert "is blocked here" in blocked(HEAVY, ["export", "--help"]).stderr


@pytest.mark.parametrize("command", ["export", "train", "evaluate", "benchmark"])
def test_a_commands_help_needs_no_pytorch(command: str) -> None:
    done = blocked("torch torchvision timm onnxruntime openvino", [command, "--help"])
    assert done.returncode == 0, done.stderr
    assert "--model" in done.stdout


def test_without_pytorch_the_remedy_is_named(tmp_path: Path) -> None:
    done = blocked("torch torchvision timm", ["export", "demo"])
    require_one_error(Outcome(done.returncode, done.stdout, done.stderr), 3, "torch", "pip install")


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
