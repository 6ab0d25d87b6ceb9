"""Put the table of a demo's report.json into the README: python tools/readme_table.py FILE"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from vitdeploy.benchmarks.report.markdown import table_rows
from vitdeploy.benchmarks.report.read import read_report

README = Path(__file__).parents[1] / "README.md"


def main(report: Path) -> None:
    header, rows = table_rows(read_report(report))
    lines = [header, ("---",) * len(header), *rows]
    table = "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
    text = README.read_text(encoding="utf-8")
    text = re.sub(
        r"(<!-- demo table -->\n).*?(<!-- end)",
        lambda found: found[1] + table + found[2],
        text,
        flags=re.DOTALL,
    )
    README.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
