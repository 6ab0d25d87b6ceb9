"""Fill and print the table of exported families.

    python -m tools.export_table run [FAMILY | MODEL | SIZE | PRECISION ...]   missing cells
    python -m tools.export_table render                                  docs/export-table.md

SIZE is native, other or oblong; PRECISION fp32, fp16, int8 or fp8. A cell that
is there is kept: the run can be stopped and taken up again at any time. Delete
a cell's file to have it judged again. Each row runs in a process of its own;
one that dies loses the cell it was at, and a new one goes on behind it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tools.export_table.render import rendered
from tools.export_table.rows import PRECISIONS, ROWS, Row, takes

ROOT = Path(__file__).resolve().parents[2]
CELLS = ROOT / "docs" / "export-table"
SIZES = ("oblong", "native", "other")


def run(chosen: list[str]) -> None:
    """Run every missing cell of the rows, sizes and precisions named, or of all."""
    CELLS.mkdir(exist_ok=True)
    sizes = [size for size in SIZES if size in chosen] or SIZES
    precisions = [one for one in PRECISIONS if one in chosen] or PRECISIONS
    names = set(chosen) - set(SIZES) - set(PRECISIONS)
    cells = [(size, one) for size in sizes for one in precisions if takes(one, size)]
    for row in ROWS:
        if not names or row.family in names or row.model in names:
            _run_row(row, [cell for cell in cells if not _path(row, cell).exists()])


def _run_row(row: Row, missing: list[tuple[str, str]]) -> None:
    while missing:
        done = _process(row, missing)
        left = [cell for cell in missing if not _path(row, cell).exists()]
        if not left:
            return
        lost, missing = left[0], left[1:]
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        print(f"{_path(row, lost).stem}: crashed ({done.returncode}): {last}", flush=True)


def _path(row: Row, cell: tuple[str, str]) -> Path:
    return CELLS / f"{row.key}--{cell[0]}--{cell[1]}.json"


def _process(row: Row, cells: list[tuple[str, str]]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-m", "tools.export_table.cell"]
    return subprocess.run(
        [*command, row.key, str(CELLS), *(":".join(cell) for cell in cells)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["run"]:
        run(arguments[1:])
    elif arguments == ["render"]:
        cells = [json.loads(path.read_text("utf-8")) for path in sorted(CELLS.glob("*.json"))]
        (ROOT / "docs" / "export-table.md").write_text(rendered(cells), encoding="utf-8")
    else:
        print(__doc__)
        sys.exit(2)


if __name__ == "__main__":
    main(sys.argv[1:])
