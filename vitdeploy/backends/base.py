"""What every runtime offers: probe, build, load; and what a loaded engine offers: run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from vitdeploy import environment
from vitdeploy.artifacts.engine import Engine, EngineManifest, write_manifest
from vitdeploy.artifacts.onnx_model import ModelDescription, OnnxModel
from vitdeploy.backends.options import OnnxRuntimeOptions, OpenVinoOptions
from vitdeploy.backends.tensorrt.options import TensorRTOptions
from vitdeploy.errors import EngineError, InputError
from vitdeploy.progress import SILENT, Progress
from vitdeploy.target import CPU, Target


@dataclass(frozen=True)
class Availability:
    """Whether a backend can be used here; `reason` says why not and what to install.

    `devices` are those it sees, by its own names.
    """

    available: bool
    version: str = ""
    reason: str = ""
    can_execute: bool = True
    devices: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """How to build. `batch` is (smallest, optimal, largest) images per run.

    `workspace_bytes` and `tensorrt` are for TensorRT and TensorRT-RTX alone,
    `onnxruntime` and `openvino` for the runtime of that name.
    """

    targets: tuple[Target, ...] = (CPU,)
    batch: tuple[int, int, int] = (1, 8, 64)
    threads: int | None = None
    workspace_bytes: int | None = None
    tensorrt: TensorRTOptions = field(default_factory=TensorRTOptions)
    onnxruntime: OnnxRuntimeOptions = field(default_factory=OnnxRuntimeOptions)
    openvino: OpenVinoOptions = field(default_factory=OpenVinoOptions)


@dataclass(frozen=True, kw_only=True)
class CpuBuild:
    """What ONNX Runtime or OpenVINO says of a file it compiled.

    `device` is 'cpu', or the other device it was compiled for, and then
    `device_name` says which one that is.
    """

    backend: str
    version: str
    digest: str
    seconds: float
    settings: dict[str, Any]
    device: str = CPU.name
    device_name: str = ""


class Session(Protocol):
    """A loaded engine (or the source model itself)."""

    @property
    def name(self) -> str: ...

    def run(self, batch: NDArray) -> NDArray[np.float32]:
        """(n, channels, height, width) float32 to (n, classes) float32 logits.

        Of graphs that say so, (n, height, width, channels) uint8 to another output.
        Returns after the work is done. The result is the caller's own: no
        later run touches it. Raises InputError for another shape or type.
        """
        ...


class Backend(Protocol):
    """A runtime.

    Other packages offer theirs by an entry point of the group
    `vitdeploy.backends`: a class, or function, that is called without
    arguments. One more method is optional there,
    `check_options(options: BuildOptions, precision: str) -> None`, which raises
    what `build` would, as far as that shows before a graph is quantized.
    """

    @property
    def name(self) -> str: ...

    def probe(self) -> Availability:
        """Look whether the runtime is usable here. Never raises."""
        ...

    def build(
        self,
        model: OnnxModel,
        options: BuildOptions,
        output: Path,
        progress: Progress = SILENT,
    ) -> Engine:
        """Compile `model` into the engine file `output` and write its manifest.

        Raises EngineError where the runtime refuses the graph,
        MissingDependencyError where the runtime is not here.
        """
        ...

    def load(self, engine: Engine, *, threads: int | None = None, alone: bool = True) -> Session:
        """Load an engine. Raises EngineError where it does not belong to this machine.

        Not `alone`, its threads should leave the cores to others (decoders) while they
        wait; a backend that has no say in that takes it and does nothing.
        """
        ...


@dataclass(frozen=True)
class ImageInput:
    """One image as a graph takes it: its shape, and the element type.

    (channels, height, width) float32, or (height, width, channels) uint8; a
    side of a dynamic graph is None.
    """

    shape: tuple[int | None, ...]
    dtype: Literal["float32", "uint8"] = "float32"

    def takes(self, batch: NDArray) -> bool:
        fits = len(batch.shape) == len(self.shape) + 1 and all(
            wanted in (None, size)
            for size, wanted in zip(batch.shape[1:], self.shape, strict=False)
        )
        return fits and batch.dtype == self.dtype

    def __str__(self) -> str:
        sides = ", ".join("any" if size is None else str(size) for size in self.shape)
        return f"(n, {sides}) {self.dtype}"


def image_input(model: ModelDescription) -> ImageInput:
    """What a graph with this description takes."""
    channels = model.source.in_chans
    height, width = model.resolution if model.resolution_range is None else (None, None)
    if model.input_format == "uint8-nhwc":
        return ImageInput((height, width, channels), "uint8")
    return ImageInput((channels, height, width))


def checked_batch(batch: NDArray, takes: ImageInput | None) -> NDArray:
    """`batch` as contiguous memory. Raises InputError unless it is of the form the graph takes.

    Without a description (None) any non-empty batch of images will do: the runtime checks.
    """
    fits = batch.ndim == 4 if takes is None else takes.takes(batch)
    if not fits or len(batch) == 0:
        wanted = "(n, channels, height, width) float32" if takes is None else takes
        raise InputError(
            f"the batch is {batch.shape} {batch.dtype}, the model takes {wanted}",
            hint="prepare images with the model's own Preprocessing",
        )
    return np.ascontiguousarray(batch)


def write_cpu_engine(
    output: Path, model: OnnxModel, options: BuildOptions, built: CpuBuild
) -> Engine:
    """The manifest of an engine file that a CPU runtime has just written, beside it."""
    here = environment.describe()
    manifest = EngineManifest(
        backend=built.backend,
        backend_version=built.version,
        model=model.description,
        model_digest=model.digest,
        engine_digest=built.digest,
        targets=(built.device,),
        device=built.device_name or here.cpu,
        batch=options.batch,
        build_seconds=built.seconds,
        settings={"cpu_features": list(here.cpu_features), **built.settings},
    )
    engine = Engine(output, manifest)
    write_manifest(engine)
    return engine


def require_cpu_options(
    options: BuildOptions, runtime: str, precision: str, *, device: str = CPU.name
) -> None:
    """Raise where a CPU runtime is asked for what it does not have.

    EngineError for a GPU, and for FP16 or BF16 arithmetic on a CPU; InputError
    for TensorRT's own options.
    """
    if any(not target.is_cpu for target in options.targets):
        names = ", ".join(target.name for target in options.targets)
        raise EngineError(
            f"{runtime} builds for this CPU, not for {names}",
            hint="use --backend tensorrt-rtx for NVIDIA targets",
        )
    foreign = options.tensorrt.given()
    if options.workspace_bytes is not None:
        foreign = ("--workspace", *foreign)
    if foreign:
        raise InputError(
            f"{runtime} has no {', no '.join(foreign)}: TensorRT has",
            hint="leave that out, or name an NVIDIA --target",
        )
    if device == CPU.name and precision.endswith(("fp16", "bf16")):
        raise EngineError(
            f"{precision} would be computed in float32 on a CPU, which says nothing about FP16 "
            "or BF16",
            hint="use fp32 or int8-fp32 on a CPU, or name the GPU with --target",
        )


def require_own_options(options: BuildOptions, backend: str) -> None:
    """Raise InputError where ONNX Runtime's or OpenVINO's options are given to another."""
    groups = {"onnxruntime": options.onnxruntime.given(), "openvino": options.openvino.given()}
    for owner, given in groups.items():
        if given and backend.removesuffix("-cuda") != owner:
            raise InputError(
                f"{backend} has no {', no '.join(given)}: {owner} has",
                hint=f"leave that out, or give --backend {owner}",
            )


def require_same_machine(engine: Engine, version: str, device_name: str = "") -> None:
    """Raise EngineError unless an engine was built by this version on a machine like this one.

    For a CPU its features count, for another device its name.
    """
    manifest = engine.manifest
    here = list(environment.describe().cpu_features)
    built_for = list(manifest.settings.get("cpu_features", []))
    if manifest.targets != (CPU.name,):
        here, built_for = [device_name], [manifest.device]
    if manifest.backend_version == version and built_for == here:
        return
    raise EngineError(
        f"{engine.path.name} was built by {manifest.backend} {manifest.backend_version} on "
        f"{manifest.device} ({', '.join(built_for)}); here is {version} "
        f"with {', '.join(here) or 'no known features'}",
        hint="a compiled graph belongs to its device and version: run `vitdeploy build-engine` "
        "here",
    )
