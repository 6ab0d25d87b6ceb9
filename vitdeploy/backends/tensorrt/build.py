"""The parent of a build: asks the worker, passes progress on, and turns its end into an answer."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from vitdeploy.artifacts.onnx_model import OnnxModel
from vitdeploy.backends.tensorrt.flavour import Flavour
from vitdeploy.backends.tensorrt.messages import Context, as_error, first_cause, is_fatal
from vitdeploy.backends.tensorrt.request import BuildRequest
from vitdeploy.errors import EngineError, MissingDependencyError, VitDeployError
from vitdeploy.progress import Task

WORKER_COMMAND = (sys.executable, "-m", "vitdeploy.backends.tensorrt.worker")
_PACKAGE_ROOT = Path(__file__).resolve().parents[3]
_PATIENCE_SECONDS = 10
_LONGEST_COMPLAINT = 1500
_RAISED_BY_WORKER: dict[str, type[VitDeployError]] = {
    "EngineError": EngineError,
    "MissingDependencyError": MissingDependencyError,
}


@dataclass(frozen=True)
class Built:
    """A finished build: the vendor's version and warnings.

    `capability` and `gpu` are the compute capability and the name of this
    machine's GPU where the engine was built for it, None and "" where it was
    built for named targets. `peak_memory_bytes` is the child's (None: unknown).
    """

    version: str
    capability: int | None
    gpu: str
    warnings: tuple[str, ...]
    peak_memory_bytes: int | None


@dataclass
class _Transcript:
    warnings: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    phase: str = ""
    end: dict[str, Any] | None = None

    def hear(self, line: str, task: Task) -> None:
        message = json.loads(line)
        event = message["event"]
        if event == "step":
            task.advance()
        elif event == "phase":
            self.phase = message["name"]
        elif event == "log":
            kept = self.errors if message["level"] == "error" else self.warnings
            if message["text"] not in kept:
                kept.append(message["text"])
        elif event in ("built", "refused", "failed"):
            self.end = message


def run_worker(
    flavour: Flavour,
    model: OnnxModel,
    request: BuildRequest,
    task: Task,
    command: Sequence[str] = WORKER_COMMAND,
) -> Built:
    """Run one build in a child process, which is gone when this returns or raises.

    Raises EngineError where the vendor refuses the graph or crashes on it,
    MissingDependencyError where it is not usable, InputError where the graph
    cannot be read, OSError where the engine cannot be written.
    """
    with tempfile.TemporaryDirectory(prefix="vitdeploy-") as folder:
        asked = Path(folder) / "request.json"
        request.write(asked)
        with (Path(folder) / "stderr").open("w+b") as complaints:
            # Started beside the package: importable from anywhere, and no file in the
            # user's folder can stand in for a module.
            process = subprocess.Popen(
                [*command, str(asked)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=complaints,
                cwd=_PACKAGE_ROOT,
                encoding="utf-8",
            )
            transcript = _listen(process, task)
            complaints.seek(0)
            said = complaints.read().decode(errors="replace").strip()
    context = Context(label=flavour.label, install=flavour.install, graph=model.path.name)
    return _conclude(transcript, process.returncode, said, context)


def _listen(process: subprocess.Popen[str], task: Task) -> _Transcript:
    transcript = _Transcript()
    stream: IO[str] = process.stdout  # pyright: ignore[reportAssignmentType]
    try:
        for line in stream:
            transcript.hear(line, task)
        process.wait()
    finally:
        _end(process)
        stream.close()
    return transcript


def _end(process: subprocess.Popen[str]) -> None:
    """Make sure that the child is gone; does nothing where it already ended."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(_PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _conclude(transcript: _Transcript, code: int, complaints: str, context: Context) -> Built:
    end = transcript.end
    if end is None or code != 0:
        raise _crash(transcript, code, complaints, context)
    fatal = next((text for text in transcript.warnings if is_fatal(text)), None)
    if end["event"] == "built" and fatal is None:
        return Built(
            version=end["version"],
            capability=end["capability"],
            gpu=end["gpu"],
            warnings=tuple(transcript.warnings),
            peak_memory_bytes=end["peak_memory_bytes"],
        )
    if end["event"] == "failed":
        raise _as_raised(end)
    raise _refusal(transcript, end, fatal, context)


def _refusal(
    transcript: _Transcript, end: dict[str, Any], fatal: str | None, context: Context
) -> VitDeployError:
    context = Context(
        label=context.label,
        install=context.install,
        graph=context.graph,
        node=end.get("node", ""),
        operator=end.get("operator", ""),
    )
    texts = (first_cause(transcript.errors), end.get("text", ""), fatal or "")
    return as_error("\n".join(text for text in texts if text), context)


def _as_raised(end: dict[str, Any]) -> Exception:
    if end["kind"] == "OSError":
        return OSError(end["code"], end["text"])
    return _RAISED_BY_WORKER[end["kind"]](end["text"], hint=end["hint"])


def _crash(transcript: _Transcript, code: int, complaints: str, context: Context) -> VitDeployError:
    how = f"crashed ({signal.Signals(-code).name})" if code < 0 else f"ended with code {code}"
    during = f" during {transcript.phase!r}" if transcript.phase else ""
    why = first_cause(transcript.errors) or complaints[-_LONGEST_COMPLAINT:]
    return EngineError(
        f"the build of {context.graph} {how}{during} inside {context.label}"
        + (f" [{why}]" if why else ""),
        hint="build a graph that `vitdeploy export` wrote; if it did write this one, "
        "or memory ran out, report the text above",
    )
