"""`vitdeploy doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from vitdeploy.cli import console
from vitdeploy.cli.options import json_option

if TYPE_CHECKING:
    from vitdeploy.api import Diagnosis


@click.command()
@json_option
def command(as_json: bool) -> None:
    """Show this machine, every backend, and what is missing or in conflict."""
    from vitdeploy import api
    from vitdeploy.artifacts.files import to_json
    from vitdeploy.errors import MissingDependencyError

    found = api.doctor()
    if as_json:
        click.echo(to_json(found), nl=False)
    else:
        _show(found)
    if found.problems:
        raise MissingDependencyError(
            f"{len(found.problems)} problem(s) found", hint="mend them as the lines above say"
        )


def _show(found: Diagnosis) -> None:
    here = found.environment
    dot = "yes" if here.has_int8_dot_product else "no"
    click.echo(f"{here.cpu}, {here.cores} cores, {here.memory_bytes / 2**30:.0f} GiB")
    click.echo(f"INT8 dot products: {dot} ({', '.join(here.cpu_features) or 'no known features'})")
    click.echo(f"NVIDIA GPU: {here.gpu or 'none'}")
    rows = [
        (
            name,
            backend.version or "-",
            "yes" if backend.available else "no",
            "yes" if backend.available and backend.can_execute else "no",
            backend.reason or ("" if backend.can_execute else "running needs an NVIDIA GPU"),
        )
        for name, backend in found.backends.items()
    ]
    console.table(("Backend", "Version", "Builds", "Runs here", "Remark"), rows)
    click.echo(", ".join(f"{name} {version}" for name, version in here.packages.items()))
    for problem in found.problems:
        click.echo(f"problem: {problem}")
