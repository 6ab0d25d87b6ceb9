"""What the command line says and leaves behind when something is wrong.

Each row: its exit code, exactly one `error:` line, a hint, no traceback, and
no file that was not there before.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from command_line import (
    BROKEN,
    DEMO_TOML,
    GRAPH,
    KILL_AFTER_S,
    SMALL,
    TINY,
    TWO_CLASSES,
    Outcome,
    checkpoint,
    environment,
    listing,
    png,
    require_one_error,
)

from vitdeploy.demo import assets


@dataclass(frozen=True)
class Row:
    arguments: list[str]
    code: int
    said: str
    hint: str
    toml: str = ""
    files: dict[str, bytes] = field(default_factory=dict)


ROWS = {
    "missing graph": Row(
        ["build-engine", "graf.onnx"],
        2, "graf.onnx does not exist", "graph.onnx", files={"graph.onnx": b""},
    ),
    "missing engine": Row(["evaluate", "a.engine"], 2, "a.engine does not exist", "path"),
    "missing checkpoint": Row(
        ["export", "vit_tiny_patch16_224", "--checkpoint", "w.pth"],
        2, "w.pth does not exist", "path",
    ),
    "missing images": Row(
        ["build-engine", GRAPH, "--int8", "--calib", "none"], 2, "none does not exist", "folder",
    ),
    "missing training images": Row(
        ["train", *TINY, "--data", "none", "-o", "a.safetensors"],
        2, "none does not exist", "folder",
    ),
    "text for a graph": Row(
        ["build-engine", "a.onnx"],
        2, "a.onnx is not an ONNX graph", "vitdeploy export", files={"a.onnx": b"hello"},
    ),
    "empty graph": Row(
        ["build-engine", "a.onnx"],
        2, "a.onnx is not an ONNX graph", "vitdeploy export", files={"a.onnx": b""},
    ),
    "truncated graph": Row(
        ["build-engine", "a.onnx"],
        2, "a.onnx is not an ONNX graph", "vitdeploy export",
        files={"a.onnx": assets.GRAPH.read_bytes()[:100_000]},
    ),
    "no graph for an engine": Row(
        ["evaluate", "a.onnx"],
        2, "a.onnx is not an ONNX graph", "", files={"a.onnx": b"x"},
    ),
    "engine without manifest": Row(
        ["evaluate", "a.engine"], 2, "a.json is not beside it", "", files={"a.engine": b"x"},
    ),
    "empty folder": Row(
        ["build-engine", GRAPH, "--int8", "--calib", "images"],
        2, "images holds no images", ".png", files={"images/note.txt": b""},
    ),
    "one class": Row(
        ["build-engine", GRAPH, "--int8", "--calib", "images"],
        2, "one class only (coat)", "add the other", files={"images/coat/1.png": png(1)},
    ),
    "one class to train on": Row(
        ["train", *TINY, "--data", "images", "-o", "a.safetensors"],
        2, "one class only (coat)", "add the other", files={"images/coat/1.png": png(1)},
    ),
    "unknown class": Row(
        ["train", *TINY, "--data", "images", "--eval", "val", "-o", "a.safetensors"],
        2, "no label of the model: Zebra", "coat",
        files={**TWO_CLASSES, "val/coat/1.png": png(1), "val/Zebra/1.png": png(1)},
    ),
    "too few calibration images": Row(
        ["build-engine", GRAPH, "--int8", "--calib", "images"],
        5, "too few to calibrate", "16", files=TWO_CLASSES,
    ),
    "unreadable calibration images": Row(
        ["build-engine", GRAPH, "--int8", "--calib", "images", "--backend", "onnxruntime"],
        5, "1 cannot be read (coat/1.png)", "16", files=BROKEN,
    ),
    "unreadable training image": Row(
        ["train", *TINY, "--model-kwargs", SMALL, "--data", "images", "-b", "8", "-j", "1",
         "-o", "a.safetensors"],
        2, "1.png cannot be read", "repair", files=BROKEN,
    ),
    "channel count": Row(
        ["export", *TINY, "--in-chans", "1"], 2, "1 channels", "mean",
    ),
    "resolution": Row(
        ["export", "--model", "demo", "--res", "100x101"],
        2, "not a multiple of the patch size", "--res",
    ),
    "mixed resolution": Row(
        ["train", *TINY, "--model-kwargs", SMALL, "--data", "images", "-b", "8",
         "--mixed-res", "32,36", "-o", "a.safetensors"],
        2, "36x36 is not a multiple", "--mixed-res", files=TWO_CLASSES,
    ),
    "no calibration set": Row(
        ["build-engine", GRAPH, "--int8"], 2, "INT8 needs calibration images", "--calib",
    ),
    "data of another model": Row(
        ["build-engine", GRAPH, "--int8"], 2, "INT8 needs calibration images", "--calib",
        toml='[model]\nname = "another"\n[data]\ncalibration = "demo"',
    ),
    "unknown model": Row(
        ["export", "vit_tiny_patch61_224", "--random-weights"],
        2, "no model is called", "vit_tiny_patch16_224",
    ),
    "no model": Row(["export"], 2, "no model was named", "vitdeploy.toml"),
    "no weights": Row(["export", "vit_tiny_patch16_224"], 2, "no weights", "--random-weights"),
    "hub out of reach": Row(
        ["export", "vit_tiny_patch16_224", "--pretrained"],
        3, "cannot be fetched", "--checkpoint",
    ),
    "pickled code": Row(
        ["export", "vit_tiny_patch16_224", "--checkpoint", "w.pth"],
        2, "w.pth cannot be read", "never run",
        files={"w.pth": b"\x80\x02cposix\nsystem\n(X\x07\x00\x00\x00touch xtR."},
    ),
    "wrong head": Row(
        ["export", "vit_tiny_patch16_224", "--model-kwargs", SMALL, "--checkpoint", "w.pth"],
        2, "head.weight is (7, 192)", "--num-classes", files={"w.pth": checkpoint(7)},
    ),
    "model named twice": Row(["export", "demo", *TINY], 2, "named twice", "--help"),
    "unknown backend": Row(
        ["build-engine", GRAPH, "--backend", "tensorflow"], 2, "tensorflow", "onnxruntime",
    ),
    "unknown target": Row(["build-engine", GRAPH, "--target", "sm88"], 2, "sm88", "sm89"),
    "a GPU for a CPU runtime": Row(
        ["build-engine", GRAPH, "--target", "sm89", "--backend", "onnxruntime"],
        6, "not for sm89", "tensorrt-rtx",
    ),
    "FP16 on a CPU": Row(
        ["build-engine", GRAPH, "--fp16", "--target", "cpu", "--backend", "onnxruntime", "-o", "."],
        6, "says nothing about FP16", "fp32",
    ),
    "no engine": Row(["evaluate"], 2, "no engine of this model", "build-engine", toml=DEMO_TOML),
    "nothing to report": Row(["report"], 2, "artifacts holds no engine", "build-engine"),
    "nothing to resume": Row(
        ["train", *TINY, "--model-kwargs", SMALL, "--data", "images", "-b", "8", "--resume",
         "-o", "a.safetensors"],
        2, "nothing to resume", "without --resume", files=TWO_CLASSES,
    ),
    "unknown command": Row(["evalute"], 2, "evalute", "did you mean evaluate?"),
    "unknown option": Row(["export", "--rez", "3"], 2, "--rez", "export --help"),
    "resolution that is none": Row(["export", "--res", "big"], 2, "384x512", "export --help"),
    "unknown key": Row(
        ["export"], 2, "numclasses", "num_classes", toml="[model]\nname='x'\nnumclasses=1",
    ),
    "no TOML": Row(["export"], 2, "not valid TOML", "", toml="[model"),
    "output is a file": Row(
        ["build-engine", GRAPH, "--backend", "onnxruntime", "-o", "out"],
        2, "cannot write", "--out", files={"out": b""},
    ),
}  # fmt: skip
DRIVER = """
import contextlib, io, json, os, sys, traceback
from vitdeploy import cli

