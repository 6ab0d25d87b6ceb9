"""Progress, as a sink that long work reports into.

Library functions take a `Progress` and never print. The command line passes
one that draws bars or plain lines; everyone else gets `SILENT`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class Task(Protocol):
    """One piece of work under way."""

    def advance(self, steps: int = 1) -> None: ...


class Progress(Protocol):
    """Where work announces itself."""

    def task(self, description: str, total: int | None = None) -> AbstractContextManager[Task]:
        """Open a piece of work of `total` steps (None: unknown)."""
        ...

    def note(self, text: str) -> None:
        """Say one line that the user should read."""
        ...


class _SilentTask:
    def advance(self, steps: int = 1) -> None:
        pass


class _Silent:
    def task(self, description: str, total: int | None = None) -> AbstractContextManager[Task]:
        return nullcontext(_SilentTask())

    def note(self, text: str) -> None:
        pass


SILENT: Progress = _Silent()
