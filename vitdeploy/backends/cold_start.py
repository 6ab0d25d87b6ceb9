"""How long an engine takes from nothing to its first answer, in a process of its own.

A device that wakes for one image pays this, and no warm timing shows it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from vitdeploy.artifacts.engine import Engine, read_engine
from vitdeploy.errors import EngineError, VitDeployError

_AGAIN = 3


@dataclass(frozen=True)
class ColdStart:
    """Seconds: to import the runtime's library, to load the engine, for the first inference,
    and (the median of a few) for the next ones; of `batch` images each."""

    backend: str
    engine_digest: str
    batch: int
    import_seconds: float
    load_seconds: float
    first_run_seconds: float
    next_run_seconds: float

    def seconds_to_first_answer(self) -> float:
        """Without Python's own start."""
        return self.import_seconds + self.load_seconds + self.first_run_seconds


def measure_cold_start(
    engine: Engine, *, threads: int | None = None, timeout_seconds: float = 600
) -> ColdStart:
    """Load and run an engine once in a fresh Python. Raises EngineError where that fails.

    The smallest batch of the engine is used. The file itself may still be in
    the system's cache, as it is after any copy.
    """
    command = [sys.executable, "-m", __name__, str(engine.path.absolute()), str(threads or 0)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_seconds, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise EngineError(
            f"{engine.path.name} gave no answer within {timeout_seconds:.0f} s of a cold start",
            hint="give it more time, or build it again",
        ) from error
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]
        raise EngineError(
            f"{engine.path.name} did not start in a fresh process: {said}",
            hint="load it with `vitdeploy predict` to see more",
        )
    return ColdStart(**json.loads(done.stdout.strip().splitlines()[-1]))


def _here(path: Path, threads: int | None) -> ColdStart:
    """Measure in this process, which must not have loaded the runtime yet."""
    from vitdeploy.backends import registry
    from vitdeploy.backends.base import image_input

    engine = read_engine(path)
    manifest = engine.manifest
    started = time.perf_counter()
    backend = registry.get(manifest.backend)
    backend.probe()  # imports the vendor's library
    imported = time.perf_counter()
    session = backend.load(engine, threads=threads)
    loaded = time.perf_counter()
    shape = manifest.model.input_shape
    takes = image_input(manifest.model)
    if takes.dtype == "uint8":
        shape = (*shape[1:], shape[0])
    batch = np.zeros((manifest.batch[0], *shape), takes.dtype)
    moments = [time.perf_counter()]
    for _ in range(1 + _AGAIN):
        session.run(batch)
        moments.append(time.perf_counter())
    first, *others = np.diff(moments).tolist()
    return ColdStart(
        backend=manifest.backend,
        engine_digest=manifest.engine_digest,
        batch=len(batch),
        import_seconds=imported - started,
        load_seconds=loaded - imported,
        first_run_seconds=first,
        next_run_seconds=float(np.median(others)),
    )


def main(arguments: list[str]) -> int:
    """`python -m vitdeploy.backends.cold_start ENGINE THREADS`: one line of JSON."""
    try:
        found = _here(Path(arguments[0]), int(arguments[1]) or None)
    except VitDeployError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    sys.stdout.write(json.dumps(asdict(found)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
