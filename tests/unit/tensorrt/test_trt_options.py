"""Every build option reaches the vendor's configuration object.

What TensorRT-RTX has is built for real; the enterprise flavour, whose library
needs a GPU, is configured on a recorder that knows only the names of the
vendor's own lists.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from trt_graphs import SHAPE, needs_rtx, save, transformer_head

from vitdeploy import environment
from vitdeploy.artifacts.onnx_model import OnnxModel
from vitdeploy.backends.base import BuildOptions
from vitdeploy.backends.tensorrt.backend import TensorRTBackend, _request
from vitdeploy.backends.tensorrt.build import run_worker
from vitdeploy.backends.tensorrt.configure import RefusedError, configure
from vitdeploy.backends.tensorrt.flavour import TENSORRT, TENSORRT_RTX, Flavour
from vitdeploy.backends.tensorrt.options import Shapes, TensorRTOptions
from vitdeploy.backends.tensorrt.request import BuildRequest, read_request
from vitdeploy.errors import EngineError, MissingDependencyError
from vitdeploy.progress import SILENT
from vitdeploy.target import parse_targets

LISTS = Path(__file__).parents[2] / "data" / "trt-api"
ENTERPRISE = ("trt-10.3.0", "trt-10.16.1", "trt-11.4.0")
SEVERAL = parse_targets("sm86,sm89")


class Recorder:
    """An object of the vendor's class `kind`, with the names of one version; it writes down
    what is called and what is set."""

    def __init__(self, kind: str, version: str, heard: list[tuple[str, Any]]) -> None:
        api = json.loads((LISTS / f"{version}.json").read_text(encoding="utf-8"))
        object.__setattr__(self, "_members", set(api["classes"][kind]["members"]))
        object.__setattr__(self, "_heard", heard)
        object.__setattr__(self, "_version", version)

    def __setattr__(self, name: str, value: Any) -> None:
        assert name in self._members, f"no {name} in {self._version}"
        self._heard.append((name, value))

    def __getattr__(self, name: str) -> Any:
        assert name in self._members, f"no {name} in {self._version}"

        def called(*arguments: Any) -> Any:
            self._heard.append((name, arguments))
            if name == "create_optimization_profile":
                return Recorder("IOptimizationProfile", self._version, self._heard)
            return 0 if name == "add_optimization_profile" else True

        return called


def vendor(version: str) -> Any:
    """The module's enumerations, each value its own dotted name."""
    api = json.loads((LISTS / f"{version}.json").read_text(encoding="utf-8"))
    enums = {
        name: SimpleNamespace(**{value: f"{name}.{value}" for value in values})
        for name, values in api["enums"].items()
    }
    return SimpleNamespace(__version__=api["version"], **enums)


def heard(
    version: str,
    request: BuildRequest,
    *,
    capability: int | None = 89,
    batch: int = -1,
) -> list[tuple[str, Any]]:
    """What a version's builder, profiles and configuration are told."""
    said: list[tuple[str, Any]] = []
    tensor = SimpleNamespace(name="pixels", shape=(batch, *SHAPE))
    configure(
        vendor(version),
        Recorder("Builder", version, said),
        SimpleNamespace(get_input=lambda index: tensor),
        Recorder("IBuilderConfig", version, said),
        request,
        capability,
    )
    return said


@pytest.fixture
def fp16(tmp_path: Path) -> OnnxModel:
    return save(transformer_head("fp16"), tmp_path / "tiny.onnx", "fp16")


def asked(fp16: OnnxModel, flavour: Flavour = TENSORRT, **options: Any) -> BuildRequest:
    """The request as the worker reads it, through its file."""
    request = _request(flavour, fp16, BuildOptions(**options), (), fp16.path.with_name("x.engine"))
    path = fp16.path.with_name("request.json")
    request.write(path)
    read = read_request(path)
    assert read == request
    return read


def test_nothing_asked_sets_nothing_but_the_profile(fp16: OnnxModel) -> None:
    said = heard("trt-10.3.0", asked(fp16))
    assert [name for name, _ in said] == [
        "create_optimization_profile",
        "set_shape",
        "add_optimization_profile",
    ]
    assert said[1] == ("set_shape", ("pixels", (1, *SHAPE), (8, *SHAPE), (64, *SHAPE)))


