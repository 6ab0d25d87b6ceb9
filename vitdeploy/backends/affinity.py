"""Threads pinned to cores, in ONNX Runtime's spelling: '2;3,4' or '1-2;3-4', counted from 1."""

from __future__ import annotations

import re

from vitdeploy import environment
from vitdeploy.errors import InputError

_SET = r"\d{1,9}(-\d{1,9})?(,\d{1,9}(-\d{1,9})?)*"
_SPELLING = f"{_SET}(;{_SET})*"
_SHOWN = 8


def require_cores(affinity: str) -> None:
    """Raise InputError unless every thread is given cores that this process may use.

    ONNX Runtime itself logs what it cannot pin, and goes on.
    """
    if not re.fullmatch(_SPELLING, affinity, re.ASCII):
        raise InputError(
            f"--affinity {affinity!r} names no cores",
            hint="write the cores of threads 2, 3, ..., counted from 1: '2;3;4' or '1-2;3-4'",
        )
    here = [core + 1 for core in environment.core_numbers()]
    missing = [part for part in re.split("[;,]", affinity) if not _are_here(part, here)]
    if missing:
        raise InputError(
            f"--affinity {affinity!r} names cores that this process does not have: "
            f"{', '.join(missing)}",
            hint=f"the cores here are, counted from 1, {_in_words(here)}",
        )


def _are_here(part: str, here: list[int]) -> bool:
    """Whether '3' or all of '3-5' are among the cores; of '5-3' there is none."""
    ends = [int(number) for number in part.split("-")]
    low, high = ends[0], ends[-1]
    return 0 < high - low + 1 == sum(low <= core <= high for core in here)


def _in_words(cores: list[int]) -> str:
    if len(cores) > 2 and cores == list(range(cores[0], cores[-1] + 1)):
        return f"{cores[0]} to {cores[-1]}"
    shown = ", ".join(map(str, cores[:_SHOWN]))
    return f"{shown} and {len(cores) - _SHOWN} more" if len(cores) > _SHOWN else shown
