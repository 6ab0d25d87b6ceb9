"""What the parent asks of the worker, and how the worker answers.

The request is a JSON file. The answer is a stream of JSON lines, each with an
`event`: `phase` and `step` (progress), `log` (a warning or an error of the
vendor, sent at once so that a crash does not lose it), and one last `built`,
`refused` (the vendor said no) or `failed` (we said no).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class BuildRequest:
    """One build. Paths are absolute; shapes are those of one image as the graph takes it.

    The graph takes images from `smallest_image` to `largest_image`, best of
    `image_shape`; the three are the same for a graph of one size. Each of
    `profiles` is (smallest, best, largest) full shape, the batch first.
    `compute_capabilities` are the numbers to build for (86 for sm86); empty
    means the GPU of this machine. `timing_cache` is the folder of timings kept
    between builds, empty for none; `hardware_level` the vendor's name of a
    compatibility level, empty for none; `flags` are names of trt.BuilderFlag.
    """

    flavour: str
    graph: str
    output: str
    input_name: str
    output_name: str
    image_dtype: str
    image_shape: tuple[int, ...]
    smallest_image: tuple[int, ...]
    largest_image: tuple[int, ...]
    profiles: tuple[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]], ...]
    compute_capabilities: tuple[int, ...]
    workspace_bytes: int | None
    threads: int | None
    optimization_level: int | None = None
    timing_cache: str = ""
    hardware_level: str = ""
    flags: tuple[str, ...] = ()

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")


def read_request(path: Path) -> BuildRequest:
    fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return BuildRequest(**{name: _frozen(value) for name, value in fields.items()})


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
