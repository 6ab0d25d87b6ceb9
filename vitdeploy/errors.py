"""Every error vitdeploy raises on purpose, each with its exit code.

The root is `VitDeployError`; only the command line catches it. Anything else
that escapes is a bug of ours and shows its traceback (exit code 70).
"""

from __future__ import annotations

import re

_UNSEEN = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069]"
)
"""Control characters, and what Unicode has for the direction of text and the ends of lines."""


class VitDeployError(Exception):
    """What went wrong and where; `hint` says how to mend it.

    `label` stands before the message on a terminal: a verdict is no error.
    """

    exit_code = 70
    label = "error"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


def first_line(error: BaseException) -> str:
    """The first line of an error's text, for a one-line message; its type where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def counted(number: int, noun: str) -> str:
    """'1 image', '1,200 images'."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def spelled_out(text: str) -> str:
    """`text` with what would move a terminal's cursor or turn the order of what is read escaped;
    line ends and tabs stay."""
    return _UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def one_line(text: str) -> str:
    """The same with line ends and tabs escaped too: a file's name may hold them."""
    return spelled_out(text).replace("\n", r"\n").replace("\t", r"\t")


class InputError(VitDeployError):
    """A file, folder, name or option given by the user cannot be used."""

    exit_code = 2


class OutputError(InputError):
    """The place results go to cannot be written (full, read-only, missing)."""


class MissingDependencyError(VitDeployError):
    """A package, driver or device that this step needs is not here."""

    exit_code = 3


class ExportError(VitDeployError):
    """The model could not be turned into an ONNX graph that equals it."""

    exit_code = 4


class CalibrationError(VitDeployError):
    """Ranges could not be gathered, or a graph could not be quantized."""

    exit_code = 5


class EngineError(VitDeployError):
    """A runtime refused to build, load or run an engine."""

    exit_code = 6


class UnstableMeasurementError(VitDeployError):
    """Timings did not settle; no figure is better than a wrong one."""

    exit_code = 7


class GateFailedError(VitDeployError):
    """The work was done and its result is not good enough to ship."""

    exit_code = 10
    label = "fail"


class InconclusiveError(VitDeployError):
    """The evidence neither supports nor refutes the claim."""

    exit_code = 11
    label = "inconclusive"
