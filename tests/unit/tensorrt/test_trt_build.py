"""Real builds with TensorRT-RTX, which needs no GPU, and what happens when a build goes wrong."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import onnx
import pytest
from trt_graphs import describe, model_of, needs_rtx, qlinear_matmul, save, transformer_head

from vitdeploy.artifacts.engine import Engine, read_engine
from vitdeploy.artifacts.onnx_model import OnnxModel, Precision
from vitdeploy.backends.base import BuildOptions
from vitdeploy.backends.tensorrt import tensorrt_rtx_backend
from vitdeploy.backends.tensorrt.backend import TensorRTBackend, _request
from vitdeploy.backends.tensorrt.build import WORKER_COMMAND
from vitdeploy.backends.tensorrt.flavour import TENSORRT, TENSORRT_RTX
from vitdeploy.errors import (
    EngineError,
    InputError,
    MissingDependencyError,
    OutputError,
    VitDeployError,
)
from vitdeploy.progress import SILENT, Progress, Task
from vitdeploy.target import parse_targets

SEVERAL = BuildOptions(targets=parse_targets("sm86,sm89,sm120"), batch=(1, 2, 8))


class Recorder:
    """A progress sink that counts, and can interrupt after some steps."""

    def __init__(self, interrupt_after: int | None = None) -> None:
        self.steps = 0
        self.notes: list[str] = []
        self._interrupt_after = interrupt_after

    @contextmanager
    def task(self, description: str, total: int | None = None) -> Iterator[Task]:
        yield self

    def note(self, text: str) -> None:
        self.notes.append(text)

    def advance(self, steps: int = 1) -> None:
        self.steps += steps
        if self.steps == self._interrupt_after:
            raise KeyboardInterrupt


def build(
    model: OnnxModel,
    output: Path,
    options: BuildOptions = SEVERAL,
    progress: Progress = SILENT,
) -> Engine:
    backend = TensorRTBackend(TENSORRT_RTX, has_driver=lambda: False)
    return backend.build(model, options, output, progress)


def refusal(model: OnnxModel, tmp_path: Path, kind: type[VitDeployError] = EngineError) -> str:
    """The refusal's text; whatever else, nothing is left where the engine would have been."""
    output = tmp_path / "out" / "tiny.engine"
    with pytest.raises(kind) as caught:
        build(model, output)
    assert caught.value.hint
    assert list(output.parent.glob("*")) == []
    return str(caught.value)


def stubbed(source: str) -> TensorRTBackend:
    """A backend whose worker runs `source`."""
    command = (sys.executable, "-c", textwrap.dedent(source))
    return TensorRTBackend(TENSORRT_RTX, has_driver=lambda: False, worker=command)


@pytest.fixture
def fp16(tmp_path: Path) -> OnnxModel:
    return save(transformer_head("fp16"), tmp_path / "tiny.onnx", "fp16")


@needs_rtx
@pytest.mark.parametrize(
    ("precision", "opset"),
    [("fp32", 20), ("fp16", 19), ("fp16", 20), ("int8-fp32", 20), ("int8-fp16", 20)],
)
def test_one_engine_for_three_targets(precision: str, opset: int, tmp_path: Path) -> None:
    kind = cast(Precision, precision)
    model = save(transformer_head(kind, opset=opset), tmp_path / "tiny.onnx", kind)
    progress = Recorder()
    engine = build(model, tmp_path / "out" / "tiny.engine", progress=progress)

    assert read_engine(engine.path) == engine
    manifest = engine.manifest
    assert manifest.backend == "tensorrt-rtx"
    assert manifest.targets == ("sm86", "sm89", "sm120")
    assert manifest.settings["compute_capabilities"] == [86, 89, 120]
    assert manifest.batch == (1, 2, 8)
    assert manifest.model_digest == model.digest
    assert progress.steps > 5
    assert bool(progress.notes) == precision.startswith("int8")
    assert sorted(path.name for path in engine.path.parent.iterdir()) == [
        "tiny.engine",
        "tiny.json",
    ]


