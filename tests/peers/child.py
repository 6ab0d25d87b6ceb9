"""Child processes and what they said at their end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_LONGEST = 600


def run(module: str, *arguments: str, log: Path, threads: int) -> str:
    """Run a module of this package to its end; '' where it succeeded, else why it did not.

    All that it printed goes into `log`.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(threads)}
    with log.open("w") as stream:
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode == 0:
        return ""
    if done.returncode < 0:
        return f"ended by {signal.Signals(-done.returncode).name}"
    return last_words(log.read_text("utf-8", errors="replace"))


def last_words(printed: str) -> str:
    """The last line that is not indented: of a traceback, the error itself.

    'Traceback ...\\n  File ...\\nModuleNotFoundError: No module named x\\n' gives its last line.
    """
    lines = [line for line in printed.splitlines() if line.strip()]
    whole = [line for line in lines if not line.startswith((" ", "\t"))]
    return (whole or lines or ["it said nothing"])[-1][:_LONGEST]
