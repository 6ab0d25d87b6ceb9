"""Throughput of every peer's file on both CPU runtimes, in turns in one process."""

from __future__ import annotations

import numpy as np

from tests.peers.record import Timed, TimingRecord
from tests.peers.registry import PEERS
from tests.peers.runs import Bench, setting_of
from tests.peers.sessions import RUNTIMES, offered, open_session
from vitdeploy.backends.base import Session, image_input
from vitdeploy.benchmarks.speed.throughput import TimingConfig, measure_interleaved
from vitdeploy.errors import InputError, VitDeployError

BASELINE = "float on onnxruntime"


def time_all(bench: Bench, *, batch: int, seconds: float) -> TimingRecord:
    """Time what `run` left in the subject's folder; the float model on ONNX Runtime comes first.

    Whether timings settled stands in the record: sessions are many, and ratios
    of the same rounds hold without. Raises InputError where the float model
    has not been run.
    """
    packages = {package for peer in PEERS.values() for package in peer.packages}
    setting = setting_of(tuple(sorted(packages)), bench.threads)
    sessions, entries = _sessions(bench)
    if not sessions or sessions[0].name != BASELINE:
        raise InputError(
            f"there is no float file of {bench.subject.key} to compare with",
            hint=f"first: python -m tests.peers run --model {bench.subject.key} --peer float",
        )
    pixels = next(bench.prepared.batches())[:batch]
    compared = measure_interleaved(
        sessions,
        np.ascontiguousarray(pixels),
        config=TimingConfig(max_seconds=seconds, min_round_ms=50, accept_unstable=True),
    )
    return TimingRecord(
        subject=bench.subject.key,
        setting=setting,
        entries=tuple(entries),
        comparison=compared,
    )


def _sessions(bench: Bench) -> tuple[list[Session], list[Timed]]:
    takes = image_input(bench.prepared.model().description)
    sessions: list[Session] = []
    entries: list[Timed] = []
    for peer in PEERS.values():
        file = bench.file(peer)
        for runtime in RUNTIMES:
            if file is None or not offered(runtime, file):
                continue
            entry = Timed(peer=peer.key, runtime=runtime)
            try:
                session = open_session(runtime, file, takes, bench.threads, entry.name)
                session.run(next(bench.prepared.batches())[:1])
                sessions.append(session)
            except VitDeployError as error:
                entry = Timed(peer=peer.key, runtime=runtime, error=str(error))
            entries.append(entry)
    return sessions, entries