EACH = [
    ({"threads": 3}, ("max_threads", 3)),
    (
        {"workspace_bytes": 1 << 28},
        ("set_memory_pool_limit", ("MemoryPoolType.WORKSPACE", 1 << 28)),
    ),
    (
        {"tensorrt": TensorRTOptions(optimization_level=0)},
        ("builder_optimization_level", 0),
    ),
    (
        {"tensorrt": TensorRTOptions(hardware_compatibility="ampere+")},
        ("hardware_compatibility_level", "HardwareCompatibilityLevel.AMPERE_PLUS"),
    ),
    (
        {"tensorrt": TensorRTOptions(version_compatible=True)},
        ("set_flag", ("BuilderFlag.VERSION_COMPATIBLE",)),
    ),
    (
        {"tensorrt": TensorRTOptions(strip_weights=True)},
        ("set_flag", ("BuilderFlag.STRIP_PLAN",)),
    ),
    (
        {"tensorrt": TensorRTOptions(strip_weights=True)},
        ("set_flag", ("BuilderFlag.REFIT_IDENTICAL",)),
    ),
    ({"tensorrt": TensorRTOptions(refittable=True)}, ("set_flag", ("BuilderFlag.REFIT",))),
]


@pytest.mark.parametrize("version", ENTERPRISE)
@pytest.mark.parametrize(("options", "told"), EACH, ids=lambda value: str(value)[:40])
def test_each_option_is_one_call(
    options: dict[str, Any], told: tuple[str, Any], version: str, fp16: OnnxModel
) -> None:
    assert told in heard(version, asked(fp16, **options))
    assert told not in heard(version, asked(fp16))


@pytest.mark.parametrize("version", ENTERPRISE)
def test_a_jetson_takes_its_workspace_from_the_systems_memory(
    version: str, fp16: OnnxModel
) -> None:
    pool = ("set_memory_pool_limit", ("MemoryPoolType.TACTIC_DRAM", 1 << 28))
    request = asked(fp16, workspace_bytes=1 << 28)
    assert pool in heard(version, request, capability=87)
    assert pool not in heard(version, request, capability=89)


def test_what_a_version_does_not_have_is_said(fp16: OnnxModel) -> None:
    request = asked(fp16, tensorrt=TensorRTOptions(hardware_compatibility="same-cc"))
    level = ("hardware_compatibility_level", "HardwareCompatibilityLevel.SAME_COMPUTE_CAPABILITY")
    assert level in heard("trt-10.16.1", request)
    with pytest.raises(EngineError, match=r"10\.3\.\S* has no hardware compatibility") as caught:
        heard("trt-10.3.0", request)
    assert "ampere+" in str(caught.value.hint)


def test_every_profile_is_added_in_order(fp16: OnnxModel) -> None:
    several = TensorRTOptions(batches=((1, 1, 1), (2, 8, 64)))
    said = heard("trt-11.4.0", asked(fp16, tensorrt=several))
    shapes = [arguments for name, arguments in said if name == "set_shape"]
    assert [[shape[0] for shape in told[1:]] for told in shapes] == [[1, 1, 1], [2, 8, 64]]
    assert [name for name, _ in said].count("add_optimization_profile") == 2


def test_a_fixed_batch_of_the_graph_is_the_only_one(fp16: OnnxModel) -> None:
    with pytest.raises(EngineError, match="fixed batch of 4") as caught:
        heard("trt-10.3.0", asked(fp16), batch=4)
    assert "--batch 4" in str(caught.value.hint)
    assert heard("trt-10.3.0", asked(fp16, batch=(4, 4, 4)), batch=4)


def test_targets_of_rtx_are_set_one_by_one(fp16: OnnxModel) -> None:
    request = replace(asked(fp16, TENSORRT_RTX), compute_capabilities=(86, 120))
    said = heard("trt_rtx-1.7.1", request, capability=None)
    assert ("num_compute_capabilities", 2) in said
    assert ("set_compute_capability", ("ComputeCapability.SM120", 1)) in said
    here = replace(request, compute_capabilities=())
    said = heard("trt_rtx-1.7.1", here, capability=89)
    assert ("set_compute_capability", ("ComputeCapability.CURRENT", 0)) in said


def test_a_profile_that_the_vendor_refuses_is_a_refusal(fp16: OnnxModel) -> None:
    class Refusing(Recorder):
        def __getattr__(self, name: str) -> Any:
            return lambda *_: -1

    tensor = SimpleNamespace(name="pixels", shape=(-1, *SHAPE))
    with pytest.raises(RefusedError, match="profile is invalid"):
        configure(
            vendor("trt-10.3.0"),
            Recorder("Builder", "trt-10.3.0", []),
            SimpleNamespace(get_input=lambda index: tensor),
            Refusing("IBuilderConfig", "trt-10.3.0", []),
            asked(fp16),
            89,
        )


