"""The child process in which one peer quantizes one subject, and what that cost.

    python -m tests.peers.worker MODULE:FUNCTION SUBJECT_FOLDER OUTPUT_FOLDER

The answer is `cost.json` in the output folder. A peer that fails ends the process with
its own traceback.
"""

from __future__ import annotations

import importlib
import resource
import sys
import time
from pathlib import Path

from tests.peers.record import Cost
from tests.peers.subjects import Prepared
from vitdeploy.artifacts.files import to_json, write_text


def main(named: str, subject: str, output: str) -> None:
    module, _, name = named.partition(":")
    function = getattr(importlib.import_module(module), name)
    imported, spent, started = _peak_bytes(), _cpu_seconds(), time.perf_counter()
    written: Path = function(Prepared(Path(subject)), Path(output))
    cost = Cost(
        file=written.name,
        wall_seconds=time.perf_counter() - started,
        cpu_seconds=_cpu_seconds() - spent,
        peak_bytes=_peak_bytes(),
        imported_bytes=imported,
        size_bytes=_size(written),
    )
    write_text(Path(output) / "cost.json", to_json(cost))


def _peak_bytes() -> int:
    """The largest resident size of this process, by Linux's VmHWM.

    Not getrusage's ru_maxrss: across exec that keeps what the parent had at its largest.
    """
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return 1024 * int(line.split()[1])


def _cpu_seconds() -> float:
    whos = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, whos))


def _size(written: Path) -> int:
    """The file and, where it has such, its weights beside it."""
    beside = (written.with_suffix(".bin"), written.with_name(f"{written.name}.data"))
    return sum(path.stat().st_size for path in (written, *beside) if path.is_file())


if __name__ == "__main__":
    main(*sys.argv[1:])