@needs_rtx
def test_every_target_of_the_table_builds_or_is_refused_beforehand(
    fp16: OnnxModel, tmp_path: Path
) -> None:
    wanted = parse_targets("sm75,sm80,sm86,sm89,sm120,sm121")
    assert all(target.builds_in_tensorrt_rtx for target in wanted)
    options = replace(SEVERAL, targets=wanted, workspace_bytes=1 << 28, threads=1)
    assert build(fp16, tmp_path / "a.engine", options).manifest.targets[-1] == "sm121"


@needs_rtx
def test_more_targets_make_a_larger_engine(fp16: OnnxModel, tmp_path: Path) -> None:
    one = build(fp16, tmp_path / "one.engine", replace(SEVERAL, targets=parse_targets("sm89")))
    three = build(fp16, tmp_path / "three.engine")
    assert three.size_bytes > one.size_bytes


@needs_rtx
def test_the_runtime_takes_the_file_for_an_engine(fp16: OnnxModel, tmp_path: Path) -> None:
    """Without a GPU nothing is valid to run here, but only garbage is called malformed."""
    import tensorrt_rtx as trt

    engine = build(fp16, tmp_path / "tiny.engine")
    assert engine.manifest.backend_version == trt.__version__
    runtime = trt.Runtime(trt.Logger(trt.Logger.INTERNAL_ERROR))
    malformed = int(trt.EngineInvalidityDiagnostics.MALFORMED_ENGINE)
    _, diagnosis = runtime.get_engine_validity(engine.path.read_bytes())
    assert not diagnosis & malformed
    _, diagnosis = runtime.get_engine_validity(fp16.path.read_bytes())
    assert diagnosis & malformed


@needs_rtx
@pytest.mark.parametrize("zero", [np.array(128, np.uint8), np.array(0, np.uint8)])
def test_uint8_is_refused(zero: np.ndarray, tmp_path: Path) -> None:
    """With zero point 0 TensorRT only warns, and computes in int8: everything above 127 is lost."""
    proto = transformer_head("int8-fp16", zero_point=zero)
    text = refusal(save(proto, tmp_path / "tiny.onnx", "int8-fp16"), tmp_path)
    assert "uint8" in text
    if zero:
        assert "'normed/quantize' (QuantizeLinear)" in text


@needs_rtx
def test_asymmetric_int8_is_refused(tmp_path: Path) -> None:
    proto = transformer_head("int8-fp16", zero_point=np.array(3, np.int8))
    text = refusal(save(proto, tmp_path / "tiny.onnx", "int8-fp16"), tmp_path)
    assert "zero point other than 0" in text
    assert "'normed/quantize' (QuantizeLinear)" in text


@needs_rtx
def test_qlinear_is_refused_by_name(tmp_path: Path) -> None:
    text = refusal(save(qlinear_matmul(), tmp_path / "tiny.onnx", "int8-fp32"), tmp_path)
    assert "'blocks.0/qlinear' (QLinearMatMul) of tiny.onnx is not supported" in text


@needs_rtx
def test_zero_scale_is_refused(tmp_path: Path) -> None:
    proto = transformer_head("int8-fp16")
    for tensor in proto.graph.initializer:
        if tensor.name == "normed_scale":
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.array(0, np.float16), tensor.name))
    text = refusal(save(proto, tmp_path / "tiny.onnx", "int8-fp16"), tmp_path)
    assert "scale that is zero or negative" in text


@needs_rtx
@pytest.mark.parametrize("kept", [3000, 0])
def test_truncated_graph_is_refused(kept: int, fp16: OnnxModel, tmp_path: Path) -> None:
    fp16.path.write_bytes(fp16.path.read_bytes()[:kept])
    assert "tiny.onnx is not an ONNX graph" in refusal(fp16, tmp_path, InputError)


