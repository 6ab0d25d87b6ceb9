"""Running the command as people do, and what it must say when something is wrong."""

from __future__ import annotations

import ctypes
import io
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import timm
import torch
from PIL import Image

from vitdeploy.demo import assets

GRAPH = str(assets.GRAPH)
DEMO_TOML = '[model]\nname = "demo"\n[data]\ncalibration = "demo"\nevaluation = "demo"\n'
TINY = ["--model", "vit_tiny_patch16_224", "--random-weights"]
SMALL = '{"img_size": 32, "patch_size": 8, "embed_dim": 192, "depth": 2, "num_heads": 3}'
KILL_AFTER_S = 300
_LABELS = ("error: ", "fail: ", "inconclusive: ")


@dataclass(frozen=True)
class Outcome:
    code: int
    output: str
    errors: str
    left: tuple[str, ...] = ()


def require_one_error(outcome: Outcome, code: int, said: str, hint: str = "") -> None:
    label = {10: "fail: ", 11: "inconclusive: "}.get(code, "error: ")
    lines = outcome.errors.splitlines()
    marked = [number for number, line in enumerate(lines) if line.startswith(_LABELS)]
    assert outcome.code == code, outcome.errors
    assert len(marked) == 1, outcome.errors
    assert lines[marked[0]].startswith(label), outcome.errors
    assert said in outcome.errors[outcome.errors.index(label) :]
    hints = [line for line in lines[marked[0] :] if line.startswith(" hint: ")]
    assert len(hints) == 1, outcome.errors
    assert hint in hints[0]
    assert "Traceback" not in outcome.errors + outcome.output
    assert "Warning" not in outcome.errors, outcome.errors


def listing(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(str(path.relative_to(folder)) for path in folder.rglob("*")))


def environment(cache: Path, **more: str) -> dict[str, str]:
    root = str(Path(__file__).parents[2])
    return {
        **os.environ,
        "PYTHONPATH": root,
        "XDG_CACHE_HOME": str(cache),
        "PYTHONWARNINGS": "default",
        **more,
    }


def run_code(code: str) -> Outcome:
    """Python code in a process of its own, with the repository's package."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=environment(Path("unused")),
        capture_output=True,
        text=True,
        timeout=KILL_AFTER_S,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def bind_modes() -> None:
    """Before the command starts: file modes hold for it, as they do for everyone but root."""
    drop_from_bounding_set = 24
    libc = ctypes.CDLL(None)
    for capability in range(64):
        libc.prctl(drop_from_bounding_set, capability, 0, 0, 0)


def run(
    arguments: list[str], folder: Path, cache: Path, *, before: Callable[[], None] | None = None
) -> Outcome:
    done = subprocess.run(
        [sys.executable, "-m", "vitdeploy", *arguments],
        cwd=folder,
        env=environment(cache),
        capture_output=True,
        text=True,
        timeout=KILL_AFTER_S,
        check=False,
        preexec_fn=before,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def png(colour: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), (colour, colour, 0)).save(buffer, "PNG")
    return buffer.getvalue()


def checkpoint(classes: int) -> bytes:
    """A small ViT's weights, its head of so many classes."""
    module = timm.create_model(TINY[1], num_classes=classes, **json.loads(SMALL))
    buffer = io.BytesIO()
    torch.save(module.state_dict(), buffer)
    return buffer.getvalue()


TWO_CLASSES = {f"images/{c}/{i}.png": png(40 * i) for c in ("coat", "dress") for i in range(4)}
BROKEN = {**TWO_CLASSES, "images/coat/1.png": png(1)[:40]}
ENOUGH = {f"images/{c}/{i}.png": png(i) for c in ("coat", "dress") for i in range(10, 30)}
