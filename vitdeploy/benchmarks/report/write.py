"""Writing a report's three files, and those of a merged one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from vitdeploy.artifacts.files import to_json, write_bytes
from vitdeploy.artifacts.strict import printable
from vitdeploy.benchmarks.report.html import merged_to_html, to_html
from vitdeploy.benchmarks.report.markdown import merged_to_markdown, to_markdown
from vitdeploy.benchmarks.report.merge import MergedReport
from vitdeploy.benchmarks.report.model import Report


def write_report(report: Report, folder: Path) -> dict[str, Path]:
    """Write report.json, report.md and report.html; answer their paths by kind.

    Each file is written whole or not at all. Raises OutputError where the
    folder cannot be written.
    """
    texts = {"json": to_json(report), "md": to_markdown(report), "html": to_html(report)}
    return _write(texts, folder / "report")


def write_merged(merged: MergedReport, folder: Path) -> dict[str, Path]:
    """Write merged.json, merged.md and merged.html, as `write_report` does."""
    texts = {
        "json": to_json(merged),
        "md": merged_to_markdown(merged),
        "html": merged_to_html(merged),
    }
    return _write(texts, folder / "merged")


def _write(texts: Mapping[str, str], stem: Path) -> dict[str, Path]:
    # All of them before the first is written: half a report is worse than none.
    contents = {kind: printable(text).encode() for kind, text in texts.items()}
    paths = {kind: stem.with_name(f"{stem.name}.{kind}") for kind in contents}
    for kind, path in paths.items():
        write_bytes(path, contents[kind])
    return paths
