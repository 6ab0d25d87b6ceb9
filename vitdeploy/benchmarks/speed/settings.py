"""What every setting of a measurement must be, said the same way for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vitdeploy.errors import InputError


def check_settings(
    config: Any, *, counts: Sequence[str], positive: Sequence[str], not_negative: Sequence[str]
) -> None:
    """Raise InputError that names each field of `config` without sense.

    `counts` are at least 1, `positive` above zero, `not_negative` zero or
    above; NaN is none of these.
    """
    wrong = [f"{name} must be at least 1" for name in counts if not getattr(config, name) >= 1]
    wrong += [f"{name} must be above zero" for name in positive if not getattr(config, name) > 0]
    wrong += [
        f"{name} must not be below zero" for name in not_negative if not getattr(config, name) >= 0
    ]
    if wrong:
        raise InputError("; ".join(wrong), hint="use the defaults")


@dataclass(frozen=True, kw_only=True)
class TimingConfig:
    """How long and how strictly to time.

    `window` rounds are summed up by their median (rounded up to a multiple of
    the sessions, so that in each window every session ran equally often in
    every position); three windows in a row within `tolerance` end the
    measurement. `min_round_ms` is how long a session runs at least in one
    round; `max_seconds` bounds all rounds, warm-ups apart.
    """

    warmups: int = 3
    min_round_ms: float = 100.0
    window: int = 6
    tolerance: float = 0.05
    max_seconds: float = 120.0
    accept_unstable: bool = False

    def __post_init__(self) -> None:
        check_settings(
            self,
            counts=("warmups", "window"),
            positive=("tolerance", "max_seconds"),
            not_negative=("min_round_ms",),
        )
