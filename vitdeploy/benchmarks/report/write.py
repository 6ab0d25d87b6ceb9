"""Writing a report's three files."""

from __future__ import annotations

from pathlib import Path

from vitdeploy.artifacts.files import to_json, write_bytes
from vitdeploy.artifacts.strict import printable
from vitdeploy.benchmarks.report.html import to_html
from vitdeploy.benchmarks.report.markdown import to_markdown
from vitdeploy.benchmarks.report.model import Report, read_report

__all__ = ["read_report", "write_report"]


def write_report(report: Report, folder: Path) -> dict[str, Path]:
    """Write report.json, report.md and report.html; answer their paths by kind.

    Each file is written whole or not at all. Raises OutputError where the
    folder cannot be written.
    """
    texts = {"json": to_json(report), "md": to_markdown(report), "html": to_html(report)}
    # All of them before the first is written: half a report is worse than none.
    contents = {kind: printable(text).encode() for kind, text in texts.items()}
    paths = {kind: folder / f"report.{kind}" for kind in contents}
    for kind, path in paths.items():
        write_bytes(path, contents[kind])
    return paths
