"""What only ONNX Runtime or only OpenVINO takes. Imports nothing of either."""

from __future__ import annotations

from dataclasses import dataclass
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
    own cores. OpenVINO's own model cache is left off: an engine is the compiled
    model already, and one that came from the cache cannot be saved again
    (2026.4).
    """

    device: str = "CPU"
    hint: Hint = "latency"

    def given(self) -> tuple[str, ...]:
        """The command line's names of what was asked for; other runtimes refuse these."""
        asked = {
            f"--device {self.device.lower()}": self.device != "CPU",
            "--hint": self.hint != "latency",
        }
        return tuple(name for name, was in asked.items() if was)
