"""Which backend `auto` picks, with machines made up for the occasion."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from types import SimpleNamespace
from typing import Any

import pytest

from vitdeploy import api, environment
from vitdeploy.backends import registry
from vitdeploy.backends.base import Availability, BuildOptions
from vitdeploy.errors import InputError, MissingDependencyError
from vitdeploy.target import CPU, parse_targets

HERE = Availability(True, "1.2.3")
AWAY = Availability(False, reason="it is not installed")
NO_DRIVER = Availability(True, "1.2.3", can_execute=False)


class Fake:
    def __init__(self, name: str, availability: Availability) -> None:
        self.name = name
        self._availability = availability

    def probe(self) -> Availability:
        return self._availability


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """machine(driver, onnxruntime=..., ...) makes one; what is not named is not installed."""

    def make(driver: bool, **availability: Availability) -> None:
        monkeypatch.setattr(environment, "has_nvidia_driver", lambda: driver)
        for name in registry._BUILT_IN:
            found = availability.get(name.replace("-", "_"), AWAY)
            monkeypatch.setitem(registry._BUILT_IN, name, lambda n=name, a=found: Fake(n, a))

    return make


EVERYTHING = {"onnxruntime": HERE, "openvino": HERE, "tensorrt": HERE, "tensorrt_rtx": HERE}
CUDA = {"onnxruntime_cuda": HERE}
CPU_ONLY = {"onnxruntime": HERE, "openvino": HERE}


@pytest.mark.parametrize(
    ("driver", "installed", "target", "chosen", "why"),
    [
        (True, EVERYTHING, None, "tensorrt", "an NVIDIA driver is here"),
        (True, {**EVERYTHING, "tensorrt": AWAY}, None, "tensorrt-rtx", "an NVIDIA driver is here"),
        (True, {**CPU_ONLY, **CUDA}, None, "onnxruntime-cuda", "an NVIDIA driver is here"),
        (True, EVERYTHING, "cpu", "openvino", "the CPU was asked for"),
        (True, EVERYTHING, "sm89", "tensorrt", "an NVIDIA target was asked for"),
        (False, EVERYTHING, None, "openvino", "no NVIDIA driver is here"),
        (False, {"onnxruntime": HERE}, None, "onnxruntime", "no NVIDIA driver is here"),
        (False, {**EVERYTHING, "openvino": AWAY}, "cpu", "onnxruntime", "the CPU was asked for"),
        (
            False,
            {**CPU_ONLY, "tensorrt": NO_DRIVER, "tensorrt_rtx": NO_DRIVER},
            "sm89",
            "tensorrt-rtx",
            "an NVIDIA target was asked for",
        ),
    ],
)
def test_the_choice_and_its_reason(
    machine: Any,
    driver: bool,
    installed: dict[str, Availability],
    target: str | None,
    chosen: str,
    why: str,
) -> None:
    machine(driver, **installed)
    backend, reason = registry.choose(None if target is None else parse_targets(target))
    assert backend.name == chosen
    assert reason == f"{why}, and {chosen} 1.2.3 is installed"


@pytest.mark.parametrize(
    ("driver", "installed", "target", "named"),
    [
        (False, {}, None, ("openvino", "onnxruntime")),
        (False, EVERYTHING | {"openvino": AWAY, "onnxruntime": AWAY}, "cpu", ("openvino",)),
        (True, CPU_ONLY, None, ("tensorrt", "tensorrt-rtx", "onnxruntime-cuda")),
        (True, {**CPU_ONLY, **CUDA}, "sm89", ("tensorrt", "tensorrt-rtx")),
        (False, CPU_ONLY, "sm89", ("tensorrt", "tensorrt-rtx")),
    ],
)
def test_nothing_else_takes_the_place_of_what_is_missing(
    machine: Any,
    driver: bool,
    installed: dict[str, Availability],
    target: str | None,
    named: tuple[str, ...],
) -> None:
    machine(driver, **installed)
    with pytest.raises(MissingDependencyError, match="it is not installed") as caught:
        registry.choose(None if target is None else parse_targets(target))
    for name in named:
        assert f"{name}:" in str(caught.value)
    assert "pip install" in str(caught.value.hint)


def test_tensorrt_without_a_driver_names_the_driver(machine: Any) -> None:
    machine(False, tensorrt=NO_DRIVER)
    with pytest.raises(MissingDependencyError, match="tensorrt: needs an NVIDIA driver"):
        registry.choose(parse_targets("sm89"))


def test_an_unknown_backend_names_the_known() -> None:
    with pytest.raises(InputError, match="tensorflow") as caught:
        registry.get("tensorflow")
    for name in ("auto", "onnxruntime", "openvino", "tensorrt", "tensorrt-rtx"):
        assert name in str(caught.value.hint)


@pytest.mark.parametrize("name", ["onnxruntime", "openvino", "tensorrt", "tensorrt-rtx"])
def test_probing_never_raises(name: str) -> None:
    backend = registry.get(name)
    assert backend.name == name
    availability = backend.probe()
    assert bool(availability.version) == availability.available
    assert availability.available or availability.reason


def test_the_cpu_of_this_machine_has_a_backend() -> None:
    assert registry.choose((CPU,))[0].name in ("openvino", "onnxruntime")


class Foreign(Fake):
    """A backend of another package, without `check_options`."""

    def __init__(self) -> None:
        super().__init__("foreign", HERE)

    def build(self, *_: Any) -> Any: ...

    def load(self, engine: Any, *, threads: int | None = None, alone: bool = True) -> Any:
        return f"{engine.manifest.backend} on {threads} threads, alone: {alone}"


def needs_what_is_not_here() -> Any:
    import no_such_package  # pyright: ignore[reportMissingImports]  # noqa: F401


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> Any:
    """offered('Foreign') makes a package offer that of this file's as the backend 'foreign'."""

    def offer(attribute: str) -> None:
        monkeypatch.setitem(sys.modules, "offering", sys.modules[__name__])
        entry = EntryPoint("foreign", f"offering:{attribute}", registry.ENTRY_POINT_GROUP)
        monkeypatch.setattr(registry, "entry_points", lambda group: [entry])

    return offer


def test_a_backend_of_another_package_loads_and_need_not_check_options(offered: Any) -> None:
    offered("Foreign")
    assert registry.get("foreign").name == "foreign" == registry.names()[-1]
    engine: Any = SimpleNamespace(manifest=SimpleNamespace(backend="foreign"))
    loaded: Any = api.load_engine(engine, threads=3, alone=False)
    assert loaded == "foreign on 3 threads, alone: False"
    api.check_options(registry.get("foreign"), BuildOptions(), "fp32")


@pytest.mark.parametrize(
    ("attribute", "said"),
    [
        ("nothing", "cannot be loaded: .*nothing"),
        ("needs_what_is_not_here", "cannot be loaded: No module named 'no_such_package'"),
        ("Fake", "cannot be loaded: .*arguments"),
        ("SimpleNamespace", "has no probe, no build, no load"),
    ],
)
def test_a_broken_package_is_named_and_does_not_stop_the_doctor(
    offered: Any, attribute: str, said: str
) -> None:
    offered(attribute)
    with pytest.raises(MissingDependencyError, match=f"the backend foreign of .*{said}") as caught:
        registry.get("foreign")
    assert "uninstall" in str(caught.value.hint)
    found = api.doctor().backends["foreign"]
    assert not found.available
    assert found.reason == str(caught.value)