@needs_rtx
def test_missing_external_data_is_named(tmp_path: Path) -> None:
    path = tmp_path / "tiny.onnx"
    onnx.save(
        transformer_head("fp16"),
        str(path),
        save_as_external_data=True,
        location="tiny.onnx.data",
        size_threshold=16,
    )
    model = OnnxModel(path, "0" * 64, describe("fp16"))
    build(model, tmp_path / "whole.engine")
    (tmp_path / "tiny.onnx.data").unlink()
    assert "tiny.onnx.data" in refusal(model, tmp_path, InputError)


@needs_rtx
def test_graph_and_description_must_agree(fp16: OnnxModel, tmp_path: Path) -> None:
    renamed = replace(fp16, description=replace(fp16.description, input_name="images"))
    assert "'images'" in refusal(renamed, tmp_path)
    resized = replace(fp16, description=replace(fp16.description, resolution=(8, 8)))
    assert "its description says" in refusal(resized, tmp_path)


@needs_rtx
def test_fixed_batch_is_refused_unless_it_is_the_range(tmp_path: Path) -> None:
    proto = transformer_head("fp16")
    for tensor in (*proto.graph.input, *proto.graph.output):
        tensor.type.tensor_type.shape.dim[0].dim_value = 4
    model = save(proto, tmp_path / "tiny.onnx", "fp16")
    assert "fixed batch of 4" in refusal(model, tmp_path, InputError)
    build(model, tmp_path / "four.engine", replace(SEVERAL, batch=(4, 4, 4)))


@needs_rtx
def test_a_real_crash_of_the_builder_becomes_an_error(tmp_path: Path) -> None:
    weights = {"flat_shape": np.array([0, 6, 8], np.int64), "out_shape": np.array([0, 48])}
    node = onnx.helper.make_node
    nodes = [
        node("Reshape", ["pixels", "flat_shape"], ["tokens"]),
        node(
            "MultiHeadAttention",
            ["tokens", "tokens", "tokens"],
            ["mixed"],
            name="attention",
            domain="com.microsoft",
            num_heads=2,
        ),
        node("Reshape", ["mixed", "out_shape"], ["logits"]),
    ]
    model = save(model_of(nodes, weights, 20), tmp_path / "tiny.onnx", "fp32")
    text = refusal(model, tmp_path)
    assert "the build of tiny.onnx crashed" in text or "not supported" in text


def test_crash_is_an_engine_error_naming_the_graph(fp16: OnnxModel, tmp_path: Path) -> None:
    backend = stubbed("""
        import os, signal, sys
        print('{"event": "phase", "name": "Optimizing graph", "parent": null, "steps": 3}')
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGSEGV)
    """)
    with pytest.raises(EngineError, match=r"tiny\.onnx crashed \(SIGSEGV\) during 'Optimizing"):
        backend.build(fp16, SEVERAL, tmp_path / "out" / "tiny.engine")
    assert list((tmp_path / "out").iterdir()) == []


def test_worker_that_dies_of_an_exception_shows_it(fp16: OnnxModel, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="ZeroDivisionError"):
        stubbed("1 / 0").build(fp16, SEVERAL, tmp_path / "tiny.engine")


def test_full_disk_in_the_worker_is_an_output_error(fp16: OnnxModel, tmp_path: Path) -> None:
    message = f'{{"event": "failed", "kind": "OSError", "text": "full", "code": {errno.ENOSPC}}}'
    with pytest.raises(OutputError, match="no space left"):
        stubbed(f"print({message!r})").build(fp16, SEVERAL, tmp_path / "tiny.engine")


def test_interrupt_ends_the_child_and_leaves_nothing(fp16: OnnxModel, tmp_path: Path) -> None:
    backend = stubbed(f"""
        import json, os, pathlib, sys, time
        request = json.loads(pathlib.Path(sys.argv[1]).read_text())
        pathlib.Path(request["output"]).write_bytes(b"half an engine")
        pathlib.Path({str(tmp_path / "pid")!r}).write_text(str(os.getpid()))
        for step in range(1000):
            print(json.dumps({{"event": "step", "name": "x", "step": step}}), flush=True)
            time.sleep(0.05)
    """)
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        backend.build(fp16, SEVERAL, tmp_path / "out" / "tiny.engine", Recorder(interrupt_after=3))
    assert time.monotonic() - started < 30
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    assert list((tmp_path / "out").iterdir()) == []


