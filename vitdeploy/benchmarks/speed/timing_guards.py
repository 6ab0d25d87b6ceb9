"""What makes timings lie: work not waited for, results overwritten, a clock that jumps."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from vitdeploy.backends.base import Session
from vitdeploy.errors import EngineError, UnstableMeasurementError

Clock = Callable[[], float]
"""Seconds from a steady clock."""

_APART = 0.01
_LEAST_APART_S = 0.001


@runtime_checkable
class Synchronizing(Protocol):
    """A session whose `run` may return before the work is done."""

    def synchronize(self) -> None:
        """Return once everything that was started is done."""
        ...


@runtime_checkable
class DeviceTimed(Protocol):
    """A session whose device counts the time of its own work."""

    def device_ms(self) -> float | None:
        """Milliseconds of the last run, copies to the device and back apart; None: not known."""
        ...


@dataclass(frozen=True)
class Stopwatch:
    """Times runs by `clock`; `witness`, a second clock, must agree (None: there is none)."""

    clock: Clock
    witness: Clock | None = None

    def run_ms(self, session: Session, batch: NDArray, repeats: int) -> float:
        """Milliseconds of one run, the mean over `repeats` in a row, all work waited for.

        Raises UnstableMeasurementError where the clock went backwards, or was
        more than 1 % and 1 ms off the second one.
        """
        settle(session)
        witness = self.witness or self.clock
        # Read on both sides of the first: between two readings other work may take its turn.
        outer_start, start, inner_start = witness(), self.clock(), witness()
        for _ in range(repeats):
            session.run(batch)
        settle(session)
        inner_end, end, outer_end = witness(), self.clock(), witness()
        elapsed = end - start
        if elapsed < 0:
            raise _jumped(f"went backwards by {-elapsed:.3g} s")
        least, most = inner_end - inner_start, outer_end - outer_start
        allowed = max(_LEAST_APART_S, _APART * most)
        if not least - allowed <= elapsed <= most + allowed:
            raise _jumped(f"counted {elapsed:.4g} s where a second clock counted {most:.4g} s")
        return 1000 * elapsed / repeats


def settle(session: Session) -> None:
    """Wait for what a session has only started; most have then nothing left to do."""
    if isinstance(session, Synchronizing):
        session.synchronize()


def device_ms_of(session: Session) -> float | None:
    """What the device counted for the last run; None where it does not tell."""
    return session.device_ms() if isinstance(session, DeviceTimed) else None


def stopwatch(clock: Clock) -> Stopwatch:
    """With a second clock where there is one: that which no time service adjusts."""
    if clock is time.perf_counter and hasattr(time, "CLOCK_MONOTONIC_RAW"):
        return Stopwatch(clock, _raw_clock)
    return Stopwatch(clock)


def _raw_clock() -> float:
    return time.clock_gettime(time.CLOCK_MONOTONIC_RAW)


def _jumped(how: str) -> UnstableMeasurementError:
    return UnstableMeasurementError(
        f"the clock {how} during a run",
        hint="measure again; a time service that sets the clock, a suspended machine or a "
        "migrated virtual one do this",
    )


@dataclass
class OwnResults:
    """Sees to it that every result is the caller's own: a run must not overwrite earlier ones."""

    _kept: dict[str, NDArray] = field(default_factory=dict)

    def check(self, session: Session, result: NDArray) -> None:
        """Raise EngineError where `result` lies in the memory of the session's last one.

        The last one is kept alive, so equal addresses are no accident.
        """
        last = self._kept.get(session.name)
        if last is not None and np.shares_memory(last, result):
            raise EngineError(
                f"{session.name} answers in the memory of its last answer: results that are kept "
                "change later, and timings leave out what a copy costs",
                hint="the session must return a fresh array (see backends.base.Session)",
            )
        self._kept[session.name] = result
