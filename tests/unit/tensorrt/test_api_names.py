"""Every name used of the vendor's API exists in all supported versions.

No machine here has them all, so the source is read instead of run and compared
with the lists of names in tests/data/trt-api, reflected from the bindings.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import vitdeploy.backends.tensorrt as package
from vitdeploy.backends.tensorrt import loading
from vitdeploy.backends.tensorrt.backend import _flags
from vitdeploy.backends.tensorrt.flavour import RTX_ONLY_NAMES
from vitdeploy.backends.tensorrt.options import HARDWARE_LEVELS, TensorRTOptions
from vitdeploy.target import parse_targets

SOURCES = sorted(Path(package.__file__).parent.glob("*.py"))
LISTS = Path(__file__).parents[2] / "data" / "trt-api"
VERSIONS = {
    path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(LISTS.glob("*.json"))
}
RTX = "trt_rtx-1.7.1"
RECEIVERS = {
    "builder": "Builder",
    "network": "INetworkDefinition",
    "parser": "OnnxParser",
    "problem": "ParserError",
    "config": "IBuilderConfig",
    "profile": "IOptimizationProfile",
    "tensor": "ITensor",
    "runtime": "Runtime",
    "engine": "ICudaEngine",
    "context": "IExecutionContext",
    "logger": "ILogger",
    "cache": "ITimingCache",
    "settings": "IRuntimeConfig",
    "kernels": "IRuntimeCache",
    "refitter": "Refitter",
    "reader": "OnnxParserRefitter",
}
"""What a variable of this name is, in a file that uses `trt` or its `config`."""

Name = tuple[str, ...]


def used_names(source: str) -> set[Name]:
    """Dotted names of the vendor's API: ('BuilderFlag', 'REFIT'), ('Builder', 'max_threads')."""
    tree = ast.parse(source)
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    if not names & {"trt", "config"}:
        return set()
    found: set[Name] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            found |= set(_overridden(node))
        elif isinstance(node, ast.Attribute):
            root, *names = _chain(node) or [""]
            if names and root == "trt":
                found.add(tuple(names))
            elif names and root.lstrip("_") in RECEIVERS:
                found.add((RECEIVERS[root.lstrip("_")], names[0]))
    return {name for name in found if not name[0].startswith("__")}


