"""Whatever the output goes to, the exit code is the verdict's, and nothing is called our bug."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from vitdeploy.errors import one_line

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="posix: shell redirections")

COMMAND = """
import click
from vitdeploy import cli
from vitdeploy.errors import GateFailedError

def judged(**_):
    for number in range({lines}):
        print(f"line {{number}}: caf\\u00e9, \\udce9")
    click.echo("done")
    click.echo("noted", err=True)
    if {worse}:
        raise GateFailedError("worse", hint="keep layers")

cli.cli.main = judged
cli.main()
"""


def judge(
    redirections: str, *, worse: bool = True, lines: int = 3, options: str = "", **variables: str
) -> subprocess.CompletedProcess[bytes]:
    code = COMMAND.format(lines=lines, worse=worse)
    shell = f'"$PYTHON" {options} -W error -c "$CODE" {redirections}'
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {shell}"],
        env={
            **{name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
            "PYTHONPATH": str(Path(__file__).parents[3]),
            "PYTHON": sys.executable,
            "CODE": textwrap.dedent(code),
            **variables,
        },
        capture_output=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("options", ["", "-u"])
@pytest.mark.parametrize(
    "redirections",
    [
        "",
        "| true",
        "2>&1 | true",
        "| head -n 1",
        ">&-",
        "2>&-",
        "<&- >&- 2>&-",
        "2>/dev/full",
        ">/dev/null 2>/dev/full",
    ],
)
def test_the_verdict_is_the_exit_code(redirections: str, options: str) -> None:
    # 100,000 lines are more than a pipe holds, so the reader is sure to be gone.
    done = judge(redirections, options=options, lines=20_000 if "|" in redirections else 3)
    assert done.returncode == 10, done.stderr.decode()
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr
    # Without a verdict against it, the same ends well.
    assert judge(redirections, options=options, worse=False).returncode == 0


@pytest.mark.parametrize("options", ["", "-u"])
def test_output_that_cannot_be_written_is_an_error_of_its_own(options: str) -> None:
    done = judge(">/dev/full", worse=False, options=options)
    assert done.returncode == 2
    text = done.stderr.decode()
    assert "error: standard output cannot be written: No space left on device" in text
    assert text.count("error: ") == 1
    assert "Traceback" not in text
    assert "Exception ignored" not in text


@pytest.mark.parametrize("encoding", ["ascii", "utf-8", "latin-1"])
def test_characters_the_terminal_lacks_are_spelled_out(encoding: str) -> None:
    done = judge("", PYTHONIOENCODING=encoding)
    assert done.returncode == 10, done.stderr.decode()
    cafe = "caf\\xe9" if encoding == "ascii" else "café"
    assert f"line 0: {cafe}, \\udce9\n".encode(encoding) in done.stdout


def test_a_working_folder_that_is_gone_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    done = subprocess.run(
        ["bash", "-c", 'cd "$FOLDER" && rmdir "$FOLDER" && "$PYTHON" -m vitdeploy doctor'],
        env={
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[3]),
            "PYTHON": sys.executable,
            "FOLDER": str(folder),
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "error: the working folder cannot be used" in done.stderr
    assert "hint: cd into" in done.stderr


UNFORESEEN = {
    "MemoryError()": (2, "not enough memory"),
    'RuntimeError("DefaultCPUAllocator: can\'t allocate memory: you tried")': (2, "not enough"),
    "PermissionError(13, 'Permission denied', 'a.json')": (2, "a.json: Permission denied"),
    "OSError(28, 'No space left on device')": (2, "No space left"),
    "OSError('we passed no number')": (70, "this is a bug"),
    "KeyError('a')": (70, "this is a bug"),
    "RuntimeError('shapes differ')": (70, "this is a bug"),
}


@pytest.mark.parametrize("error", UNFORESEEN)
def test_the_machines_limits_are_no_bugs_of_ours(error: str) -> None:
    code, said = UNFORESEEN[error]
    program = f"""
        from vitdeploy import cli

        def failing(**_):
            raise {error}

        cli.cli.main = failing
        cli.main()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert ("Traceback" in done.stderr) == (code == 70)
    assert " hint: " in done.stderr


def test_what_a_file_is_called_neither_breaks_a_line_nor_moves_the_cursor() -> None:
    assert one_line("a\nb\x1b[2Jc\x9b.png") == "a\\nb\\x1b[2Jc\\x9b.png"
    assert one_line("a\tb\u202ec") == "a\\tb\\u202ec"
    assert one_line("caf\u00e9 \u732b C:\\x") == "caf\u00e9 \u732b C:\\x"
