"""The session's own logic, on stand-ins for the GPU: host memory and an engine that sums.

No proof that it runs on a GPU.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trt_graphs import SHAPE, describe, save, transformer_head

from vitdeploy.artifacts.engine import Engine, EngineManifest
from vitdeploy.backends.tensorrt import session as module
from vitdeploy.backends.tensorrt.device import CudaBindings
from vitdeploy.backends.tensorrt.flavour import TENSORRT, TENSORRT_RTX, Flavour
from vitdeploy.backends.tensorrt.session import TensorRTSession
from vitdeploy.errors import EngineError, InputError

if sys.platform == "darwin":
    pytest.skip("tensorrt: cuda-bindings has no wheel for macOS", allow_module_level=True)
from cuda.bindings import runtime as real_cudart
from host_cuda import HostAsDevice
from summing_vendor import LARGEST, MS_PER_IMAGE, Summing, SummingRtx


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> HostAsDevice:
    device = HostAsDevice()
    monkeypatch.setattr(module, "open_cuda", lambda: CudaBindings(device))
    return device


@pytest.fixture
def artifact(tmp_path: Path) -> Engine:
    path = tmp_path / "tiny.engine"
    path.write_bytes(b"plan")
    manifest = EngineManifest(
        backend="tensorrt",
        backend_version="10.3.0",
        model=describe("fp16"),
        model_digest="0" * 64,
        engine_digest="0" * 64,
        targets=("sm89",),
        device="NVIDIA L4",
        batch=(2, 2, LARGEST),
        build_seconds=1.0,
    )
    return Engine(path, manifest)


def with_settings(artifact: Engine, **settings: Any) -> Engine:
    return replace(artifact, manifest=replace(artifact.manifest, settings=settings))


def load(
    monkeypatch: pytest.MonkeyPatch,
    artifact: Engine,
    vendor: Summing,
    flavour: Flavour = TENSORRT,
) -> TensorRTSession:
    monkeypatch.setattr(module, "import_vendor", lambda _: vendor)
    return TensorRTSession(flavour, artifact)


def images(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, *SHAPE)).astype(np.float32)


def sums(batch: np.ndarray) -> np.ndarray:
    return batch.sum(axis=(1, 2, 3))[:, None] * np.arange(10)


def test_runs_and_keeps_results_apart(
    gpu: HostAsDevice, artifact: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = load(monkeypatch, artifact, Summing(gpu))
    first = session.run(images(LARGEST))
    kept = first.copy()
    second = session.run(images(2, seed=1)[:, :, ::-1])
    np.testing.assert_allclose(second, sums(images(2, seed=1)), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(first, kept)
    assert session.name == "TensorRT fp16"


def test_a_batch_outside_the_profile_is_run_in_parts(
    gpu: HostAsDevice, artifact: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendor = Summing(gpu)
    session = load(monkeypatch, artifact, vendor)
    batch = images(9)
    np.testing.assert_allclose(session.run(batch), sums(batch), rtol=1e-4, atol=1e-4)
    assert vendor.runs == [4, 3, 2]
    with pytest.raises(InputError, match=r"a batch of 1 is outside the engine's 2 to 4") as caught:
        session.run(images(1))
    assert "wider range" in str(caught.value.hint)


def test_the_gpus_own_time_leaves_copies_out(
    gpu: HostAsDevice, artifact: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies take 2 ms a run; marks around them too would count those."""
    session = load(monkeypatch, artifact, Summing(gpu, profiles=((1, 1, 1), (2, 4, 8))))
    assert session.device_ms() is None
    for count in (8, 1, 1, 1, 3, 17):  # 1 as a CUDA graph from the second time on, 17 in parts
        session.run(images(count))
        assert session.device_ms() == pytest.approx(MS_PER_IMAGE * count)
    assert gpu.launches == 3
    assert gpu.clock_ms == pytest.approx(MS_PER_IMAGE * 31 + 2 * 8)
    session.close()
    assert not gpu.events


