"""What the manifest of an engine keeps of its build, by a worker that tells what a GPU would."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from trt_graphs import SHAPE, save, transformer_head

from vitdeploy.artifacts.engine import read_engine
from vitdeploy.artifacts.onnx_model import OnnxModel
from vitdeploy.backends.base import BuildOptions
from vitdeploy.backends.tensorrt.backend import TensorRTBackend
from vitdeploy.backends.tensorrt.flavour import TENSORRT, TENSORRT_RTX
from vitdeploy.backends.tensorrt.options import TensorRTOptions
from vitdeploy.errors import EngineError, MissingDependencyError
from vitdeploy.progress import SILENT
from vitdeploy.target import parse_targets

WARNINGS = (
    "Skipping tactic 33 due to insufficient memory on requested size of 629145600",
    "Tactic Device request: 600MB Available: 302MB. Device memory is insufficient to use tactic.",
    "Skipping tactic 34 due to insufficient memory on requested size of 629145600",
)
WORKER = f"""
    import json, pathlib, sys
    request = json.loads(pathlib.Path(sys.argv[1]).read_text())
    assert request["compute_capabilities"] == [], "the GPU that is here needs no name"
    pathlib.Path(request["output"]).write_bytes(b"plan")
    for text in {WARNINGS!r}:
        print(json.dumps({{"event": "log", "level": "warning", "text": text}}))
    print(json.dumps({{"event": "built", "version": "10.3.0.26", "capability": 87,
                       "gpu": "Orin (nvgpu)", "peak_memory_bytes": 123}}))
"""


class Notes:
    def __init__(self) -> None:
        self.said: list[str] = []

    def task(self, description: str, total: int | None = None) -> Any:
        return SILENT.task(description, total)

    def note(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture
def fp16(tmp_path: Path) -> OnnxModel:
    return save(transformer_head("fp16"), tmp_path / "tiny.onnx", "fp16")


def backend(capability: int = 87) -> TensorRTBackend:
    command = (sys.executable, "-c", textwrap.dedent(WORKER))
    return TensorRTBackend(
        TENSORRT, has_driver=lambda: True, capability=lambda: capability, worker=command
    )


def test_everything_of_a_build_is_kept(fp16: OnnxModel, tmp_path: Path) -> None:
    notes = Notes()
    asked = TensorRTOptions(
        batches=((1, 1, 1), (2, 4, 8)), optimization_level=4, strip_weights=True
    )
    options = BuildOptions(workspace_bytes=1 << 28, threads=2, tensorrt=asked)
    output = tmp_path / "out" / "tiny.engine"
    manifest = read_engine(backend().build(fp16, options, output, notes).path).manifest
    assert output.read_bytes() == b"plan", "a plan as the vendor wrote it, for trtexec too"
    assert (manifest.backend, manifest.backend_version) == ("tensorrt", "10.3.0.26")
    assert (manifest.device, manifest.targets) == ("Orin (nvgpu)", ("sm87",))
    assert manifest.batch == (1, 4, 8)
    assert manifest.model == fp16.description
    assert manifest.model_digest == fp16.digest
    assert manifest.build_log == WARNINGS
    settings = manifest.settings
    assert settings["profiles"] == [[[n, *SHAPE] for n in span] for span in ((1, 1, 1), (2, 4, 8))]
    assert settings["skipped_tactics"] == [WARNINGS[0], WARNINGS[2]]
    assert settings["flags"] == ["STRIP_PLAN", "REFIT_IDENTICAL"]
    assert settings["peak_memory_bytes"] == 123
    assert settings["optimization_level"] == 4
    assert settings["workspace_bytes"] == 1 << 28
    assert settings["threads"] == 2
    assert settings["timing_cache"] is True
    assert settings["ahead_of_time"] is False
    assert ["keep tiny.onnx beside it" in note for note in notes.said] == [True, False]
    assert "left out 2 kernels" in notes.said[1]


def test_what_the_gpu_here_cannot_do_is_refused_without_a_target_named(
    fp16: OnnxModel, tmp_path: Path
) -> None:
    asked = BuildOptions(tensorrt=TensorRTOptions(hardware_compatibility="ampere+"))
    with pytest.raises(EngineError, match="for sm87, a Jetson"):
        backend().build(fp16, asked, tmp_path / "tiny.engine")
    with pytest.raises(EngineError, match="sm75, older than Ampere"):
        backend(75).build(fp16, asked, tmp_path / "tiny.engine")


def test_options_are_refused_before_there_is_a_graph() -> None:
    with pytest.raises(EngineError, match="the graph is fp8-fp16, which sm87 cannot compute"):
        backend().check_options(BuildOptions(), "fp8-fp16")
    backend().check_options(BuildOptions(), "int8-fp16")


def test_tensorrt_builds_for_no_other_gpu_than_its_own() -> None:
    asked = BuildOptions(targets=parse_targets("jetson-orin"))
    backend(87).check_options(asked, "fp16")
    with pytest.raises(EngineError, match="the GPU it runs on, sm89, not for sm87") as caught:
        backend(89).check_options(asked, "fp16")
    assert "--target sm89" in str(caught.value.hint)


def test_rtx_asks_the_gpu_only_where_the_engine_is_for_it() -> None:
    """Building for others needs neither cuda-bindings nor PyCUDA."""

    def unknown() -> int:
        raise MissingDependencyError("cuda-bindings are not here")

    rtx = TensorRTBackend(TENSORRT_RTX, has_driver=lambda: True, capability=unknown)
    rtx.check_options(BuildOptions(targets=parse_targets("sm86,sm89")), "fp16")
    with pytest.raises(MissingDependencyError, match="cuda-bindings"):
        rtx.check_options(BuildOptions(), "fp16")
