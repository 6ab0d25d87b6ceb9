"""`TensorRTBackend`: probe, build and load for both flavours."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from vitdeploy import environment
from vitdeploy.artifacts.engine import Engine, EngineManifest, write_manifest
from vitdeploy.artifacts.files import atomic_path, file_digest
from vitdeploy.artifacts.onnx_model import OnnxModel
from vitdeploy.backends.base import Availability, BuildOptions, Session, image_input
from vitdeploy.backends.tensorrt.build import WORKER_COMMAND, Built, run_worker
from vitdeploy.backends.tensorrt.checks import check_build
from vitdeploy.backends.tensorrt.flavour import Flavour, import_vendor
from vitdeploy.backends.tensorrt.messages import Context, translate
from vitdeploy.backends.tensorrt.request import BuildRequest
from vitdeploy.errors import EngineError, MissingDependencyError
from vitdeploy.preprocessing import Size
from vitdeploy.progress import SILENT, Progress
from vitdeploy.target import Target

_UNVERIFIED_INT8 = (
    "whether {label} runs INT8 products on INT8 tensor cores has not been verified; "
    "compare with fp16 on the target before you rely on it"
)


class TensorRTBackend:
    """TensorRT or TensorRT-RTX, by `flavour`.

    `has_driver` tells whether an NVIDIA driver is loaded; `worker` is the
    command that builds, which gets the request's path as its last argument.
    """

    def __init__(
        self,
        flavour: Flavour,
        *,
        has_driver: Callable[[], bool] = environment.has_nvidia_driver,
        worker: Sequence[str] = WORKER_COMMAND,
    ) -> None:
        self._flavour = flavour
        self._has_driver = has_driver
        self._worker = tuple(worker)
        self.name = flavour.name

    def probe(self) -> Availability:
        """Look for the vendor module. Without a driver engines can at most be built."""
        try:
            version = import_vendor(self._flavour).__version__
            return Availability(True, version, can_execute=self._has_driver())
        except Exception as error:  # noqa: BLE001 - the answer is the text
            context = Context(
                label=self._flavour.label, install=self._flavour.install, graph="the library"
            )
            said, remedy = translate(f"{type(error).__name__}: {error}", context)
            return Availability(False, reason=f"{said}; {remedy}", can_execute=False)

    def build(
        self,
        model: OnnxModel,
        options: BuildOptions,
        output: Path,
        progress: Progress = SILENT,
    ) -> Engine:
        """Compile `model` for `options.targets` in a child process.

        A CPU among the targets stands for the GPU of this machine. Raises
        EngineError, MissingDependencyError, InputError, OutputError.
        """
        targets = check_build(self._flavour, model, options, has_driver=self._has_driver())
        if self._flavour.builds_for_others and model.description.precision.startswith("int8"):
            progress.note(_UNVERIFIED_INT8.format(label=self._flavour.label))
        started = time.perf_counter()
        with (
            atomic_path(output.absolute()) as temporary,
            progress.task(f"{self._flavour.label}: building {output.name}") as task,
        ):
            request = _request(self._flavour, model, options, targets, temporary)
            built = run_worker(self._flavour, model, request, task, self._worker)
            digest = file_digest(temporary)
        seconds = time.perf_counter() - started
        manifest = _manifest(self._flavour, model, request, built, digest, seconds)
        engine = Engine(output, manifest)
        write_manifest(engine)
        return engine

    def load(self, engine: Engine, *, threads: int | None = None) -> Session:
        """Load an engine onto the first GPU; `threads` has no meaning there.

        Raises EngineError where the manifest names another backend, version or
        GPU, MissingDependencyError without the vendor module or a driver.
        """
        manifest, label = engine.manifest, self._flavour.label
        if manifest.backend != self.name:
            raise EngineError(
                f"{engine.path.name} was built by {manifest.backend}, not by {self.name}",
                hint=f"load it with --backend {manifest.backend}",
            )
        availability = self.probe()
        if not availability.available:
            raise MissingDependencyError(availability.reason, hint=self._flavour.install)
        if manifest.backend_version != availability.version:
            raise EngineError(
                f"{engine.path.name} was built by {label} {manifest.backend_version}, "
                f"here is {availability.version}",
                hint="build the engine again with this version, or install the other one",
            )
        if not availability.can_execute:
            raise MissingDependencyError(
                f"{engine.path.name} runs on an NVIDIA GPU, and no NVIDIA driver is here",
                hint="copy the .engine and .json to the GPU machine and run "
                "`vitdeploy evaluate` there",
            )
        from vitdeploy.backends.tensorrt.session import TensorRTSession

        return TensorRTSession(self._flavour, engine)


def _request(
    flavour: Flavour,
    model: OnnxModel,
    options: BuildOptions,
    targets: Sequence[Target],
    destination: Path,
) -> BuildRequest:
    description = model.description
    sizes = description.resolution_range
    takes = image_input(description)

    def taken(size: Size) -> tuple[int, int, int]:
        channels = description.source.in_chans
        return (*size, channels) if takes.dtype == "uint8" else (channels, *size)

    capabilities = (target.compute_capability for target in targets)
    return BuildRequest(
        flavour=flavour.name,
        graph=str(model.path.absolute()),
        output=str(destination),
        input_name=description.input_name,
        output_name=description.output_name,
        image_shape=taken(description.resolution),
        smallest_image=taken(description.resolution if sizes is None else sizes.low),
        largest_image=taken(description.resolution if sizes is None else sizes.high),
        image_dtype=takes.dtype,
        batch=options.batch,
        compute_capabilities=tuple(number for number in capabilities if number is not None),
        workspace_bytes=options.workspace_bytes,
        threads=options.threads,
    )


def _manifest(
    flavour: Flavour,
    model: OnnxModel,
    request: BuildRequest,
    built: Built,
    digest: str,
    seconds: float,
) -> EngineManifest:
    here = environment.describe()
    capabilities = request.compute_capabilities
    if built.capability is not None:
        capabilities = (built.capability,)
    return EngineManifest(
        backend=flavour.name,
        backend_version=built.version,
        model=model.description,
        model_digest=model.digest,
        engine_digest=digest,
        targets=tuple(f"sm{number}" for number in capabilities),
        device=here.gpu or here.cpu,
        batch=request.batch,
        build_seconds=seconds,
        settings={
            "strongly_typed": True,
            "ahead_of_time": built.capability is None,
            "compute_capabilities": list(capabilities),
            "workspace_bytes": request.workspace_bytes,
            "threads": request.threads,
        },
        build_log=built.warnings,
    )
