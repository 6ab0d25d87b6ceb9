"""The table of `vitdeploy benchmark`: every column of times is of one image."""

from __future__ import annotations

from vitdeploy.benchmarks.speed.throughput import Measurement, Speedup, ThroughputComparison
from vitdeploy.cli.benchmark import _rows


def test_times_are_of_one_image() -> None:
    slow = Measurement("PyTorch", 8, 1, 1, (80.0,) * 10)
    fast = Measurement("engine", 8, 1, 1, (*(20.0,) * 8, 40.0, 40.0, 40.0))
    speedup = Speedup("engine", "PyTorch", 8, 4.0, 3.5, 4.5)
    rows = _rows(ThroughputComparison(8, (slow, fast), (speedup,), False, 0.2))
    assert rows == [
        ("PyTorch", "8", "10.00", "10.00", "100", "baseline (unstable)"),
        ("engine", "8", "2.50", "5.00", "400", "4.00x (3.50 to 4.50) (unstable)"),
    ]
