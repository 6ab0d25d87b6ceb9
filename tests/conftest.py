"""What tests of every kind share."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator

import pytest

_VERSION_3 = 0x20080522
_WORDS = 6
"""Effective, permitted and inheritable capabilities, in two halves."""


@pytest.fixture
def modes_bind() -> Iterator[None]:
    """File modes hold, as they do for everyone but root: its capabilities sleep meanwhile."""
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    held, asleep = (ctypes.c_uint32 * _WORDS)(), (ctypes.c_uint32 * _WORDS)()
    assert libc.capget(header, held) == 0
    for i in range(_WORDS):
        asleep[i] = 0 if i in (0, 3) else held[i]
    assert libc.capset(header, asleep) == 0
    try:
        yield
    finally:
        assert libc.capset(header, held) == 0
