"""From an engine's file to an execution context, through the vendor's runtime.

TensorRT-RTX compiles kernels for the GPU at the first run: they are kept in a
runtime cache beside the engine, so that the next process starts quickly.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitdeploy.artifacts.engine import Engine
from vitdeploy.artifacts.files import write_bytes
from vitdeploy.artifacts.onnx_model import external_locations, graph_digest, load_proto
from vitdeploy.backends.tensorrt.flavour import Flavour
from vitdeploy.backends.tensorrt.loading import is_stripped, is_version_compatible, preflight
from vitdeploy.backends.tensorrt.messages import (
    Context,
    as_error,
    first_cause,
    is_of_another_model,
    translate,
)
from vitdeploy.errors import EngineError, OutputError

_record = logging.getLogger(__name__)


class Log:
    """What TensorRT said of its errors since the last call that went well."""

    def __init__(self, where: Context) -> None:
        self.errors: list[str] = []
        self.where = where

    def expect(self, result: Any) -> Any:
        """`result`, or an error: TensorRT says no by None or False, and why in the log."""
        if result is None or result is False:
            raise as_error(first_cause(self.errors), self.where)
        self.errors.clear()
        return result


@dataclass
class Loaded:
    """An engine ready to run. Closing keeps what was compiled for this GPU."""

    runtime: Any
    engine: Any
    context: Any
    kernels: Any = None
    cache_path: Path | None = None
    known: bytes = field(default=b"", repr=False)

    def close(self) -> None:
        self.keep_cache()
        # Context before engine before runtime: each points into the next.
        self.context = self.kernels = None
        self.engine = None
        self.runtime = None

    def keep_cache(self) -> None:
        """Write the runtime cache where it has grown; a folder that is not writable is logged."""
        if self.kernels is None or self.cache_path is None:
            return
        serialized = self.kernels.serialize()
        content = b"" if serialized is None else bytes(serialized)
        if content in (b"", self.known):
            return
        try:
            write_bytes(self.cache_path, content)
            self.known = content
        except OutputError as error:
            _record.warning("the kernels compiled for this GPU were not kept: %s", error)


def load(trt: Any, logger: Any, flavour: Flavour, artifact: Engine, log: Log) -> Loaded:
    """Deserialize the engine and make a context for it.

    Raises EngineError where the vendor refuses it, or the graph with the
    weights of a stripped engine is not beside it, InputError where that is damaged.
    """
    runtime = log.expect(trt.Runtime(logger))
    if flavour.builds_for_others:
        preflight(trt, runtime, artifact)
    if is_version_compatible(artifact):
        # Such an engine carries its own runtime, which is code.
        runtime.engine_host_code_allowed = True
    engine = log.expect(runtime.deserialize_cuda_engine(artifact.path.read_bytes()))
    if is_stripped(artifact):
        _refit(trt, logger, engine, artifact, log)
    if not flavour.builds_for_others:
        return Loaded(runtime, engine, log.expect(engine.create_execution_context()))
    return _with_runtime_cache(trt, runtime, engine, artifact, log)


def _with_runtime_cache(trt: Any, runtime: Any, engine: Any, artifact: Engine, log: Log) -> Loaded:
    settings = log.expect(engine.create_runtime_config())
    settings.cuda_graph_strategy = trt.CudaGraphStrategy.WHOLE_GRAPH_CAPTURE
    kernels = log.expect(settings.create_runtime_cache())
    path = artifact.path.with_suffix(".runtime-cache")
    known = path.read_bytes() if path.is_file() else b""
    if known and not kernels.deserialize(known):
        _record.warning("%s is of another GPU or version and is written anew", path.name)
    log.errors.clear()
    log.expect(settings.set_runtime_cache(kernels))
    context = log.expect(engine.create_execution_context(settings))
    return Loaded(runtime, engine, context, kernels, path, known)


def _refit(trt: Any, logger: Any, engine: Any, artifact: Engine, log: Log) -> None:
    """Give a stripped engine the weights of its graph, which must lie beside it unchanged."""
    name = str(artifact.manifest.settings.get("graph", ""))
    graph = artifact.path.with_name(name)
    if not graph.is_file():
        raise EngineError(
            f"{artifact.path.name} was built without weights, and {name} is not beside it",
            hint=f"copy {name} (and its .data, if it has one) into the engine's folder",
        )
    digest = graph_digest(graph, external_locations(load_proto(graph)))
    if digest != artifact.manifest.model_digest:
        raise EngineError(
            f"{name} is not the graph that {artifact.path.name} was built from",
            hint="copy the graph again, or build the engine again",
        )
    refitter = log.expect(trt.Refitter(engine, logger))
    reader = log.expect(trt.OnnxParserRefitter(refitter, logger))
    log.expect(reader.refit_from_file(str(graph)))
    log.expect(refitter.refit_cuda_engine())


def vendor_logger(trt: Any, log: Log) -> Any:
    """Errors go into `log`; of the warnings, those that concern the engine are said."""

    class Listener(trt.ILogger):
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, msg: str) -> None:
            if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR):
                log.errors.append(msg)
            elif is_of_another_model(msg):
                _record.warning("%s; %s", *translate(msg, log.where))

    return Listener()
