"""Memory an engine takes: the peak of a process that does nothing but load and run it."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitdeploy.artifacts.engine import Engine, read_engine
from vitdeploy.backends import registry
from vitdeploy.backends.base import image_input
from vitdeploy.errors import EngineError
from vitdeploy.preprocessing import Size

_RUNS = 3
_STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class PeakMemory:
    """Resident bytes at their highest, of a process of its own at one batch size.

    `before_bytes` is that of the interpreter with the runtime's libraries not
    yet loaded: what the engine and its runtime add is the difference. A GPU's
    own memory is not in it.
    """

    engine_digest: str
    batch: int
    peak_bytes: int
    before_bytes: int

    @property
    def added_bytes(self) -> int:
        return self.peak_bytes - self.before_bytes

    def in_words(self) -> str:
        """'412 MB at its peak, 330 MB of it the engine and its runtime'."""
        return (
            f"{self.peak_bytes / 1e6:,.0f} MB at its peak, {self.added_bytes / 1e6:,.0f} MB of it "
            "the engine and its runtime"
        )


def can_tell() -> bool:
    """Whether this system says how much memory a process took at its peak; Windows does not."""
    return _STATUS.exists() or importlib.util.find_spec("resource") is not None


def peak_memory(engine: Engine, batch: int, *, threads: int | None = None) -> PeakMemory:
    """Load and run `engine` in a process of its own.

    A process that has done other work keeps its highest peak and what
    allocators hold back, so this one's own figures would tell nothing. Raises
    EngineError where the process fails.
    """
    command = [sys.executable, "-m", __spec__.name if __spec__ else __name__]
    size = map(str, engine.manifest.model.resolution)
    asked = [str(engine.path.absolute()), str(batch), str(threads or 0), *size]
    # Its warnings are not ours to judge: only the figures count.
    done = subprocess.run([*command, *asked], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise EngineError(
            f"{engine.path.name} could not be run in a process of its own: {last}",
            hint="give a smaller batch, or see whether the machine has the memory",
        )
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return PeakMemory(engine.manifest.engine_digest, batch, found["peak"], found["before"])


def _resident_peak() -> int:
    """Bytes: VmHWM where the kernel says it, else what getrusage does."""
    if _STATUS.exists():
        for line in _STATUS.read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    try:
        import resource
    except ImportError as error:  # whoever calls has asked `can_tell`
        raise EngineError("this system tells no peak memory", hint="see can_tell") from error
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most


def _measure(path: Path, batch: int, threads: int | None, size: Size) -> dict[str, int]:
    before = _resident_peak()
    engine = read_engine(path).at(size)
    model = engine.manifest.model
    takes = image_input(model)
    height, width = model.resolution
    channels = model.source.in_chans
    chw = (channels, height, width) if takes.dtype == "float32" else (height, width, channels)
    session = registry.get(engine.manifest.backend).load(engine, threads=threads)
    images = np.zeros((batch, *chw), takes.dtype)
    for _ in range(_RUNS):
        session.run(images)
    return {"peak": _resident_peak(), "before": before}


if __name__ == "__main__":
    own_batch, own_threads, *own_size = map(int, sys.argv[2:])
    found = _measure(Path(sys.argv[1]), own_batch, own_threads or None, (own_size[0], own_size[1]))
    sys.stdout.write(json.dumps(found) + "\n")
