"""What the command line says and leaves behind when something is wrong.

Each row: its exit code, exactly one `error:` line, a hint, no traceback, and
no file that was not there before.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from PIL import Image

from vitdeploy.demo import assets

GRAPH = str(assets.GRAPH)
DEMO_TOML = '[model]\nname = "demo"\n[data]\ncalibration = "demo"\nevaluation = "demo"\n'
TINY = ["--model", "vit_tiny_patch16_224", "--random-weights"]
SMALL = '{"img_size": 32, "patch_size": 8, "embed_dim": 192, "depth": 2, "num_heads": 3}'
KILL_AFTER_S = 300


@dataclass(frozen=True)
class Outcome:
    code: int
    output: str
    errors: str
    left: tuple[str, ...] = ()


def require_one_error(outcome: Outcome, code: int, said: str, hint: str = "") -> None:
    lines = outcome.errors.splitlines()
    marked = [number for number, line in enumerate(lines) if line.startswith("error: ")]
    assert outcome.code == code, outcome.errors
    assert len(marked) == 1, outcome.errors
    assert said in outcome.errors[outcome.errors.index("error: ") :]
    hints = [line for line in lines[marked[0] :] if line.startswith(" hint: ")]
    assert len(hints) == 1, outcome.errors
    assert hint in hints[0]
    assert "Traceback" not in outcome.errors + outcome.output
    assert "Warning" not in outcome.errors


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


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def run(arguments: list[str], folder: Path, cache: Path) -> Outcome:
    done = subprocess.run(
        [sys.executable, "-m", "vitdeploy", *arguments],
        cwd=folder,
        env=environment(cache),
        capture_output=True,
        text=True,
        timeout=KILL_AFTER_S,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


# --- what was asked for cannot be done ---------------------------------------------------


@dataclass(frozen=True)
class Row:
    arguments: list[str]
    code: int
    said: str
    hint: str
    toml: str = ""
    files: dict[str, bytes] = field(default_factory=dict)


def png(colour: int) -> bytes:
    import io

    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), (colour, colour, 0)).save(buffer, "PNG")
    return buffer.getvalue()


def checkpoint(rows: int) -> bytes:
    import io

    buffer = io.BytesIO()
    torch.save({"head.weight": torch.zeros(rows, 192)}, buffer)
    return buffer.getvalue()


TWO_CLASSES = {f"images/{c}/{i}.png": png(40 * i) for c in ("coat", "dress") for i in range(4)}
BROKEN = {**TWO_CLASSES, "images/coat/1.png": png(1)[:40]}
ENOUGH = {f"images/{c}/{i}.png": png(i) for c in ("coat", "dress") for i in range(10, 30)}

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
    "graph for an engine": Row(
        ["evaluate", "a.onnx"],
        2, "a.onnx is not an engine", "build-engine", files={"a.onnx": b"x"},
    ),
    "engine without manifest": Row(
        ["evaluate", "a.engine"], 2, "a.json does not exist", "", files={"a.engine": b"x"},
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
        ["build-engine", GRAPH, "--int8", "--calib", "images"],
        2, "no label of the model: Zebra", "coat",
        files={**TWO_CLASSES, "images/Zebra/1.png": png(1)},
    ),
    "too few calibration images": Row(
        ["build-engine", GRAPH, "--int8", "--calib", "images"],
        5, "too few to calibrate", "16", files=TWO_CLASSES,
    ),
    "unreadable calibration image": Row(
        ["build-engine", GRAPH, "--int8", "--calib", "images", "--backend", "onnxruntime"],
        2, "17.png cannot be read", "repair", files={**ENOUGH, "images/coat/17.png": b"no"},
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
        ["export", "vit_tiny_patch16_224", "--checkpoint", "w.pth"],
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
    "nothing to report": Row(["report"], 2, "no engine of this model", "build-engine"),
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
MAY_LEAVE = {"FP16 on a CPU": ".onnx"}
"""The typed graph is whole and stays; only the engine was refused."""

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
    whole = MAY_LEAVE.get(name, "no suffix")
    beside = {str(Path(path).with_suffix(".json")) for path in left if path.endswith(whole)}
    unexpected = [path for path in left if not path.endswith(whole) and path not in beside]
    assert unexpected == []


# --- the process itself ------------------------------------------------------------------


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


# --- interrupted -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    folder = tmp_path_factory.mktemp("engine")
    built = run(
        ["build-engine", GRAPH, "--backend", "onnxruntime", "-o", ".", "--json"], folder, cache
    )
    assert built.code == 0, built.errors
    return folder / json.loads(built.output)["path"]


@pytest.fixture(scope="module")
def training_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    for name, content in ENOUGH.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder / "images"


def heed_interrupts() -> None:
    """Shells start background jobs with SIGINT ignored, and a test run may be one of them."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def started(arguments: list[str], folder: Path, cache: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "vitdeploy", *arguments],
        cwd=folder,
        env=environment(cache),
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


