"""Did INT8 pay? FP32, FP16 and INT8 of each runtime side by side, at each batch size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vitdeploy.benchmarks.naming import backend_title, precision_title
from vitdeploy.benchmarks.speed.throughput import BenchmarkResult, Measurement, TimedEngine
from vitdeploy.benchmarks.statistics import ratio_interval


def is_quantized(precision: str) -> bool:
    """Whether a graph of this precision computes in eight bits: 'int8-fp32', 'fp8-fp16'."""
    return precision.startswith(("int8", "fp8"))


@dataclass(frozen=True)
class Payoff:
    """One runtime at one batch size: what quantizing gained over its best float engine.

    `ms_per_image` has (precision, median) of each engine, in the order they
    were measured. `ratio` is how many times as fast as `float_precision` the
    quantized engine is, with its 95 % interval; None where one kind is missing.
    `stable` is False where the timings behind it did not settle.
    """

    backend: str
    batch: int
    ms_per_image: tuple[tuple[str, float], ...]
    quantized_precision: str | None
    float_precision: str | None
    ratio: tuple[float, float, float] | None
    stable: bool = True

    @property
    def paid(self) -> bool | None:
        """True or False where the interval is on one side of 1, None where that is open, and
        where timings did not settle: such intervals promise too much."""
        if self.ratio is None or not self.stable:
            return None
        _, low, high = self.ratio
        return True if low > 1 else False if high < 1 else None

    def in_words(self) -> str:
        """'ONNX Runtime at batch 8: INT8 paid, 2.0x (1.9 to 2.1) as fast as FP32.'"""
        where = f"{backend_title(self.backend)} at batch {self.batch}"
        if self.ratio is None:
            missing = "quantized" if self.quantized_precision is None else "float"
            return f"{where}: no {missing} engine was timed, so whether INT8 pays is not known."
        ratio, low, high = self.ratio
        told = {
            True: "paid",
            False: "did not pay",
            None: "made no difference that could be told",
        }[self.paid]
        if not self.stable:
            told = "is not known to pay (timings did not settle)"
        return (
            f"{where}: {precision_title(self.quantized_precision or '')} {told}, {ratio:.2f}x "
            f"({low:.2f} to {high:.2f}) as fast as {precision_title(self.float_precision or '')}."
        )


def payoffs(result: BenchmarkResult) -> tuple[Payoff, ...]:
    """One entry for each runtime and batch size, from the raw samples of the same rounds.

    Of several engines of one kind the fastest is taken: INT8 has to beat the
    best that float does. Empty for results of older versions, which do not say
    what their engines are.
    """
    if not result.engines:
        return ()
    pairs = [
        (
            engine,
            [comparison.measurements[result.first_engine + i] for comparison in result.comparisons],
        )
        for i, engine in enumerate(result.engines)
    ]
    return payoffs_of(pairs, frozenset(c.batch for c in result.comparisons if not c.stable))


def payoffs_of(
    engines: Sequence[tuple[TimedEngine, Sequence[Measurement]]],
    unsettled: frozenset[int] = frozenset(),
) -> tuple[Payoff, ...]:
    """The same, of engines with their measurements (one a batch size), all of the same rounds;
    at the batch sizes `unsettled` those did not settle."""
    backends = dict.fromkeys(engine.backend for engine, _ in engines)
    sizes = dict.fromkeys(measured.batch for _, all_sizes in engines for measured in all_sizes)
    return tuple(
        _payoff(
            backend,
            batch,
            [
                (engine, measured)
                for engine, all_sizes in engines
                for measured in all_sizes
                if engine.backend == backend and measured.batch == batch
            ],
            stable=batch not in unsettled,
        )
        for backend in backends
        for batch in sizes
    )


def _payoff(
    backend: str, batch: int, found: Sequence[tuple[TimedEngine, Measurement]], *, stable: bool
) -> Payoff:
    fastest: dict[bool, tuple[str, Measurement]] = {}
    for engine, measured in found:
        kind = is_quantized(engine.precision)
        if kind not in fastest or measured.p50_ms() < fastest[kind][1].p50_ms():
            fastest[kind] = engine.precision, measured
    ratio = None
    if len(fastest) == 2:
        slow, quick = (np.array(fastest[kind][1].samples_ms) for kind in (False, True))
        ratio = ratio_interval(slow, quick)
    nothing = (None, None)
    return Payoff(
        backend,
        batch,
        tuple((engine.precision, measured.ms_per_image()) for engine, measured in found),
        fastest.get(True, nothing)[0],
        fastest.get(False, nothing)[0],
        ratio,
        stable,
    )
