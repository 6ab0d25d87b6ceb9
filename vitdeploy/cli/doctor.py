"""`vitdeploy doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from vitdeploy.cli import console
from vitdeploy.cli.options import json_option

if TYPE_CHECKING:
    from vitdeploy.accelerators import Accelerators
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
    click.echo(
        f"{here.cpu}, {here.cores} cores, {here.memory_bytes / 2**30:.0f} GiB, {here.system}"
    )
    click.echo(f"INT8 dot products: {dot} ({', '.join(here.cpu_features) or 'no known features'})")
    for line in _accelerator_lines(found.accelerators):
        click.echo(line)
    rows = [
        (
            name,
            backend.version or "-",
            "yes" if backend.available else "no",
            "yes" if backend.available and backend.can_execute else "no",
            backend.reason
            or ", ".join(backend.devices)
            or ("" if backend.can_execute else "running needs an NVIDIA GPU"),
        )
        for name, backend in found.backends.items()
    ]
    console.table(
        ("Backend", "Version", "Builds", "Runs here", "Devices, or what is missing"), rows
    )
    click.echo(", ".join(f"{name} {version}" for name, version in here.packages.items()))
    for problem in found.problems:
        click.echo(f"problem: {problem}")


def _accelerator_lines(found: Accelerators) -> list[str]:
    lines = [f"NVIDIA GPU: {'none' if not found.gpus else ''}".rstrip()]
    for gpu in found.gpus:
        memory = "" if gpu.memory_bytes is None else f", {gpu.memory_bytes / 2**30:.0f} GiB"
        capability = gpu.compute_capability.replace(".", "")
        lines.append(f"  {gpu.name}{memory}{f', --target sm{capability}' if capability else ''}")
    versions = (
        ("driver", found.driver),
        ("CUDA of the driver", found.cuda_driver),
        ("CUDA toolkit", found.cuda_toolkit),
    )
    lines += [f"{what}: {version}" for what, version in versions if version]
    jetson = found.jetson
    if jetson is not None:
        pinned = {True: "pinned", False: "not pinned: run jetson_clocks to time", None: "not known"}
        clock = jetson.gpu_clock_limit_hz
        lines += [
            f"Jetson: {jetson.model}, L4T {jetson.l4t or 'not known'}",
            f"  power mode {jetson.power_mode or 'not known (nvpmodel -q)'}, GPU clock "
            f"{f'up to {clock / 1e6:.0f} MHz, ' if clock else ''}{pinned[jetson.clock_is_pinned]}",
            "  memory is shared with the CPU: workspace and batch come out of it",
        ]
    return [*lines, *found.remarks]
