"""Wording of errors that libraries of models raise."""

from __future__ import annotations


def first_line(error: BaseException) -> str:
    """The first line of an error's text, for a one-line message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