def interrupted_at(
    line: str, number: signal.Signals, arguments: list[str], folder: Path, cache: Path
) -> Outcome:
    """Start, wait until standard error says `line`, signal, and see how it ends.

    SIGINT goes to the whole process group, as Ctrl-C does; SIGTERM to the
    process alone, as service managers do.
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
            os.killpg(process.pid, number)
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
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=environment(Path("unused")),
        capture_output=True,
        text=True,
        timeout=KILL_AFTER_S,
        check=False,
    )
    require_one_error(
        Outcome(done.returncode, done.stdout, done.stderr), 130, "interrupted", "again"
    )


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


# --- a full disk -------------------------------------------------------------------------


@pytest.fixture
def full_disk(tmp_path: Path, engine: Path) -> Iterator[Path]:
    """A file system of 12 MB that holds the engine and is full otherwise."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("root: a small file system cannot be mounted here")
    try:
        for path in (engine, engine.with_suffix(".json")):
            (folder / path.name).write_bytes(path.read_bytes())
        with pytest.raises(OSError, match="No space"), (folder / "ballast").open("wb") as ballast:
            ballast.write(bytes(12 << 20))
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


WRITES = {
    "export": ["export", "demo", "-o", "DISK"],
    "int8": ["build-engine", GRAPH, "--int8", "--calib-images", "16", "-o", "DISK",
             "--backend", "onnxruntime"],
    "onnxruntime": ["build-engine", GRAPH, "--backend", "onnxruntime", "-o", "DISK"],
    "openvino": ["build-engine", GRAPH, "--backend", "openvino", "-o", "DISK"],
    "reference": ["evaluate", "ENGINE", "--data", "FEW", "--reference", "REFERENCE",
                  "--save-reference", "DISK/again.npz"],
    "evaluate": ["evaluate", "ENGINE", "--data", "FEW", "--reference", "REFERENCE"],
    "report": ["report", "ENGINE", "-o", "DISK/report"],
    "train": ["train", *TINY, "--model-kwargs", SMALL, "--data", "IMAGES", "-b", "8",
              "--epochs", "1", "-o", "DISK/a.safetensors"],
}  # fmt: skip


@pytest.mark.parametrize("stage", WRITES)
def test_a_full_disk_is_named_and_nothing_half_written_stays(
    tmp_path: Path,
    cache: Path,
    engine: Path,
    training_images: Path,
    full_disk: Path,
    stage: str,
) -> None:
    if stage == "openvino":
        pytest.importorskip("openvino", reason="openvino: not installed")
    before = listing(full_disk)
    few = tmp_path / "few"
    if stage in ("reference", "evaluate"):
        copy_some(cache, few)
    places = {
        "ENGINE": str(full_disk / engine.name),
        "REFERENCE": str(assets.reference_path(assets.RESOLUTION)),
        "IMAGES": str(training_images),
        "FEW": str(few),
    }
    arguments = [
        places.get(argument, argument.replace("DISK", str(full_disk))) for argument in WRITES[stage]
    ]
    (tmp_path / "vitdeploy.toml").write_text(DEMO_TOML)
    outcome = run(arguments, tmp_path, cache)
    require_one_error(outcome, 2, "no space left", "free some space")
    folders = {"report"}
    assert set(listing(full_disk)) - set(before) <= folders


def copy_some(cache: Path, folder: Path) -> None:
    """Two evaluation images of each class, unpacked by an earlier command."""
    (evaluation,) = cache.glob("vitdeploy/demo-*/evaluation")
    for place in sorted(evaluation.iterdir()):
        (folder / place.name).mkdir(parents=True)
        for path in sorted(place.iterdir())[:2]:
            (folder / place.name / path.name).write_bytes(path.read_bytes())
