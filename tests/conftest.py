"""What tests of every kind share."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

_VERSION_3 = 0x20080522
_WORDS = 6
"""Effective, permitted and inheritable capabilities, in two halves."""

_LONGEST = (
    "test_readme.py",
    "test_demo.py",
    "test_wheel.py",
    "test_transformers.py",
    "test_dynamic_kinds.py",
    "test_families.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first: two workers that take whole files then end together."""
    items.sort(key=lambda item: item.path.name not in _LONGEST)


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


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Mounts a file system of so many MiB and answers its folder; it is gone after the test."""
    with ExitStack() as mounted:

        def mount(size_mib: int) -> Path:
            folder = tmp_path / "disk"
            folder.mkdir()
            command = ["mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "tmpfs", str(folder)]
            try:
                done = subprocess.run(command, capture_output=True, check=False).returncode == 0
            except FileNotFoundError:
                done = False
            if not done:
                pytest.skip("root: a small file system cannot be mounted here")
            mounted.callback(subprocess.run, ["umount", str(folder)], check=True)
            return folder

        yield mount