outcomes = {}
for name, (folder, arguments) in json.load(sys.stdin).items():
    os.chdir(folder)
    sys.argv = ["vitdeploy", *arguments]
    output, errors = io.StringIO(), io.StringIO()
    code = None
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            cli.main()
        except SystemExit as stop:
            code = stop.code
        except BaseException:
            traceback.print_exc()
    outcomes[name] = (code, output.getvalue(), errors.getvalue())
json.dump(outcomes, sys.stdout)
"""


@pytest.fixture(scope="module")
def outcomes(
    tmp_path_factory: pytest.TempPathFactory, cache: Path
) -> dict[str, tuple[Outcome, tuple[str, ...]]]:
    """All rows in one process, so that PyTorch is imported once. With what they left behind."""
    jobs, before = {}, {}
    for name, row in ROWS.items():
        folder = tmp_path_factory.mktemp("row")
        for path, content in row.files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        if row.toml:
            (folder / "vitdeploy.toml").write_text(row.toml)
        jobs[name] = (str(folder), row.arguments)
        before[name] = listing(folder)
    done = subprocess.run(
        [sys.executable, "-c", DRIVER],
        input=json.dumps(jobs),
        env=environment(cache, HF_HUB_OFFLINE="1", HF_HOME=str(cache)),
        capture_output=True,
        text=True,
        timeout=KILL_AFTER_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = {}
    for name, (code, output, errors) in json.loads(done.stdout).items():
        new = sorted(set(listing(Path(jobs[name][0]))) - set(before[name]))
        found[name] = (Outcome(code, output, errors), tuple(new))
    return found


@pytest.mark.parametrize("name", ROWS)
def test_bad_input_is_named_and_leaves_nothing(
    outcomes: dict[str, tuple[Outcome, tuple[str, ...]]], name: str
) -> None:
    outcome, left = outcomes[name]
    row = ROWS[name]
    require_one_error(outcome, row.code, row.said, row.hint)
    assert list(left) == []
