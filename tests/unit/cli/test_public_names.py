"""`vitdeploy.api`: every name is there for type checkers and for programs, and loads its own part
alone."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from vitdeploy import api


def declared() -> dict[str, str]:
    """Module by name, as a type checker reads them."""
    tree = ast.parse(Path(str(api.__file__)).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    found = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        found |= {alias.name: str(node.module) for alias in node.names}
    return found


def test_type_checkers_and_programs_see_the_same_names() -> None:
    assert declared() == {name: getattr(api, name).__module__ for name in dir(api)} == api._MODULES  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("name", sorted(declared()))
def test_a_name_is_what_its_module_holds(name: str) -> None:
    assert getattr(api, name) is getattr(importlib.import_module(declared()[name]), name)


def test_an_unknown_name_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'exprot'"):
        _ = api.exprot  # pyright: ignore[reportAttributeAccessIssue]


def test_building_an_engine_loads_no_statistics_and_no_report() -> None:
    code = "import sys; from vitdeploy import api; api.build_engine; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "vitdeploy.api.engines" in loaded
    assert not {"torch", "timm", "scipy", "jinja2", "onnxruntime"} & {*loaded}
