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

    The engine takes images from `smallest_image` to `largest_image` and is
    tuned for `image_shape`; the three are the same for a graph of one size.
    `compute_capabilities` are the numbers to build for (86 for sm86); empty
    means the GPU of this machine. `batch` is (smallest, optimal, largest).
    """

    flavour: str
    graph: str
    output: str
    input_name: str
    output_name: str
    image_shape: tuple[int, int, int]
    smallest_image: tuple[int, int, int]
    largest_image: tuple[int, int, int]
    image_dtype: str
    batch: tuple[int, int, int]
    compute_capabilities: tuple[int, ...]
    workspace_bytes: int | None
    threads: int | None

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")


def read_request(path: Path) -> BuildRequest:
    fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    for name, value in fields.items():
        if isinstance(value, list):
            fields[name] = tuple(value)
    return BuildRequest(**fields)