def test_each_batch_runs_with_the_profile_that_takes_it(
    gpu: HostAsDevice, artifact: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendor = Summing(gpu, profiles=((1, 1, 1), (2, 4, 8)))
    session = load(monkeypatch, artifact, vendor)
    for count in (1, 8, 1, 3, 17):
        batch = images(count, seed=count)
        np.testing.assert_allclose(session.run(batch), sums(batch), rtol=1e-4, atol=1e-4)
    assert vendor.runs == [1, 8, 1, 3, 8, 8, 1]


def test_a_fixed_shape_runs_as_a_cuda_graph_from_the_second_time_on(
    gpu: HostAsDevice, artifact: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendor = Summing(gpu, profiles=((1, 1, 1), (2, 4, 8)))
    session = load(monkeypatch, artifact, vendor)
    for seed in range(3):
        one = images(1, seed)
        np.testing.assert_allclose(session.run(one), sums(one), rtol=1e-4, atol=1e-4)
        session.run(images(4, seed))
    assert (gpu.graphs, gpu.launches) == (1, 2)
    session.close()
    assert gpu.graphs == 0


def test_what_the_vendor_says_while_a_graph_is_captured_is_told(
    gpu: HostAsDevice, artifact: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendor = Summing(gpu, profiles=((1, 1, 1),))
    session = load(monkeypatch, artifact, vendor)
    begin = gpu.cudaStreamBeginCapture

    def refuse_from_now_on(stream: int, mode: Any) -> Any:
        vendor.refuses = True
        return begin(stream, mode)

    monkeypatch.setattr(gpu, "cudaStreamBeginCapture", refuse_from_now_on)
    with pytest.raises(EngineError, match="Something about the batch"):
        session.run(images(1))
    session.close()
    assert (gpu.graphs, len(gpu.memory), len(gpu.pinned), gpu.streams) == (0, 0, 0, 0)


def test_close_frees_everything_and_ends_running(
    gpu: HostAsDevice, artifact: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = load(monkeypatch, artifact, Summing(gpu))
    assert (len(gpu.memory), len(gpu.pinned), gpu.streams) == (2, 2, 1)
    session.close()
    session.close()
    assert (len(gpu.memory), len(gpu.pinned), gpu.streams) == (0, 0, 0)
    with pytest.raises(EngineError, match="was closed"):
        session.run(images(2))


def test_failed_load_frees_everything_and_is_translated(
    gpu: HostAsDevice, artifact: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(EngineError, match=r"tiny\.engine is cut short"):
        load(monkeypatch, artifact, Summing(gpu, readable=False))
    assert (len(gpu.memory), len(gpu.pinned), gpu.streams) == (0, 0, 0)


def test_failed_copy_is_an_error(
    gpu: HostAsDevice, artifact: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = load(monkeypatch, artifact, Summing(gpu))
    gpu.copy_code = real_cudart.cudaError_t.cudaErrorIllegalAddress
    with pytest.raises(EngineError, match="copying a batch: cudaErrorIllegalAddress"):
        session.run(images(2))


def test_other_gpu_is_refused_with_the_command_that_builds_again(
    gpu: HostAsDevice, artifact: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu.capability = 75
    built = with_settings(artifact, graph="tiny.onnx")
    with pytest.raises(
        EngineError, match="built for sm89 on NVIDIA L4, this GPU is sm75"
    ) as caught:
        load(monkeypatch, built, Summing(gpu))
    remedy = "vitdeploy build-engine tiny.onnx --backend tensorrt --batch 2:2:4 --target sm75"
    assert remedy in str(caught.value.hint)


def test_another_model_of_gpu_is_a_warning(
    gpu: HostAsDevice,
    artifact: Engine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    load(monkeypatch, artifact, Summing(gpu))
    assert caplog.text == ""
    vendor = Summing(gpu)
    vendor.warning = "Using an engine plan file across different models of devices is not supported"
    assert load(monkeypatch, artifact, vendor).run(images(2)).shape == (2, 10)
    assert "was built on another model of GPU" in caplog.text
    assert "build it again here" in caplog.text


def test_a_compatible_engine_runs_on_newer_gpus_and_not_on_a_jetson(
    gpu: HostAsDevice, artifact: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu.capability = 120
    compatible = with_settings(artifact, hardware_compatibility="AMPERE_PLUS")
    assert load(monkeypatch, compatible, Summing(gpu)).run(images(2)).shape == (2, 10)
    for capability in (75, 87):
        gpu.capability = capability
        with pytest.raises(EngineError, match=f"this GPU is sm{capability}"):
            load(monkeypatch, compatible, Summing(gpu))


def test_only_a_version_compatible_engine_may_bring_code(
    gpu: HostAsDevice, artifact: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for flags in ([], ["VERSION_COMPATIBLE"]):
        vendor = Summing(gpu)
        load(monkeypatch, with_settings(artifact, flags=flags), vendor)
        assert vendor.engine_host_code_allowed == bool(flags)


def test_a_stripped_engine_takes_its_weights_from_its_own_graph(
    gpu: HostAsDevice, artifact: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = {"flags": ["STRIP_PLAN", "REFIT_IDENTICAL"], "graph": "tiny.onnx"}
    stripped = with_settings(artifact, **settings)
    with pytest.raises(EngineError, match=r"tiny\.onnx is not beside it"):
        load(monkeypatch, stripped, Summing(gpu))
    graph = save(transformer_head("fp16"), tmp_path / "tiny.onnx", "fp16")
    with pytest.raises(EngineError, match="not the graph"):
        load(monkeypatch, stripped, Summing(gpu))
    own = replace(stripped.manifest, model_digest=graph.digest)
    vendor = Summing(gpu)
    load(monkeypatch, replace(stripped, manifest=own), vendor)
    assert vendor.refitted == str(graph.path)


def test_rtx_keeps_what_it_compiled_beside_the_engine(
    gpu: HostAsDevice, artifact: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = artifact.path.with_suffix(".runtime-cache")
    vendor = SummingRtx(gpu, profiles=((1, 1, 1), (2, 2, 4)))
    session = load(monkeypatch, artifact, vendor, TENSORRT_RTX)
    assert vendor.cuda_graph_strategy == "whole"
    assert not cache.exists()
    session.run(images(1))
    session.run(images(1))
    assert cache.read_bytes() == b"compiled for [1]"
    session.run(images(3))
    session.close()
    assert cache.read_bytes() == b"compiled for [1, 3]"
    assert gpu.launches == 0, "RTX keeps CUDA graphs by itself"
    again = SummingRtx(gpu)
    load(monkeypatch, artifact, again, TENSORRT_RTX)
    assert again.taken == b"compiled for [1, 3]"


def test_a_runtime_cache_of_another_gpu_is_written_anew(
    gpu: HostAsDevice,
    artifact: Engine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    cache = artifact.path.with_suffix(".runtime-cache")
    cache.write_bytes(b"of another GPU")
    session = load(monkeypatch, artifact, SummingRtx(gpu), TENSORRT_RTX)
    assert "written anew" in caplog.text
    session.run(images(2))
    assert cache.read_bytes() == b"compiled for [2]"


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        (1, "was built by another version"),
        (2 | 16, "was not built for this GPU and needs more memory"),
        (4, "the CUDA driver is too old for it"),
        (0, "finds no usable GPU"),
    ],
)
def test_rtx_refuses_by_the_first_bytes(
    mask: int, said: str, gpu: HostAsDevice, artifact: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendor = SummingRtx(gpu, readable=False)
    vendor.answer = (vendor.EngineValidity.INVALID, mask)
    with pytest.raises(Exception, match=said) as caught:
        load(monkeypatch, artifact, vendor, TENSORRT_RTX)
    hint = str(getattr(caught.value, "hint", ""))
    assert ("vitdeploy build-engine" in hint) == bool(mask & 19)
    assert (len(gpu.memory), gpu.streams) == (0, 0)
