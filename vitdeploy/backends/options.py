"""What only ONNX Runtime or only OpenVINO takes. Imports nothing of either."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

OnnxRuntimeDevice = Literal["cpu", "cuda", "tensorrt"]
GraphOptimization = Literal["none", "basic", "extended", "all"]
Hint = Literal["latency", "throughput"]


@dataclass(frozen=True, kw_only=True)
class OnnxRuntimeOptions:
    """How ONNX Runtime builds and runs.

    `device` is the execution provider that must be used: no other takes its
    place. `affinity` pins threads to cores in ONNX Runtime's own spelling:
    '2;3,4' are cores for the second and third of three threads, counted from 1
    (the first thread is the caller's).
    """

    device: OnnxRuntimeDevice = "cpu"
    graph_optimization: GraphOptimization = "all"
    affinity: str = ""

    def given(self) -> tuple[str, ...]:
        """The command line's names of what was asked for; other runtimes refuse these."""
        asked = {
            f"--device {self.device}": self.device != "cpu",
            "--graph-optimization": self.graph_optimization != "all",
            "--affinity": bool(self.affinity),
        }
        return tuple(name for name, was in asked.items() if was)

    def pinned_threads(self) -> int | None:
        """How many threads `affinity` is written for; None where it pins none."""
        return self.affinity.count(";") + 2 if self.affinity else None


@dataclass(frozen=True, kw_only=True)
class OpenVinoOptions:
    """How OpenVINO builds and runs.

    `device` is a name of OpenVINO's: CPU, GPU, GPU.1, NPU. With the hint
    'throughput' a batch is answered by several requests at once, each on its
    own cores. Compiled models are kept in the folder `model_cache`, so that a
    second build of the same graph takes no time.
    """

    device: str = "CPU"
    hint: Hint = "latency"
    model_cache: Path | None = field(default=None, repr=False)

    def given(self) -> tuple[str, ...]:
        """The command line's names of what was asked for; other runtimes refuse these."""
        asked = {
            f"--device {self.device.lower()}": self.device != "CPU",
            "--hint": self.hint != "latency",
            "--model-cache": self.model_cache is not None,
        }
        return tuple(name for name, was in asked.items() if was)
