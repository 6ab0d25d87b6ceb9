"""`TensorRTBackend`: probe, build and load for both flavours."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from vitdeploy import environment
from vitdeploy.artifacts.engine import Engine, EngineManifest, write_manifest
from vitdeploy.artifacts.files import atomic_path, file_digest
from vitdeploy.artifacts.onnx_model import OnnxModel
from vitdeploy.backends.base import Availability, BuildOptions, Session, image_input
from vitdeploy.backends.tensorrt import device
from vitdeploy.backends.tensorrt.attention import why_not_fused
from vitdeploy.backends.tensorrt.build import WORKER_COMMAND, Built, run_worker
from vitdeploy.backends.tensorrt.checks import Checked, Here, check_build, check_options
from vitdeploy.backends.tensorrt.flavour import Flavour, import_vendor
from vitdeploy.backends.tensorrt.loading import check_manifest
from vitdeploy.backends.tensorrt.messages import Context, is_skipped_tactic, translate
from vitdeploy.backends.tensorrt.options import HARDWARE_LEVELS, TensorRTOptions
from vitdeploy.backends.tensorrt.profiles import image_shapes, profiles_of, whole_span
from vitdeploy.backends.tensorrt.request import BuildRequest
from vitdeploy.errors import MissingDependencyError
from vitdeploy.progress import SILENT, Progress
from vitdeploy.target import Target

_UNVERIFIED_INT8 = (
    "whether {label} runs INT8 products on INT8 tensor cores has not been verified; "
    "compare with fp16 on the target before you rely on it"
)
_SKIPPED = (
    "{label} left out {skipped} kernels that did not fit into memory: a larger --workspace, "
    "where the GPU has it, may give a faster engine"
)


class TensorRTBackend:
    """TensorRT or TensorRT-RTX, by `flavour`.

    `has_driver` tells whether an NVIDIA driver is loaded, `capability` asks the
    GPU for its compute capability (89 for sm89); `worker` is the command that
    builds, which gets the request's path as its last argument.
    """

    def __init__(
        self,
        flavour: Flavour,
        *,
        has_driver: Callable[[], bool] = environment.has_nvidia_driver,
        capability: Callable[[], int] = device.compute_capability,
        worker: Sequence[str] = WORKER_COMMAND,
    ) -> None:
        self._flavour = flavour
        self._has_driver = has_driver
        self._capability = capability
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

    def check_options(self, options: BuildOptions, precision: str) -> None:
        """Raise what `build` would, as far as it can be told without a graph."""
        check_options(self._flavour, options, self._here(options), precision=precision)

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
        checked = check_build(self._flavour, model, options, self._here(options))
        for line in _remarks(self._flavour, model, options, checked):
            progress.note(line)
        started = time.perf_counter()
        with (
            atomic_path(output.absolute()) as temporary,
            progress.task(f"{self._flavour.label}: building {output.name}") as task,
        ):
            request = _request(self._flavour, model, options, checked.asked, temporary)
            built = run_worker(self._flavour, model, request, task, self._worker)
            digest = file_digest(temporary)
        skipped = sum(map(is_skipped_tactic, built.warnings))
        if skipped:
            progress.note(_SKIPPED.format(label=self._flavour.label, skipped=skipped))
        seconds = time.perf_counter() - started
        manifest = _manifest(self._flavour, model, request, built, digest=digest, seconds=seconds)
        engine = Engine(output, manifest)
        write_manifest(engine)
        return engine

    def _here(self, options: BuildOptions) -> Here:
        """The GPU is asked what it is only where the engine is for it."""
        has_driver = self._has_driver()
        named = any(not target.is_cpu for target in options.targets)
        is_for_it = has_driver and not (named and self._flavour.builds_for_others)
        capability = self._capability() if is_for_it else None
        return Here(has_driver, capability, self.probe().version)

    def load(self, engine: Engine, *, threads: int | None = None, alone: bool = True) -> Session:
        """Load an engine onto the first GPU; `threads` and `alone` have no meaning there.

        Raises EngineError where the manifest names another backend, version or
        GPU, MissingDependencyError without the vendor module or a driver.
        """
        manifest = engine.manifest
        availability = self.probe()
        if manifest.backend == self.name and not availability.available:
            raise MissingDependencyError(availability.reason, hint=self._flavour.install)
        check_manifest(self._flavour, engine, availability.version)
        if not availability.can_execute:
            raise MissingDependencyError(
                f"{engine.path.name} runs on an NVIDIA GPU, and no NVIDIA driver is here",
                hint="copy the .engine and .json to the GPU machine and run "
                "`vitdeploy evaluate` there",
            )
        from vitdeploy.backends.tensorrt.session import TensorRTSession

        return TensorRTSession(self._flavour, engine)


def _remarks(
    flavour: Flavour, model: OnnxModel, options: BuildOptions, checked: Checked
) -> Iterator[str]:
    """What the user should know before a build that nothing speaks against."""
    is_int8 = model.description.precision.startswith("int8")
    if flavour.builds_for_others and is_int8:
        yield _UNVERIFIED_INT8.format(label=flavour.label)
    if is_int8:
        yield from why_not_fused(model, checked.targets, flavour.name)
    if options.tensorrt.strip_weights:
        yield f"the engine is without weights: keep {model.path.name} beside it to load it"
    if flavour.builds_for_others and options.tensorrt.timing_cache is not None:
        yield f"{flavour.label} keeps no timings between builds: --timing-cache does nothing"


def _request(
    flavour: Flavour,
    model: OnnxModel,
    options: BuildOptions,
    asked_for: Sequence[Target],
    destination: Path,
) -> BuildRequest:
    """What the worker is asked for; the engine goes to `destination`, beside where it will be."""
    description = model.description
    images = image_shapes(description)
    asked = options.tensorrt
    capabilities = (target.compute_capability for target in asked_for)
    level = asked.hardware_compatibility
    timings = asked.timing_cache or destination.parent
    keeps_timings = not (flavour.builds_for_others or asked.without_timing_cache)
    return BuildRequest(
        flavour=flavour.name,
        graph=str(model.path.absolute()),
        output=str(destination),
        input_name=description.input_name,
        output_name=description.output_name,
        image_dtype=image_input(description).dtype,
        image_shape=images.best,
        smallest_image=images.smallest,
        largest_image=images.largest,
        profiles=profiles_of(description, options),
        compute_capabilities=tuple(number for number in capabilities if number is not None),
        workspace_bytes=options.workspace_bytes,
        threads=options.threads,
        optimization_level=asked.optimization_level,
        timing_cache=str(timings.absolute()) if keeps_timings else "",
        hardware_level="" if level is None else HARDWARE_LEVELS[level],
        flags=_flags(asked),
    )


def _flags(asked: TensorRTOptions) -> tuple[str, ...]:
    """Names of trt.BuilderFlag. A stripped engine takes its own weights back, and no others
    unless it is refittable too."""
    flags = []
    if asked.version_compatible:
        flags.append("VERSION_COMPATIBLE")
    if asked.strip_weights:
        flags.append("STRIP_PLAN")
    if asked.refittable:
        flags.append("REFIT")
    elif asked.strip_weights:
        flags.append("REFIT_IDENTICAL")
    return tuple(flags)


def _manifest(
    flavour: Flavour,
    model: OnnxModel,
    request: BuildRequest,
    built: Built,
    *,
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
        device=built.gpu or here.gpu or here.cpu,
        batch=whole_span(request.profiles),
        build_seconds=seconds,
        settings={
            "strongly_typed": True,
            "ahead_of_time": built.capability is None,
            "compute_capabilities": list(capabilities),
            "profiles": [[list(shape) for shape in profile] for profile in request.profiles],
            "workspace_bytes": request.workspace_bytes,
            "threads": request.threads,
            "optimization_level": request.optimization_level,
            "timing_cache": bool(request.timing_cache),
            "hardware_compatibility": request.hardware_level,
            "flags": list(request.flags),
            "graph": model.path.name,
            "peak_memory_bytes": built.peak_memory_bytes,
            "skipped_tactics": [text for text in built.warnings if is_skipped_tactic(text)],
        },
        build_log=built.warnings,
    )