def _chain(node: ast.expr) -> list[str]:
    """['trt', 'ILogger', 'ERROR'] of trt.ILogger.ERROR, ['_x', 'y'] of self._x.y; else empty."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return []
    if node.id != "self":
        names.append(node.id)
    return names[::-1]


def _overridden(node: ast.ClassDef) -> Iterator[Name]:
    for base in node.bases:
        root, *names = _chain(base) or [""]
        if root == "trt":
            for entry in node.body:
                if isinstance(entry, ast.FunctionDef) and not entry.name.startswith("_"):
                    yield (*names, entry.name)


def exists(name: Name, api: dict[str, Any]) -> bool:
    """Whether the version has the name. Deeper parts of a chain are ordinary Python."""
    first, *rest = name
    if first in api["functions"] or first in api["constants"]:
        return True
    if not rest:
        return first in api["classes"] or first in api["enums"]
    members = api["classes"].get(first, {}).get("members", [])
    return rest[0] in members or rest[0] in api["enums"].get(first, [])


def missing(source: str) -> dict[str, set[Name]]:
    """The names that a version lacks, by version. A guarded name must exist in RTX alone."""
    lacking: dict[str, set[Name]] = {}
    for name in used_names(source):
        guarded = not RTX_ONLY_NAMES.isdisjoint(name)
        for version, api in VERSIONS.items():
            if (version == RTX or not guarded) and not exists(name, api):
                lacking.setdefault(version, set()).add(name)
    return lacking


def test_the_lists_are_the_four_versions() -> None:
    assert set(VERSIONS) == {"trt-10.3.0", "trt-10.16.1", "trt-11.4.0", RTX}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_names_exist_in_every_version(path: Path) -> None:
    assert missing(path.read_text(encoding="utf-8")) == {}


def test_the_walk_sees_what_is_there() -> None:
    """Without this an empty walk would pass."""
    seen = set[Name]().union(*(used_names(path.read_text(encoding="utf-8")) for path in SOURCES))
    assert {
        ("NetworkDefinitionCreationFlag", "STRONGLY_TYPED"),
        ("MemoryPoolType", "WORKSPACE"),
        ("OnnxParser", "parse_from_file"),
        ("ParserError", "node_operator"),
        ("Builder", "build_serialized_network"),
        ("IBuilderConfig", "set_compute_capability"),
        ("IOptimizationProfile", "set_shape"),
        ("IProgressMonitor", "step_complete"),
        ("ILogger", "log"),
        ("Runtime", "deserialize_cuda_engine"),
        ("ICudaEngine", "get_tensor_profile_shape"),
        ("IExecutionContext", "execute_async_v3"),
        ("ComputeCapability",),
        ("IBuilderConfig", "builder_optimization_level"),
        ("IBuilderConfig", "hardware_compatibility_level"),
        ("IBuilderConfig", "set_flag"),
        ("IBuilderConfig", "set_timing_cache"),
        ("ITimingCache", "combine"),
        ("MemoryPoolType", "TACTIC_DRAM"),
        ("Runtime", "engine_host_code_allowed"),
        ("Runtime", "get_engine_validity"),
        ("IRuntimeConfig", "set_runtime_cache"),
        ("IRuntimeCache", "deserialize"),
        ("Refitter", "refit_cuda_engine"),
        ("OnnxParserRefitter", "refit_from_file"),
        ("IExecutionContext", "set_optimization_profile_async"),
    } <= seen


@pytest.mark.parametrize(
    ("line", "name", "lacking"),
    [
        ("trt.BuilderFlag.FP16", ("BuilderFlag", "FP16"), {"trt-11.4.0", RTX}),
        ("trt.IInt8EntropyCalibrator2", ("IInt8EntropyCalibrator2",), {"trt-11.4.0", RTX}),
        (
            "builder.platform_has_fast_fp16",
            ("Builder", "platform_has_fast_fp16"),
            {"trt-11.4.0", RTX},
        ),
        ("config.max_num_tactics = 3", ("IBuilderConfig", "max_num_tactics"), {"trt-10.3.0"}),
        (
            "self._engine.device_memory_size",
            ("ICudaEngine", "device_memory_size"),
            {"trt-11.4.0", RTX},
        ),
        ("context.execute_async_v2()", ("IExecutionContext", "execute_async_v2"), set(VERSIONS)),
    ],
)
def test_a_removed_name_is_noticed(line: str, name: Name, lacking: set[str]) -> None:
    worker = next(path for path in SOURCES if path.stem == "worker")
    planted = worker.read_text(encoding="utf-8") + f"\n\ndef planted(trt, builder):\n    {line}\n"
    assert missing(planted) == {version: {name} for version in lacking}


def test_a_removed_method_of_a_subclass_is_noticed() -> None:
    source = "class Log(trt.ILogger):\n    def write(self): ...\n"
    assert missing(source) == {version: {("ILogger", "write")} for version in VERSIONS}


def test_guarded_names_are_really_rtx_only() -> None:
    for name in (("ComputeCapability",), ("IBuilderConfig", "set_compute_capability"),
                 ("IBuilderConfig", "num_compute_capabilities")):  # fmt: skip
        assert {version for version, api in VERSIONS.items() if exists(name, api)} == {RTX}


def test_what_is_named_by_a_string_exists() -> None:
    """Flags and levels reach the worker as text, which the walk does not see."""
    everything = TensorRTOptions(version_compatible=True, strip_weights=True)
    flags = {*_flags(everything), *_flags(replace(everything, refittable=True))}
    assert flags == {"VERSION_COMPATIBLE", "STRIP_PLAN", "REFIT", "REFIT_IDENTICAL"}
    for version, api in VERSIONS.items():
        assert flags <= set(api["enums"]["BuilderFlag"]), version
        without = set(HARDWARE_LEVELS.values()) - set(api["enums"]["HardwareCompatibilityLevel"])
        assert without == ({"SAME_COMPUTE_CAPABILITY"} if version == "trt-10.3.0" else set())


def test_diagnoses_of_the_preflight_are_all_of_rtx() -> None:
    known = set(VERSIONS[RTX]["enums"]["EngineInvalidityDiagnostics"])
    assert {*loading._INVALID, *loading._DRIVER} == known


def test_rtx_knows_every_target_we_send_it() -> None:
    known = set(VERSIONS[RTX]["enums"]["ComputeCapability"])
    targets = parse_targets("sm75,sm80,sm86,sm87,sm89,sm90,sm100,sm103,sm110,sm120,sm121")
    assert {t.name.upper() for t in targets if t.builds_in_tensorrt_rtx} | {"CURRENT"} <= known
    assert not {t.name.upper() for t in targets if not t.builds_in_tensorrt_rtx} & known
