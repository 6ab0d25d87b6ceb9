"""Reading a report.json back: a foreign file may hold anything of the right type."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from vitdeploy.artifacts.files import from_json, read_text
from vitdeploy.benchmarks.accuracy.comparison import Loss
from vitdeploy.benchmarks.report.model import Report
from vitdeploy.errors import InputError

_NOT_FIGURES = ("model", "quantization")
"""What describes the graph: that is checked where it is used."""
_ANY_SIGN = re.compile(r"drop_\w+|\w*cosine\w*|\w*r2")
_SHARES = re.compile(r"\w+_(top1|top5|ece|map|kept|interval|p)|agreement\w*|\w*cosine\w*")
_ROUNDING = 1e-6
_TIMES = ("samples_ms", "device_samples_ms")
_SHORTEST_MS = 1e-6


def read_report(path: Path) -> Report:
    """Read a report.json back. Raises InputError for any other file or schema, and as
    `check_figures`."""
    report = from_json(read_text(path, what="report"), Report, origin=str(path))
    check_figures(report, str(path))
    return report


def check_figures(report: Report, origin: str) -> None:
    """Raise InputError that names the first figure of a report that cannot be.

    Times, sizes and counts below zero; shares above 1.
    """
    for field in fields(report):
        if field.name in _NOT_FIGURES:
            continue
        for place, name, value in _numbers(getattr(report, field.name), field.name, field.name):
            wrong = ""
            if name in _TIMES and value < _SHORTEST_MS:
                wrong = "no time that could have been measured"
            elif value < 0 and not _ANY_SIGN.fullmatch(name):
                wrong = "below zero"
            elif abs(value) > 1 + _ROUNDING and _SHARES.fullmatch(name):
                wrong = "no share of 1"
            if wrong:
                raise InputError(
                    f"{origin} cannot be right: {place} is {value:g}, which is {wrong}",
                    hint="write it again with `vitdeploy report` where it was measured",
                )


def _numbers(value: Any, place: str, name: str) -> Iterator[tuple[str, str, float]]:
    """(where, the field's name, the number) of every number below `value`."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield place, name, value
    elif isinstance(value, Loss):
        yield from _numbers(value.limit, f"{place}.limit", "limit")  # the others may be gains
    elif isinstance(value, tuple):
        for i, each in enumerate(value):
            yield from _numbers(each, f"{place}[{i}]", name)
    elif is_dataclass(value):
        for field in fields(value):
            own = getattr(value, field.name)
            yield from _numbers(own, f"{place}.{field.name}", field.name)
