"""How a typed graph's answers are compared with float32's, and what is demanded of them."""

from __future__ import annotations

import numpy as np
import pytest

from vitdeploy.errors import ExportError
from vitdeploy.export.forecast import compared, decided, holds, tolerance_of

STRICT = tolerance_of("fp16")


def row(*values: float) -> np.ndarray:
    return np.array([values], np.float32)


def test_a_comparison_is_not_fooled() -> None:
    generator = np.random.default_rng(0)
    exact = generator.normal(size=(20, 6)).astype(np.float32)
    same = compared(exact, exact, STRICT, classes=True)
    assert same.cosine == pytest.approx(1, abs=1e-6)
    assert (same.max_error, same.agreement) == (0.0, 1.0)
    broken = exact.copy()
    broken[3] = np.nan
    found = compared(exact, broken, STRICT, classes=True)
    assert found.cosine == -1
    assert found.agreement < 1
    assert not holds(found, STRICT, classes=True)
    # A constant that all rows share hides nothing.
    shifted = exact + 100
    constant = np.broadcast_to(shifted.mean(0), exact.shape)
    assert compared(shifted, constant, STRICT, classes=False).cosine < 0.5


def test_rows_too_close_to_call_are_not_counted() -> None:
    exact = np.eye(6, dtype=np.float32) * 4
    exact[0, 1] = 3.999
    assert decided(exact, STRICT).tolist() == [False, True, True, True, True, True]
    flipped = exact.copy()
    flipped[0, 1] = 4.001
    assert compared(exact, flipped, STRICT, classes=True).agreement == 1.0
    flipped[2, 0] = 5.0
    assert compared(exact, flipped, STRICT, classes=True).agreement == pytest.approx(0.8)


@pytest.mark.parametrize("value", [np.nan, 1.0])
def test_a_float32_graph_that_says_nothing_is_refused(value: float) -> None:
    exact = np.full((4, 5), value, np.float32)
    with pytest.raises(ExportError) as caught:
        compared(exact, exact, STRICT, classes=True)
    assert caught.value.hint
