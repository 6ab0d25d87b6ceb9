"""Interrupted work leaves nothing half-written, and says so with exit code 130."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from command_line import (
    DEMO_TOML,
    GRAPH,
    KILL_AFTER_S,
    SMALL,
    TINY,
    Outcome,
    environment,
    listing,
    require_one_error,
    run_code,
)

from vitdeploy.demo import assets


def heed_interrupts() -> None:
    """Shells start background jobs with SIGINT ignored, and a test run may be one of them."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def started(arguments: list[str], folder: Path, cache: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "vitdeploy", *arguments],
        cwd=folder,
        # An interrupt between the opening and the closing of a file leaves it to the collector.
        env=environment(cache, PYTHONWARNINGS="default,ignore::ResourceWarning"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=heed_interrupts,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def impatiently(group: int) -> None:
    """Ctrl-C three times in 50 ms: the later ones come while the first is being dealt with."""
    for _ in range(3):
        with suppress(ProcessLookupError):  # it has ended already
            os.killpg(group, signal.SIGINT)
        time.sleep(0.02)


def interrupted_at(
    line: str, number: signal.Signals, arguments: list[str], folder: Path, cache: Path
) -> Outcome:
    """Start, wait until standard error says `line`, signal, and see how it ends.

    SIGINT goes to the whole process group, as Ctrl-C does, and three times;
    SIGTERM to the process alone, as service managers do.
    """
    with started(arguments, folder, cache) as process:
        assert process.stderr is not None
        heard = ""
        for text in process.stderr:
            heard += text
            if line in text:
                break
        else:
            pytest.fail(f"it ended before {line!r}: {heard}")
        time.sleep(0.3)  # so that the work itself is under way, not its announcement
        if number == signal.SIGINT:
            impatiently(process.pid)
        else:
            process.send_signal(number)
        output, errors = process.communicate(timeout=KILL_AFTER_S)
        with pytest.raises(ProcessLookupError):  # no worker outlives it
            os.killpg(process.pid, 0)
    return Outcome(process.returncode, output, heard + errors)


@pytest.mark.parametrize("raised", ["raise KeyboardInterrupt", "exec('raise KeyboardInterrupt')"])
def test_the_code_is_130_wherever_the_interrupt_hits(raised: str) -> None:
    """CPython would end by SIGINT itself (code -2) after one inside exec(), caught or not."""
    code = f"""
        from vitdeploy import cli

        def interrupted(**_):
            {raised}

        cli.cli.main = interrupted
        cli.main()
    """
    done = run_code(code)
    require_one_error(done, 130, "interrupted", "again")


STAGES = {
    "export": ("exporting", ["export", "demo", "--res", "256", "-o", "."]),
    "calibration": (
        "calibrat",
        ["build-engine", GRAPH, "--int8", "--backend", "onnxruntime", "-o", "."],
    ),
    "evaluate": ("evaluating", ["evaluate", "ENGINE", "--reference", "REFERENCE"]),
    "train": (
        "epoch 1/",
        ["train", *TINY, "--model-kwargs", SMALL, "--data", "IMAGES", "-b", "2",
         "--epochs", "500", "-o", "a.safetensors"],
    ),
}  # fmt: skip


@pytest.mark.skipif(sys.platform == "win32", reason="posix: no such signals on Windows")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("stage", STAGES)
def test_interrupted_work_leaves_nothing_half_written(
    tmp_path: Path,
    cache: Path,
    engine: Path,
    training_images: Path,
    stage: str,
    number: signal.Signals,
) -> None:
    line, arguments = STAGES[stage]
    places = {
        "ENGINE": str(engine),
        "REFERENCE": str(assets.reference_path(assets.RESOLUTION)),
        "IMAGES": str(training_images),
    }
    (tmp_path / "vitdeploy.toml").write_text(DEMO_TOML)
    before = listing(engine.parent)
    arguments = [places.get(argument, argument) for argument in arguments]
    outcome = interrupted_at(line, number, arguments, tmp_path, cache)
    require_one_error(outcome, 130, "interrupted", "again")
    allowed = {"vitdeploy.toml", "a.safetensors.resume"}
    assert set(listing(tmp_path)) <= allowed
    assert listing(engine.parent) == before
