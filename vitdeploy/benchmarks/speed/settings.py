"""What every setting of a measurement must be, said the same way for all of them."""

from __future__ import annotations

from collections.abc import Sequence
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
