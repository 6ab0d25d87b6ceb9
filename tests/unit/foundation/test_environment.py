"""What a machine is, as the package sees it."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest

from vitdeploy import environment
from vitdeploy.artifacts.files import from_json, to_json
from vitdeploy.environment import Environment


def test_this_machine_survives_a_round_trip() -> None:
    here = environment.describe()
    assert from_json(to_json(here), Environment, origin="here") == here
    assert here.cores >= 1
    assert here.memory_bytes > 1 << 28
    assert here.packages["numpy"] == metadata.version("numpy")


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="linux: no CPU affinity here")
def test_cores_are_those_this_process_may_use() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert environment.available_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert environment.available_cores() == len(allowed)


@pytest.mark.parametrize(
    ("features", "fast"),
    [((), False), (("avx2", "avx512f"), False), (("avx512_vnni",), True), (("i8mm",), True)],
)
def test_int8_dot_products(features: tuple[str, ...], fast: bool) -> None:
    here = replace(environment.describe(), cpu_features=features)
    assert here.has_int8_dot_product is fast


def test_the_two_onnxruntimes_are_a_conflict_with_a_remedy() -> None:
    (problem,) = environment.conflicts({"onnxruntime": "1.20", "onnxruntime-gpu": "1.20"})
    assert "pip uninstall" in problem
    assert environment.conflicts({"onnxruntime": "1.20"}) == []
    assert environment.conflicts({"onnxruntime-gpu": "1.20", "openvino": "1"}) == []


def test_the_cache_folder_follows_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert environment.cache_folder() == tmp_path / "vitdeploy"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert environment.cache_folder() == tmp_path / "home" / ".cache" / "vitdeploy"


def test_suffixes_are_never_the_same() -> None:
    assert len({environment.unique_suffix() for _ in range(100)}) == 100
