"""The versions a Jetson installs satisfy what pyproject.toml asks for."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PINNED = ROOT / "constraints" / "jetson-py310-aarch64.txt"
JETPACK_6 = {
    "python_version": "3.10",
    "python_full_version": "3.10.12",
    "platform_machine": "aarch64",
    "platform_system": "Linux",
    "sys_platform": "linux",
    "extra": "",
}
FROM_JETPACK = {"tensorrt"}
NEEDS_NEWER_PYTHON = {"onnxruntime": "1.24", "numpy": "2.3", "scipy": "1.16", "cuda-bindings": "13"}
"""The first versions without a wheel for Python 3.10, or for CUDA 12."""


def pins() -> dict[str, Version]:
    found = {}
    for line in PINNED.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            name, version = line.split("==")
            found[canonicalize_name(name)] = Version(version)
    return found


def asked() -> list[Requirement]:
    """What `pip install vitdeploy`, [cpu], [tensorrt], [report] and [nvml] ask for there."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"]]
    for extra in ("cpu", "tensorrt", "report", "nvml"):
        lines += extras[extra]
    parsed = [Requirement(line) for line in lines]
    return [found for found in parsed if found.marker is None or found.marker.evaluate(JETPACK_6)]


def unmet(requirements: list[Requirement], pinned: dict[str, Version]) -> list[str]:
    return [
        str(found)
        for found in requirements
        if found.name not in FROM_JETPACK
        and not (
            canonicalize_name(found.name) in pinned
            and found.specifier.contains(pinned[canonicalize_name(found.name)])
        )
    ]


def test_every_dependency_of_a_device_is_pinned_to_what_it_may_be() -> None:
    assert len(asked()) > 10
    assert unmet(asked(), pins()) == []


def test_the_check_sees_what_is_missing_or_too_old() -> None:
    pinned = pins()
    assert unmet([Requirement("onnx>=99"), Requirement("nothing>=1")], pinned) == [
        "onnx>=99",
        "nothing>=1",
    ]
    del pinned["tomli"]
    assert unmet(asked(), pinned) == ['tomli>=2.0; python_version < "3.11"']


@pytest.mark.parametrize("name", NEEDS_NEWER_PYTHON)
def test_nothing_is_pinned_that_python_310_cannot_install(name: str) -> None:
    assert pins()[name] < Version(NEEDS_NEWER_PYTHON[name])


def test_it_needs_no_pytorch() -> None:
    assert not {"torch", "torchvision", "timm"} & pins().keys()
    assert all(re.fullmatch(r"[a-z0-9-]+", name) for name in pins())