RTX_BUILDS = {
    "opt-level": {"tensorrt": TensorRTOptions(optimization_level=5)},
    "workspace": {"workspace_bytes": 1 << 28},
    "threads": {"threads": 1},
    "several profiles": {"tensorrt": TensorRTOptions(batches=((1, 1, 1), (1, 8, 64)))},
    "shapes": {
        "tensorrt": TensorRTOptions(shapes=Shapes("pixels", (1, *SHAPE), (2, *SHAPE), (16, *SHAPE)))
    },
    "several targets": {"targets": SEVERAL},
}


def build(fp16: OnnxModel, folder: Path, notes: list[str] | None = None, **options: Any) -> Any:
    backend = TensorRTBackend(TENSORRT_RTX, has_driver=lambda: False)
    wanted = BuildOptions(**{"targets": parse_targets("sm89"), **options})
    return backend.build(fp16, wanted, folder / "tiny.engine", Notes(notes))


class Notes:
    def __init__(self, notes: list[str] | None) -> None:
        self._notes = [] if notes is None else notes

    def task(self, description: str, total: int | None = None) -> Any:
        return SILENT.task(description, total)

    def note(self, text: str) -> None:
        self._notes.append(text)


@needs_rtx
@pytest.mark.parametrize("name", RTX_BUILDS)
def test_rtx_builds_with_it(name: str, fp16: OnnxModel, tmp_path: Path) -> None:
    engine = build(fp16, tmp_path / "out", **RTX_BUILDS[name])
    settings = engine.manifest.settings
    assert engine.size_bytes > 100_000
    assert settings["peak_memory_bytes"] > 50_000_000
    assert settings["graph"] == "tiny.onnx"
    if name == "opt-level":
        assert settings["optimization_level"] == 5
    if name == "shapes":
        assert engine.manifest.batch == (1, 2, 16)
        assert settings["profiles"] == [[[n, *SHAPE] for n in (1, 2, 16)]]


@needs_rtx
def test_a_second_profile_is_really_in_the_engine(fp16: OnnxModel, tmp_path: Path) -> None:
    """Without a GPU an engine cannot be asked; that it grew by a profile can be seen."""
    one = build(fp16, tmp_path / "one", batch=(1, 8, 64))
    two = build(fp16, tmp_path / "two", **RTX_BUILDS["several profiles"])
    assert two.manifest.batch == (1, 8, 64)
    assert two.size_bytes > 1.3 * one.size_bytes


def asked_of_the_vendor(fp16: OnnxModel, **changes: Any) -> Any:
    """A build by the real TensorRT-RTX without our own checks before it."""
    request = replace(asked(fp16, TENSORRT_RTX), compute_capabilities=(89,), **changes)
    with SILENT.task("") as task:
        return run_worker(TENSORRT_RTX, fp16, request, task)


@needs_rtx
@pytest.mark.skipif(environment.has_nvidia_driver(), reason="gpu: there it may well build")
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("VERSION_COMPATIBLE",), "lean runtime"),
        (("STRIP_PLAN", "REFIT_IDENTICAL"), "needs a GPU"),
        (("REFIT",), "needs a GPU"),
    ],
)
def test_what_is_refused_for_rtx_it_really_does_not_build(
    flags: tuple[str, ...], said: str, fp16: OnnxModel
) -> None:
    with pytest.raises(MissingDependencyError, match=said):
        asked_of_the_vendor(fp16, flags=flags)


@needs_rtx
def test_rtx_really_has_no_hardware_compatibility(fp16: OnnxModel) -> None:
    built = asked_of_the_vendor(fp16, hardware_level="AMPERE_PLUS")
    assert ["Level() is unsupported" in text for text in built.warnings] == [True]
    assert asked_of_the_vendor(fp16).warnings == ()


@needs_rtx
def test_rtx_says_that_it_keeps_no_timings(fp16: OnnxModel, tmp_path: Path) -> None:
    notes: list[str] = []
    build(fp16, tmp_path / "out", notes, tensorrt=TensorRTOptions(timing_cache=tmp_path / "kept"))
    assert ["--timing-cache does nothing" in note for note in notes] == [True]
    assert not (tmp_path / "kept").exists()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "tiny.engine",
        "tiny.json",
    ]


def test_where_timings_are_kept(fp16: OnnxModel, tmp_path: Path) -> None:
    assert asked(fp16).timing_cache == str(tmp_path)
    elsewhere = TensorRTOptions(timing_cache=tmp_path / "kept")
    assert asked(fp16, tensorrt=elsewhere).timing_cache == str(tmp_path / "kept")
    assert asked(fp16, tensorrt=TensorRTOptions(without_timing_cache=True)).timing_cache == ""
    assert asked(fp16, TENSORRT_RTX).timing_cache == ""
