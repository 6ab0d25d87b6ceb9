"""Importing and calling the user's own code, whose errors are shown as theirs."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from vitdeploy.errors import InputError, VitDeployError, first_line


def imported(architecture: str) -> Callable[..., Any]:
    """The callable named by 'package.module:factory' or 'path/to/file.py:factory'.

    Modules are found as Python finds them, and in the working folder. Raises
    InputError where the module or the name is missing.
    """
    where, _, name = architecture.rpartition(":")
    if not where or not name:
        raise InputError(
            f"{architecture!r} names no factory",
            hint="write package.module:factory or path/to/file.py:factory",
        )
    module = _from_file(Path(where)) if where.endswith(".py") else _from_path(where)
    factory: Any = module
    for part in name.split("."):
        factory = getattr(factory, part, None)
    if not callable(factory):
        callables = [n for n, value in vars(module).items() if callable(value) and n[0] != "_"]
        raise InputError(
            f"{where} has no callable {name!r}",
            hint=f"it has {', '.join(callables[:8])}" if callables else "name a function or class",
        )
    return factory


def call(
    architecture: str, function: Callable[..., Any], kwargs: dict[str, Any], *inputs: Any
) -> Any:
    """Call user code. Whatever it raises becomes an InputError that names its line."""
    try:
        with _importable(Path()):
            return function(*inputs, **kwargs)
    except VitDeployError:
        raise
    except Exception as error:
        raise InputError(
            f"{architecture} raised {type(error).__name__}: {first_line(error)}",
            hint=f"at {_place(error)}; its arguments come from --model-kwargs",
        ) from error


def _from_path(name: str) -> ModuleType:
    try:
        with _importable(Path()):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _own_error(name, error) from error
        raise InputError(
            f"no module is called {error.name!r}",
            hint="install it, or run in the folder that holds it; a file is named "
            "path/to/file.py:factory",
        ) from error
    except Exception as error:
        raise _own_error(name, error) from error


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise InputError(f"{path} does not exist", hint="write path/to/file.py:factory")
    resolved = path.resolve()
    key = hashlib.sha256(str(resolved).encode()).hexdigest()[:12]
    name = f"_vitdeploy_factory_{key}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, resolved)
    assert spec is not None  # the suffix is .py
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up there
    try:
        with _importable(resolved.parent):
            spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise _own_error(str(path), error) from error
    return module


def _own_error(where: str, error: Exception) -> InputError:
    return InputError(
        f"importing {where} raised {type(error).__name__}: {first_line(error)}",
        hint=f"at {_place(error)}",
    )


def _place(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if Path(frame.filename) != Path(__file__)]
    frame = (theirs or frames)[-1]
    return f"{frame.filename}:{frame.lineno}"


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    entry = str(folder.resolve())
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        sys.path.remove(entry)
