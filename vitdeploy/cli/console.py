"""What people see: bars on a terminal, plain lines elsewhere, JSON when asked."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress
from rich.table import Table

from vitdeploy.errors import one_line
from vitdeploy.progress import Progress, Task

_PLAIN_INTERVAL_S = 15.0
_LITTLE = 0.5


class _BarTask:
    def __init__(self, bars: RichProgress, task_id: Any) -> None:
        self._bars = bars
        self._id = task_id

    def advance(self, steps: int = 1) -> None:
        self._bars.advance(self._id, steps)


class _Bars:
    """Progress bars on the terminal's error stream."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)

    @contextmanager
    def task(self, description: str, total: int | None = None) -> Iterator[Task]:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with RichProgress(*columns, console=self._console, transient=True) as bars:
            yield _BarTask(bars, bars.add_task(escape(description), total=total))

    def note(self, text: str) -> None:
        self._console.print(escape(one_line(text)), highlight=False)


class _LineTask:
    """Says how far it is every quarter of a minute, so that logs stay short."""

    def __init__(self, description: str, total: int | None) -> None:
        self._description = description
        self._total = total
        self._done = 0
        self._said = time.monotonic()

    def advance(self, steps: int = 1) -> None:
        self._done += steps
        if time.monotonic() - self._said >= _PLAIN_INTERVAL_S:
            self._said = time.monotonic()
            of = "" if self._total is None else f"/{self._total}"
            click.echo(f"  {self._description}: {self._done}{of}", err=True)


class _Lines:
    @contextmanager
    def task(self, description: str, total: int | None = None) -> Iterator[Task]:
        click.echo(description, err=True)
        yield _LineTask(description, total)

    def note(self, text: str) -> None:
        click.echo(one_line(text), err=True)


def progress() -> Progress:
    """Bars where a person watches, lines where a log does."""
    return _Bars() if sys.stderr.isatty() else _Lines()


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Draw a table on standard output; cells wrap on narrow terminals."""
    drawn = Table(*[escape(name) for name in header], header_style="bold")
    for row in rows:
        drawn.add_row(*[escape(cell) for cell in row])
    width = None if sys.stdout.isatty() else 160
    Console(width=width).print(drawn)


def emit(as_json: bool, record: dict[str, Any], text: str) -> None:
    """The result: JSON for programs, text for people."""
    click.echo(json.dumps(record, indent=2) if as_json else text)


def of_the_work(share: float | None) -> str:
    """' (97 % of the multiply-accumulates)', with what a small share means; empty where unknown."""
    if share is None:
        return ""
    little = ", which will hardly be faster" if share < _LITTLE else ""
    return f" ({share:.0%} of the multiply-accumulates{little})".replace("%", " %")
