"""Timings of kernels, kept between builds; enterprise TensorRT only. Runs in the child process.

Timings belong to one model of GPU and one version of TensorRT, so the file's
name says both and no other build ever reads it. Two builds at once may end
together: what the other one wrote meanwhile is taken in before the file is
replaced.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vitdeploy.artifacts.files import write_bytes
from vitdeploy.errors import OutputError

Say = Callable[[str], None]


def cache_file(folder: Path, gpu: str, version: str) -> Path:
    """'timing-nvidia-l4-sm89-10.3.0.cache' for the GPU 'NVIDIA L4 sm89'."""
    return folder / f"timing-{_plain(gpu)}-{_plain(version)}.cache"


class KeptTimings:
    """The cache of one build: `attach` before it, `keep` after it.

    A file that TensorRT does not take (cut short, damaged) is said to be left
    out, and the build begins with an empty cache.
    """

    def __init__(self, path: Path, say: Say) -> None:
        self._path = path
        self._say = say
        self._known = b""

    def attach(self, config: Any) -> None:
        self._known = self._path.read_bytes() if self._path.is_file() else b""
        cache = config.create_timing_cache(self._known)
        if cache is None or not config.set_timing_cache(cache, False):
            self._say(f"the timing cache {self._path.name} is not usable and is written anew")
            self._known = b""
            cache = config.create_timing_cache(b"")
            config.set_timing_cache(cache, False)

    def keep(self, config: Any) -> None:
        """Write what is known now. Where that cannot be it is said: the engine is worth more."""
        cache = config.get_timing_cache()
        if cache is None:
            return
        meanwhile = self._path.read_bytes() if self._path.is_file() else b""
        if meanwhile and meanwhile != self._known:
            other = config.create_timing_cache(meanwhile)
            if other is not None:
                cache.combine(other, False)
        try:
            write_bytes(self._path, bytes(cache.serialize()))
        except OutputError as error:
            self._say(f"the timing cache was not kept: {error}")


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")
