"""One peer on one subject: quantized, judged and offered to TensorRT-RTX."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.peers import child
from tests.peers.record import Acceptance, Answers, Cost, PeerRecord, Setting
from tests.peers.registry import Peer
from tests.peers.sessions import RUNTIMES, offered
from tests.peers.subjects import Prepared, Subject
from vitdeploy import environment
from vitdeploy.artifacts.files import from_json, read_text
from vitdeploy.artifacts.onnx_model import (
    OnnxModel,
    external_locations,
    graph_digest,
    load_proto,
)
from vitdeploy.backends import registry
from vitdeploy.backends.base import BuildOptions
from vitdeploy.benchmarks.accuracy.classes import compare
from vitdeploy.errors import VitDeployError
from vitdeploy.target import parse_targets

TARGETS = ("sm86", "sm89", "sm120")
RTX = "tensorrt-rtx"
ALWAYS = ("numpy", "onnx", "onnxruntime", "openvino", "tensorrt-rtx-cu13")


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A subject on disk, and how many threads everything on it gets."""

    subject: Subject
    prepared: Prepared
    threads: int

    def output(self, peer: Peer) -> Path:
        return self.prepared.folder / "peers" / peer.key

    def file(self, peer: Peer) -> Path | None:
        """What the peer wrote in an earlier run; None where it failed or has not run."""
        written = self.output(peer) / "cost.json"
        if not written.exists():
            return None
        return written.with_name(_cost(written).file)


def run_peer(bench: Bench, peer: Peer) -> PeerRecord:
    """Never raises for what the peer or a runtime does: that is in the record."""
    output = bench.output(peer)
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    record = PeerRecord(
        subject=bench.subject.key,
        peer=peer.key,
        images=bench.prepared.image_count(),
        setting=setting_of(peer.packages, bench.threads),
    )
    error = child.run(
        "tests.peers.worker",
        f"{peer.module}:{peer.function}",
        str(bench.prepared.folder),
        str(output),
        log=output / "worker.log",
        threads=bench.threads,
    )
    if error:
        return replace(record, error=error)
    cost = _cost(output / "cost.json")
    file = output / cost.file
    return replace(
        record,
        cost=cost,
        answers=_answers(bench, file) if bench.subject.judged else (),
        acceptance=acceptance_of(bench.prepared.model(), file),
    )


def setting_of(packages: tuple[str, ...], threads: int) -> Setting:
    here = environment.describe()
    features = ", ".join(here.cpu_features)
    return Setting(
        date=datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        load=round(os.getloadavg()[0], 1),
        machine=f"{here.cpu} ({features}), {platform.system()} {platform.machine()}",
        cores=here.cores,
        threads=threads,
        python=here.python,
        versions={name: _version(name) for name in (*packages, *ALWAYS)},
    )


def _version(package: str) -> str:
    if package == "vitdeploy":
        import vitdeploy

        return vitdeploy.__version__
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _cost(path: Path) -> Cost:
    return from_json(read_text(path, what="cost"), Cost, origin=str(path))


def _answers(bench: Bench, file: Path) -> tuple[Answers, ...]:
    expected = _logits(bench, "onnxruntime", bench.prepared.model_path, "float")
    if isinstance(expected, str):
        raise RuntimeError(f"the float model does not run: {expected}")
    labels = np.load(bench.prepared.folder / "labels.npy")
    return tuple(
        _compared(runtime, expected, _logits(bench, runtime, file, runtime, file.parent), labels)
        for runtime in RUNTIMES
        if offered(runtime, file)
    )


def _logits(
    bench: Bench, runtime: str, file: Path, name: str, folder: Path | None = None
) -> NDArray[np.float32] | str:
    """(images, classes), or why there are none. The float model's are kept."""
    folder = folder or bench.prepared.folder
    answers = folder / f"{name}.npy"
    if not answers.exists():
        error = child.run(
            "tests.peers.judge",
            str(bench.prepared.folder),
            runtime,
            str(file),
            str(bench.threads),
            str(answers),
            log=folder / f"{name}.log",
            threads=bench.threads,
        )
        if error:
            return error
    return np.load(answers)


def _compared(
    runtime: str,
    expected: NDArray[np.float32],
    answered: NDArray[np.float32] | str,
    labels: NDArray[np.int64],
) -> Answers:
    if isinstance(answered, str):
        return Answers(runtime=runtime, error=answered)
    try:
        return Answers(runtime=runtime, comparison=compare(expected, answered, labels))
    except VitDeployError as error:
        return Answers(runtime=runtime, error=str(error))


def acceptance_of(model: OnnxModel, file: Path) -> Acceptance:
    """What TensorRT-RTX makes of a file, in a child process; no GPU is needed."""
    backend = registry.get(RTX)
    version = backend.probe().version
    if file.suffix != ".onnx":
        return Acceptance(
            version=version, targets=TARGETS, error=f"{file.suffix} is no ONNX file: not offered"
        )
    offered_graph = OnnxModel(
        file,
        graph_digest(file, external_locations(load_proto(file))),
        replace(model.description, precision="int8-fp32"),
    )
    options = BuildOptions(targets=parse_targets(",".join(TARGETS)), batch=(1, 2, 4))
    with tempfile.TemporaryDirectory() as folder:
        try:
            built = backend.build(offered_graph, options, Path(folder) / "tried.engine")
            return Acceptance(
                version=version, targets=TARGETS, engine_bytes=built.path.stat().st_size
            )
        except VitDeployError as error:
            return Acceptance(version=version, targets=TARGETS, error=str(error))
