"""The child process that parses and builds: `python -m vitdeploy.backends.tensorrt.worker REQUEST`.

Apart from the parent because the vendor's builder can crash (a graph with
com.microsoft.MultiHeadAttention did). Imports neither torch nor onnx.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from vitdeploy.backends.tensorrt.configure import RefusedError, configure
from vitdeploy.backends.tensorrt.device import open_cuda
from vitdeploy.backends.tensorrt.flavour import FLAVOURS, Flavour, import_vendor
from vitdeploy.backends.tensorrt.request import BuildRequest, read_request
from vitdeploy.errors import EngineError, MissingDependencyError


class Channel:
    """JSON lines to the parent, from any thread."""

    def __init__(self, descriptor: int) -> None:
        self._stream = os.fdopen(descriptor, "w", encoding="utf-8")
        self._lock = threading.Lock()

    def send(self, event: str, **fields: Any) -> bool:
        """Send one line; False where the parent is gone and nobody waits for the engine."""
        with self._lock:
            try:
                self._stream.write(json.dumps({"event": event, **fields}) + "\n")
                self._stream.flush()
            except BrokenPipeError:
                return False
        return True


def main(arguments: list[str]) -> int:
    # The terminal sends Ctrl-C to the whole group; ending this process is the parent's part.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = Channel(_claim_stdout())
    request = read_request(Path(arguments[0]))
    try:
        built = build(request, channel)
    except RefusedError as error:
        channel.send("refused", **error.fields)
    except ImportError as error:
        channel.send("refused", text=f"ImportError: {error}", node="", operator="")
    except (EngineError, MissingDependencyError) as error:
        channel.send("failed", kind=type(error).__name__, text=str(error), hint=error.hint)
    except OSError as error:
        channel.send("failed", kind="OSError", text=error.strerror or str(error), code=error.errno)
    else:
        channel.send("built", **built, peak_memory_bytes=_peak_memory_bytes())
    return 0


def build(request: BuildRequest, channel: Channel) -> dict[str, Any]:
    """Build and write the engine.

    Answers the vendor's `version`, and of this machine's GPU `capability` and
    `gpu` (its name) where the engine was built for it, else None and "".

    Raises RefusedError where the vendor says no, EngineError where the graph
    or the GPU is not the one asked for, ImportError where the vendor is missing.
    """
    flavour = FLAVOURS[request.flavour]
    trt = import_vendor(flavour)
    capability = _capability_here(flavour, request)
    logger = _logger(trt, channel)
    builder = _builder(trt, logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    _parse(trt, network, logger, request)
    config = builder.create_builder_config()
    config.progress_monitor = _monitor(trt, channel)
    configure(trt, builder, network, config, request, capability)
    gpu = "" if capability is None else open_cuda().gpu_name()
    timings = _timings(request, f"{gpu} sm{capability}", trt.__version__, channel)
    if timings is not None:
        timings.attach(config)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise RefusedError
    Path(request.output).write_bytes(plan)
    if timings is not None:
        timings.keep(config)
    return {"version": trt.__version__, "capability": capability, "gpu": gpu}


def _timings(request: BuildRequest, gpu: str, version: str, channel: Channel) -> Any:
    """The timing cache of this GPU and version; None where none is kept."""
    if not request.timing_cache:
        return None
    from vitdeploy.backends.tensorrt.timing_cache import KeptTimings, cache_file

    def say(text: str) -> None:
        channel.send("log", level="warning", text=text)

    return KeptTimings(cache_file(Path(request.timing_cache), gpu, version), say)


def _peak_memory_bytes() -> int | None:
    """The most memory this process has had; None where the system does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _claim_stdout() -> int:
    """A private copy of stdout; what the vendor prints goes to stderr from now on."""
    private = os.dup(1)
    os.dup2(2, 1)
    return private


def _capability_here(flavour: Flavour, request: BuildRequest) -> int | None:
    """The GPU's compute capability where the engine is for it, None where it is for others."""
    if flavour.builds_for_others and request.compute_capabilities:
        return None
    here = open_cuda().compute_capability()
    wanted = request.compute_capabilities
    if wanted and wanted != (here,):
        raise EngineError(
            f"{flavour.label} builds for the GPU it runs on, sm{here}, not for sm{wanted[0]}",
            hint=f"build on the target machine, or give --target sm{here}",
        )
    return here


def _logger(trt: Any, channel: Channel) -> Any:
    levels = {
        trt.ILogger.INTERNAL_ERROR: "error",
        trt.ILogger.ERROR: "error",
        trt.ILogger.WARNING: "warning",
    }

    class Log(trt.ILogger):
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, msg: str) -> None:
            if severity in levels:
                channel.send("log", level=levels[severity], text=msg)

    return Log()


def _monitor(trt: Any, channel: Channel) -> Any:
    class Monitor(trt.IProgressMonitor):
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            channel.send("phase", name=phase_name, parent=parent_phase, steps=num_steps)

        def step_complete(self, phase_name: str, step: int) -> bool:
            # False cancels the build.
            return channel.send("step", name=phase_name, step=step)

        def phase_finish(self, phase_name: str) -> None:
            pass

    return Monitor()


def _builder(trt: Any, logger: Any) -> Any:
    try:
        return trt.Builder(logger)
    except TypeError as error:
        # The binding's way to say that the library returned no object.
        raise RefusedError(f"{error} ({open_cuda().versions()})") from error


def _parse(trt: Any, network: Any, logger: Any, request: BuildRequest) -> None:
    parser = trt.OnnxParser(network, logger)
    parsed = parser.parse_from_file(request.graph)
    if not parsed or parser.num_errors:
        if not parser.num_errors:
            raise RefusedError
        problem = parser.get_error(0)
        raise RefusedError(
            f"{problem.code().name}: {problem.desc()}",
            node=problem.node_name() or "",
            operator=problem.node_operator() or "",
        )
    _require_tensors(trt, network, request)


def _require_tensors(trt: Any, network: Any, request: BuildRequest) -> None:
    """A file of garbage parses as a graph without inputs, so their presence is checked."""
    graph = Path(request.graph).name
    inputs = [network.get_input(i) for i in range(network.num_inputs)]
    outputs = [network.get_output(i) for i in range(network.num_outputs)]
    for what, tensors, name, dtype in (
        ("input", inputs, request.input_name, request.image_dtype),
        ("output", outputs, request.output_name, "float32"),
    ):
        names = [tensor.name for tensor in tensors]
        if names != [name]:
            raise EngineError(
                f"{graph} should have the one {what} {name!r}, it has {names or 'none'}",
                hint="the file is damaged or not vitdeploy's: export the model again",
            )
        if tensors[0].dtype != getattr(trt, dtype):
            raise EngineError(
                f"the {what} {name!r} of {graph} is {tensors[0].dtype.name}, not {dtype}",
                hint="export the model again: no precision changes its input and output",
            )
    _require_shape(graph, tuple(inputs[0].shape), request)


def _require_shape(graph: str, shape: tuple[int, ...], request: BuildRequest) -> None:
    """One size must be fixed in the graph, a range of sizes must be open in it."""
    ends = zip(request.smallest_image, request.largest_image, strict=True)
    if len(shape) != 4 or any(
        size not in ((-1,) if least != most else (-1, least))
        for size, (least, most) in zip(shape[1:], ends, strict=True)
    ):
        wanted = f"(n, {request.smallest_image})"
        if request.smallest_image != request.largest_image:
            wanted = f"(n, {request.smallest_image} to {request.largest_image})"
        raise EngineError(
            f"{graph} takes {shape}, its description says {wanted}",
            hint="export the model again",
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
