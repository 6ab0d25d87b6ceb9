"""This machine, and what runs on it."""

from __future__ import annotations

from dataclasses import dataclass

from vitdeploy import accelerators, environment
from vitdeploy.accelerators import Accelerators
from vitdeploy.backends import registry
from vitdeploy.backends.base import Availability
from vitdeploy.environment import Environment


@dataclass(frozen=True)
class Diagnosis:
    """This machine, every backend, and what is in conflict (with its remedy)."""

    environment: Environment
    accelerators: Accelerators
    backends: dict[str, Availability]
    problems: list[str]


def doctor() -> Diagnosis:
    """Look at this machine; nothing is built or run."""
    here = environment.describe()
    backends = {name: registry.probe(name) for name in registry.names()}
    return Diagnosis(here, accelerators.look(), backends, environment.conflicts(here.packages))
