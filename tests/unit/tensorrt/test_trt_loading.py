"""An engine is refused by its manifest, then by its first bytes, each time with a way out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from trt_graphs import describe, needs_rtx, save, transformer_head

from vitdeploy.artifacts.engine import Engine, EngineManifest
from vitdeploy.backends.tensorrt.flavour import TENSORRT
from vitdeploy.backends.tensorrt.loading import check_manifest, preflight, rebuild
from vitdeploy.backends.tensorrt.splitting import profile_for, split
from vitdeploy.errors import EngineError, MissingDependencyError


def engine(version: str = "10.3.0.26", **settings: Any) -> Engine:
    manifest = EngineManifest(
        backend="tensorrt",
        backend_version=version,
        model=describe("fp16"),
        model_digest="0" * 64,
        engine_digest="0" * 64,
        targets=("sm89",),
        device="NVIDIA L4",
        batch=(1, 8, 64),
        build_seconds=1.0,
        settings=settings,
    )
    return Engine(Path("tiny.engine"), manifest)


def test_another_version_is_refused_with_the_command_that_builds_again() -> None:
    profiles = [[[n, 3, 4, 4] for n in span] for span in ((1, 1, 1), (1, 8, 64))]
    built = engine(graph="tiny.onnx", profiles=profiles)
    check_manifest(TENSORRT, built, "10.3.0.26")
    with pytest.raises(EngineError, match=r"TensorRT 10\.3\.0\.26, here is 11\.4\.0") as caught:
        check_manifest(TENSORRT, built, "11.4.0")
    command = "vitdeploy build-engine tiny.onnx --backend tensorrt --batch 1:1:1,1:8:64"
    assert str(caught.value.hint).endswith(command)


def test_a_version_compatible_engine_goes_up_and_not_down() -> None:
    flags = ["VERSION_COMPATIBLE"]
    check_manifest(TENSORRT, engine("10.3.0.26", flags=flags), "11.4.0.1")
    check_manifest(TENSORRT, engine("10.3.0.26", flags=flags), "10.16.1.11")
    with pytest.raises(EngineError, match="here is"):
        check_manifest(TENSORRT, engine("11.4.0.1", flags=flags), "10.16.1.11")


def test_an_engine_of_another_backend_is_refused_first() -> None:
    foreign = engine("1.0")
    foreign = replace(foreign, manifest=replace(foreign.manifest, backend="openvino"))
    with pytest.raises(EngineError, match="built by openvino, not by tensorrt"):
        check_manifest(TENSORRT, foreign, "10.3.0.26")


def test_what_was_built_for_named_targets_is_built_for_them_again() -> None:
    built = engine(ahead_of_time=True, graph="a.onnx")
    built = replace(built, manifest=replace(built.manifest, targets=("sm86", "sm89")))
    assert rebuild(built).endswith("--batch 1:8:64 --target sm86,sm89")


@needs_rtx
def test_the_real_preflight_tells_garbage_from_a_missing_gpu(tmp_path: Path) -> None:
    import tensorrt_rtx as trt

    from vitdeploy.backends.base import BuildOptions
    from vitdeploy.backends.tensorrt import tensorrt_rtx_backend
    from vitdeploy.target import parse_targets

    runtime = trt.Runtime(trt.Logger(trt.Logger.INTERNAL_ERROR))
    graph = save(transformer_head("fp16"), tmp_path / "tiny.onnx", "fp16")
    options = BuildOptions(targets=parse_targets("sm89"))
    whole = tensorrt_rtx_backend().build(graph, options, tmp_path / "tiny.engine")
    if not Path("/proc/driver/nvidia/version").exists():
        with pytest.raises(MissingDependencyError, match="no usable GPU"):
            preflight(trt, runtime, whole)
    whole.path.write_bytes(whole.path.read_bytes()[:40])
    with pytest.raises(EngineError, match="is damaged") as caught:
        preflight(trt, runtime, whole)
    assert "--target sm89" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("count", "spans", "runs"),
    [
        (70, ((1, 64),), (64, 6)),
        (9, ((2, 4),), (4, 3, 2)),
        (5, ((2, 4),), (3, 2)),
        (10, ((1, 1), (8, 8)), (8, 1, 1)),
        (11, ((3, 3), (5, 5)), (5, 3, 3)),
        (7, ((3, 3), (5, 5)), ()),
        (1, ((2, 4),), ()),
        (128, ((1, 64),), (64, 64)),
    ],
)
def test_the_fewest_runs(
    count: int, spans: tuple[tuple[int, int], ...], runs: tuple[int, ...]
) -> None:
    assert split(count, spans) == runs
    assert all(profile_for(run, spans) is not None for run in runs)
    assert sum(runs) in (count, 0)