@needs_rtx
def test_interrupt_of_a_real_build_keeps_the_old_engine(fp16: OnnxModel, tmp_path: Path) -> None:
    engine = build(fp16, tmp_path / "out" / "tiny.engine")
    with pytest.raises(KeyboardInterrupt):
        build(fp16, engine.path, progress=Recorder(interrupt_after=2))
    assert read_engine(engine.path) == engine
    assert len(list(engine.path.parent.iterdir())) == 2


@needs_rtx
def test_worker_gives_up_when_its_parent_is_gone(fp16: OnnxModel, tmp_path: Path) -> None:
    """A parent that was killed cannot end the child; the closed pipe does."""
    request = _request(TENSORRT_RTX, fp16, SEVERAL, SEVERAL.targets, tmp_path / "x.engine")
    request.write(tmp_path / "request.json")
    reading, writing = os.pipe()
    os.close(reading)
    with (tmp_path / "stderr").open("wb") as complaints:
        process = subprocess.Popen(
            [*WORKER_COMMAND, str(tmp_path / "request.json")], stdout=writing, stderr=complaints
        )
        os.close(writing)
        process.wait(60)
    assert not (tmp_path / "x.engine").exists()


def test_worker_starts_without_torch_and_onnx() -> None:
    program = (
        "import sys, vitdeploy.backends.tensorrt.worker\n"
        "print(sorted({'torch', 'onnx', 'numpy', 'tensorrt_rtx'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


@needs_rtx
def test_probe_finds_the_library_and_the_missing_driver() -> None:
    availability = TensorRTBackend(TENSORRT_RTX, has_driver=lambda: False).probe()
    assert availability.available
    assert availability.version.startswith("1.")
    assert not availability.can_execute


def test_probe_says_what_to_install() -> None:
    absent = replace(TENSORRT, modules=("tensorrt_that_nobody_has",))
    availability = TensorRTBackend(absent).probe()
    assert not availability.available
    assert "pip install 'vitdeploy[tensorrt]'" in availability.reason


def test_missing_module_in_the_worker_is_a_missing_dependency(
    fp16: OnnxModel, tmp_path: Path
) -> None:
    line = (
        '{"event": "refused", "text": "ImportError: libtensorrt_rtx.so.1: cannot open shared '
        + ('object file: No such file", "node": "", "operator": ""}')
    )
    with pytest.raises(MissingDependencyError, match=r"libtensorrt_rtx\.so\.1") as caught:
        stubbed(f"print({line!r})").build(fp16, SEVERAL, tmp_path / "tiny.engine")
    assert "vitdeploy[tensorrt-rtx]" in str(caught.value.hint)


@needs_rtx
def test_load_refuses_in_order(fp16: OnnxModel, tmp_path: Path) -> None:
    engine = build(fp16, tmp_path / "tiny.engine")
    backend = TensorRTBackend(TENSORRT_RTX, has_driver=lambda: False)
    foreign = replace(engine, manifest=replace(engine.manifest, backend="tensorrt"))
    with pytest.raises(EngineError, match="was built by tensorrt, not by tensorrt-rtx"):
        backend.load(foreign)
    older = replace(engine, manifest=replace(engine.manifest, backend_version="1.0.0"))
    with pytest.raises(EngineError, match=r"built by TensorRT-RTX 1\.0\.0, here is"):
        backend.load(older)
    with pytest.raises(MissingDependencyError, match="no NVIDIA driver is here") as caught:
        backend.load(engine)
    assert "vitdeploy evaluate" in str(caught.value.hint)


def test_registered_under_its_name() -> None:
    assert tensorrt_rtx_backend().name == "tensorrt-rtx"
