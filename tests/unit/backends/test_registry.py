"""Which backend `auto` picks, with machines made up for the occasion."""

from __future__ import annotations

from typing import Any

import pytest

from vitdeploy import environment
from vitdeploy.backends import registry
from vitdeploy.backends.base import Availability
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


def test_installed_packages_can_add_a_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    class Entry:
        name = "made-up"

        def load(self) -> Any:
            return lambda: Fake("made-up", HERE)

    monkeypatch.setattr(registry, "entry_points", lambda group: [Entry()])
    assert registry.get("made-up").name == "made-up"
    assert registry.names()[-1] == "made-up"
