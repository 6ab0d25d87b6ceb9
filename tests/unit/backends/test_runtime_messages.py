"""What runtimes say of files they cannot use: the reason itself, and a remedy that fits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from vitdeploy.artifacts.engine import Engine
from vitdeploy.artifacts.onnx_model import OnnxModel
from vitdeploy.backends import registry
from vitdeploy.backends.base import BuildOptions
from vitdeploy.backends.onnxruntime_ import GraphSession
from vitdeploy.errors import EngineError


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
