"""Standard streams that never decide how a command ends.

A reader that goes away (`| head`), a stream closed by the shell (`>&-`) and a
terminal that lacks a character must not turn a verdict into another exit code.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from contextlib import suppress
from typing import Any, TextIO

from vitdeploy.errors import OutputError

_READER_GONE = (errno.EPIPE, errno.EINVAL)
"""EINVAL is what Windows says of a closed pipe."""


def prepare() -> None:
    """Replace sys.stdout and sys.stderr by streams that outlive their readers.

    Streams that are no files (a test's StringIO) stay as they are.
    """
    for number in range(3):
        _reserve(number)
    sys.stdout = _outliving(sys.stdout, 1, silent=False)
    sys.stderr = _outliving(sys.stderr, 2, silent=True)


def flush() -> None:
    """Write what is buffered. Raises OutputError where standard output takes no more."""
    sys.stdout.flush()
    sys.stderr.flush()


def _reserve(number: int) -> None:
    """Give a closed descriptor to the null device, before a file of ours would get its number."""
    try:
        os.fstat(number)
    except OSError:
        null = os.open(os.devnull, os.O_RDWR)
        if null != number:
            os.dup2(null, number)
            os.close(null)


def _outliving(stream: TextIO | None, number: int, *, silent: bool) -> TextIO:
    if stream is None:
        return open(number, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
    binary = getattr(stream, "buffer", None)
    if not isinstance(stream, io.TextIOWrapper) or binary is None:
        return stream
    with suppress(OSError):
        stream.flush()
    raw = _Outliving(getattr(binary, "raw", binary), silent=silent)
    # Unbuffered streams (`python -u`) stay so: their text goes straight to the raw one.
    writer: Any = raw if stream.write_through else io.BufferedWriter(raw)
    return io.TextIOWrapper(
        writer,
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


class _Outliving(io.RawIOBase):
    """`inner`, whose first failed write is the last one tried; later bytes are dropped.

    A reader that has gone is no failure. Any other is an OutputError, once,
    unless `silent`: of standard error there is nobody to tell.
    """

    def __init__(self, inner: Any, *, silent: bool) -> None:
        self._inner = inner
        self._silent = silent
        self._broken = False

    def write(self, content: Any, /) -> int:
        # click probes streams with empty writes, and takes an error for an answer.
        if self._broken or len(content) == 0:
            return len(content)
        try:
            return self._inner.write(content)
        except OSError as error:
            self._broken = True
            if self._silent or error.errno in _READER_GONE:
                return len(content)
            raise OutputError(
                f"standard output cannot be written: {error.strerror or error}",
                hint="redirect it to a place with room",
            ) from error

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._inner.fileno()

    def isatty(self) -> bool:
        return self._inner.isatty()
