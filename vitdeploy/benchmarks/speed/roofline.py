"""How near an engine comes to what its machine can do: measured peaks, and shares of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from vitdeploy.backends.base import Session
from vitdeploy.backends.onnxruntime_ import GraphSession
from vitdeploy.benchmarks.speed.timing_guards import Clock, stopwatch
from vitdeploy.errors import UnstableMeasurementError

if TYPE_CHECKING:
    from vitdeploy.benchmarks.speed.throughput import Measurement

_SIDE = 1024
_CHAIN = 4
"""Products in a row, so that copying the answer out is a small part."""
_COPY_BYTES = 256 << 20
_RUNS = 15
IMPOSSIBLE = 1.5
"""Peaks are measured within some percent, and runtimes' kernels differ; half again as much is
no measurement."""


@dataclass(frozen=True)
class MachinePeak:
    """What this machine was measured to do: billions of multiply-accumulates and of bytes a second.

    `copy_gb_s` counts bytes read and bytes written. The best of some runs
    each, since noise only slows.
    """

    fp32_gmacs_s: float
    int8_gmacs_s: float
    copy_gb_s: float
    runtime: str

    def best_with(self, other: MachinePeak) -> MachinePeak:
        """The better figure of each kind: noise only slows."""
        return MachinePeak(
            max(self.fp32_gmacs_s, other.fp32_gmacs_s),
            max(self.int8_gmacs_s, other.int8_gmacs_s),
            max(self.copy_gb_s, other.copy_gb_s),
            self.runtime,
        )

    def in_words(self) -> str:
        return (
            f"peak by {self.runtime}: {self.fp32_gmacs_s:.3g} GMAC/s float32, "
            f"{self.int8_gmacs_s:.3g} GMAC/s int8; copying {self.copy_gb_s:.3g} GB/s"
        )


@dataclass(frozen=True)
class GraphWork:
    """One image's multiply-accumulates by the type computed in, and the bytes of all constants."""

    macs: Mapping[str, int]
    weight_bytes: int


@dataclass(frozen=True)
class RooflineShare:
    """`share` of the machine's best that a measurement is, and what `bound` that best.

    0.6 at 'compute' means: the products alone, at the measured peak, would take
    60 % of the time.
    """

    name: str
    batch: int
    share: float
    bound: str

    def in_words(self) -> str:
        return f"{100 * self.share:.0f} % of the roofline ({self.bound})"


def measure_peak(
    *,
    threads: int | None = None,
    clock: Clock = time.perf_counter,
    open_session: Callable[[bytes, int | None], Session] | None = None,
) -> MachinePeak:
    """Multiply matrices of 1024 x 1024 in float32 and in int8, and copy 256 MB.

    Through ONNX Runtime, with the threads that engines get. Takes a few seconds.
    """
    opened = open_session or _onnxruntime
    values = np.random.default_rng(0).standard_normal((1, 1, _SIDE, _SIDE), dtype=np.float32)
    speeds = []
    for graph in (_products(quantized=False), _products(quantized=True)):
        seconds = _best_s(opened(graph, threads), values, clock)
        speeds.append(_CHAIN * _SIDE**3 / seconds / 1e9)
    return MachinePeak(speeds[0], speeds[1], _copy_speed(clock), "ONNX Runtime")


def share_of_roofline(
    measured: Measurement, work: GraphWork, peak: MachinePeak, input_bytes: int
) -> RooflineShare:
    """The least time a batch could take here, over the time it took.

    That is the longer of computing (every product at the peak of its type) and
    moving (weights once a batch, `input_bytes` of an image, both as they are).
    Source: Williams et al., Roofline, CACM 52 (2009). What reads activations
    from memory again is not counted, so the share is a lower bound.

    Raises UnstableMeasurementError where the share is above 1.5: then the
    timer did not wait for the work.
    """
    speeds = {True: peak.int8_gmacs_s, False: peak.fp32_gmacs_s}
    compute_s = sum(
        measured.batch * macs / (1e9 * speeds[kind in ("int8", "uint8")])
        for kind, macs in work.macs.items()
    )
    # A copy moves each byte twice; weights and images are only read.
    moved = work.weight_bytes + measured.batch * input_bytes
    memory_s = moved / (1e9 * peak.copy_gb_s)
    share = 1000 * max(compute_s, memory_s) / measured.p50_ms()
    if share > IMPOSSIBLE:
        raise UnstableMeasurementError(
            f"{measured.name} took {measured.p50_ms():.3g} ms at batch {measured.batch}, and the "
            f"fastest this machine was measured to do it in is {share:.3g} times that: the timer "
            "did not wait for the work",
            hint="the session must return, or offer `synchronize`, only when its work is done; "
            "where it does, other work kept the machine below its peak: measure when it is quiet",
        )
    bound = "compute" if compute_s >= memory_s else "memory"
    return RooflineShare(measured.name, measured.batch, share, bound)


def _onnxruntime(graph: bytes, threads: int | None) -> Session:
    return GraphSession(graph, threads=threads, name="peak")


def _best_s(session: Session, values: NDArray, clock: Clock) -> float:
    watch = stopwatch(clock)
    return min(watch.run_ms(session, values, 1) for _ in range(_RUNS)) / 1000


def _copy_speed(clock: Clock) -> float:
    source = np.ones(_COPY_BYTES // 8, dtype=np.float64)
    target = np.empty_like(source)
    fastest = float("inf")
    for _ in range(_RUNS):
        start = clock()
        np.copyto(target, source)
        fastest = min(fastest, clock() - start)
    return 2 * _COPY_BYTES / fastest / 1e9


def _products(*, quantized: bool) -> bytes:
    """A chain of matrix products; quantized as vitdeploy quantizes, int8 with scales apart."""
    rng = np.random.default_rng(1)
    weights = rng.standard_normal((_SIDE, _SIDE), dtype=np.float32) / np.float32(_SIDE**0.5)
    nodes, constants = [], [numpy_helper.from_array(np.array(0.03, np.float32), "scale")]
    constants.append(numpy_helper.from_array(np.array(0, np.int8), "zero"))
    if quantized:
        small = np.clip(np.rint(weights / 0.001), -127, 127).astype(np.int8)
        constants.append(numpy_helper.from_array(small, "stored"))
        constants.append(numpy_helper.from_array(np.array(0.001, np.float32), "weight_scale"))
        nodes.append(
            helper.make_node("DequantizeLinear", ["stored", "weight_scale", "zero"], ["weight"])
        )
    else:
        constants.append(numpy_helper.from_array(weights, "weight"))
    last = "x"
    for i in range(_CHAIN):
        if quantized:
            for kind, result in (("QuantizeLinear", f"q{i}"), ("DequantizeLinear", f"d{i}")):
                nodes.append(helper.make_node(kind, [last, "scale", "zero"], [result]))
                last = result
        nodes.append(helper.make_node("MatMul", [last, "weight"], [f"y{i}"]))
        last = f"y{i}"
    shape = [1, 1, _SIDE, _SIDE]
    graph = helper.make_graph(
        nodes,
        "peak",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, shape)],
        constants,
    )
    opset = helper.make_opsetid("", 17)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    onnx.checker.check_model(model)
    return model.SerializeToString()
