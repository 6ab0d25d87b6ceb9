"""What runtimes say of files they cannot use: the reason itself, and a remedy that fits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from vitdeploy.artifacts.engine import Engine
from vitdeploy.artifacts.onnx_model import OnnxModel
from vitdeploy.backends import registry
from vitdeploy.backends.base import BuildOptions
from vitdeploy.backends.onnxruntime_ import GraphSession, OnnxRuntimeBackend
from vitdeploy.errors import EngineError, OutputError


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("content", [b"", b"no engine at all " * 9], ids=["empty", "text"])
def test_a_damaged_engine_is_built_again(
    backend: str, content: bytes, fp32_model: OnnxModel, tmp_path: Path
) -> None:
    runtime = registry.get(backend)
    built = runtime.build(fp32_model, BuildOptions(threads=1), tmp_path / "a.engine")
    built.path.write_bytes(content)
    with pytest.raises(EngineError, match=r"cannot load .*a\.engine: .") as caught:
        runtime.load(Engine(built.path, built.manifest), threads=1)
    assert caught.value.hint == "run `vitdeploy build-engine` again"
    require_a_reason(str(caught.value))


def test_a_damaged_graph_is_exported_again(tmp_path: Path) -> None:
    (tmp_path / "a.onnx").write_bytes(b"no graph")
    with pytest.raises(EngineError, match=r"cannot load .*a\.onnx") as caught:
        GraphSession(tmp_path / "a.onnx", threads=1)
    assert "export it again" in str(caught.value.hint)


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file may grow beyond 4 kB, while the disk has room: as with a quota."""
    resource = pytest.importorskip("resource", reason="windows: no limits of files")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("small_files")
@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_a_file_that_cannot_be_written_is_not_the_graphs_fault(
    backend: str, fp32_model: OnnxModel, tmp_path: Path
) -> None:
    with pytest.raises(OutputError, match=r"cannot write .*a\.engine: File too large"):
        registry.get(backend).build(fp32_model, BuildOptions(threads=1), tmp_path / "a.engine")
    assert not list(tmp_path.iterdir())


def test_a_damaged_graph_is_at_fault_whatever_the_disk(
    fp32_model: OnnxModel, tmp_path: Path
) -> None:
    (tmp_path / "a.onnx").write_bytes(b"no graph")
    damaged = replace(fp32_model, path=tmp_path / "a.onnx")
    with pytest.raises(EngineError, match=r"cannot load .*a\.onnx"):
        OnnxRuntimeBackend().build(damaged, BuildOptions(threads=1), tmp_path / "a.engine")


def test_openvino_says_why_it_cannot_compile(fp32_model: OnnxModel, tmp_path: Path) -> None:
    openvino = registry.get("openvino")
    (tmp_path / "a.onnx").write_bytes(b"no graph")
    damaged = replace(fp32_model, path=tmp_path / "a.onnx")
    with pytest.raises(EngineError, match="Unable to read the model") as caught:
        openvino.build(damaged, BuildOptions(threads=1), tmp_path / "a.engine")
    require_a_reason(str(caught.value))
    assert "--backend onnxruntime" in str(caught.value.hint)
    with pytest.raises(EngineError, match="INFERENCE_NUM_THREADS") as caught:
        openvino.build(fp32_model, BuildOptions(threads=10**11), tmp_path / "a.engine")
    require_a_reason(str(caught.value))
    assert not (tmp_path / "a.engine").exists()


def test_failing_while_running_has_a_reason_and_a_remedy(fp32_model: OnnxModel) -> None:
    """A session that is not told what its graph takes leaves it to ONNX Runtime."""
    session = GraphSession(fp32_model.path, threads=1)
    with pytest.raises(EngineError, match=r"failed while running: .*Got: 5 Expected: 3") as caught:
        session.run(np.zeros((1, 5, 32, 48), np.float32))
    require_a_reason(str(caught.value))
    assert "smaller batches" in str(caught.value.hint)


def require_a_reason(text: str) -> None:
    """One line, and no place in a runtime's own source in place of a reason."""
    assert "\n" not in text
    assert "Exception from src" not in text
    assert "Check '" not in text
