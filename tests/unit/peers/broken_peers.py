"""Peers that fail, each in its own way; run in child processes."""

from __future__ import annotations

import os
from pathlib import Path

from tests.peers.subjects import Prepared


def refuse(prepared: Prepared, folder: Path) -> Path:
    raise ValueError("cannot quantize a Gelu")


def crash(prepared: Prepared, folder: Path) -> Path:
    os.abort()
