"""Fill and print the table of exported families.

    python -m tools.export_table run [FAMILY ...]   cells that are missing, one process each
    python -m tools.export_table render             docs/export-table.md out of the cells

A cell that is there is kept: the run can be stopped and taken up again at any
time. Delete a cell's file to have it judged again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tools.export_table.render import rendered
from tools.export_table.rows import ROWS, Row

ROOT = Path(__file__).resolve().parents[2]
CELLS = ROOT / "docs" / "export-table"
SIZES = ("native", "other", "oblong")
PRECISIONS = ("fp32", "fp16")


def run(families: list[str]) -> None:
    """Run every missing cell, the fast ones of all families first."""
    CELLS.mkdir(exist_ok=True)
    for precision in PRECISIONS:
        for size in reversed(SIZES):
            for row in ROWS:
                path = CELLS / f"{row.key}--{size}--{precision}.json"
                if path.exists() or (families and row.family not in families):
                    continue
                _run_cell(row, size, precision, path)


def _run_cell(row: Row, size: str, precision: str, path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "tools.export_table.cell"]
    done = subprocess.run(
        [*command, row.key, size, precision],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        print(f"{path.stem}: crashed ({done.returncode}): {last}", flush=True)
        return
    cell: dict[str, Any] = json.loads(done.stdout)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(cell, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)
    print(f"{path.stem}: {cell.get('error') or cell['max_error']}", flush=True)


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
