"""What only TensorRT's builder takes. Imports nothing of the vendor's."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

BatchSpan = tuple[int, int, int]
"""(smallest, best, largest) images per run."""

Shape = tuple[int, ...]

HardwareCompatibility = Literal["ampere+", "same-cc"]
"""An engine for Ampere and everything newer, or for every GPU of one compute capability."""

HARDWARE_LEVELS: dict[HardwareCompatibility, str] = {
    "ampere+": "AMPERE_PLUS",
    "same-cc": "SAME_COMPUTE_CAPABILITY",
}
"""TensorRT's names; the second one is not in 10.3."""


@dataclass(frozen=True)
class Shapes:
    """One profile as trtexec spells it: full shapes of one named input.

    `smallest` of (1, 3, 224, 224) is one image of 224 x 224 pixels.
    """

    input_name: str
    smallest: Shape
    best: Shape
    largest: Shape


@dataclass(frozen=True, kw_only=True)
class TensorRTOptions:
    """How TensorRT builds, beyond what every runtime takes.

    `batches` are the profiles of an engine with several (empty: one, of
    `BuildOptions.batch`); `shapes` says one profile in full instead.
    `optimization_level` is 0 (fast build) to 5 (fast engine); None leaves the
    vendor's 3. Timings of kernels are kept between builds in the folder
    `timing_cache` (None: beside the engine) unless `without_timing_cache`.
    `strip_weights` leaves the weights out of the engine: the graph must lie
    beside it when it is loaded. `refittable`: its weights can be replaced.
    """

    batches: tuple[BatchSpan, ...] = ()
    shapes: Shapes | None = None
    optimization_level: int | None = None
    timing_cache: Path | None = field(default=None, repr=False)
    without_timing_cache: bool = field(default=False, repr=False)
    hardware_compatibility: HardwareCompatibility | None = None
    version_compatible: bool = False
    strip_weights: bool = False
    refittable: bool = False

    def given(self) -> tuple[str, ...]:
        """The command line's names of what was asked for; other runtimes refuse these."""
        asked = {
            "--batch with several ranges": len(self.batches) > 1,
            "--minShapes, --optShapes, --maxShapes": self.shapes is not None,
            "--opt-level": self.optimization_level is not None,
            "--timing-cache": self.timing_cache is not None,
            "--no-timing-cache": self.without_timing_cache,
            "--hardware-compat": self.hardware_compatibility is not None,
            "--version-compat": self.version_compatible,
            "--strip-weights": self.strip_weights,
            "--refit": self.refittable,
        }
        return tuple(name for name, was in asked.items() if was)
