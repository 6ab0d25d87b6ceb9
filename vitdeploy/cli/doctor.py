"""`vitdeploy doctor`."""

from __future__ import annotations

import click

from vitdeploy.cli import console
from vitdeploy.cli.options import json_option


@click.command()
@json_option
def command(as_json: bool) -> None:
    """Show this machine, every backend, and what is missing or in conflict."""
    import json

    from vitdeploy import environment
    from vitdeploy.artifacts.files import to_json
    from vitdeploy.backends import registry
    from vitdeploy.errors import MissingDependencyError

    here = environment.describe()
    backends = {name: registry.get(name).probe() for name in registry.names()}
    problems = environment.conflicts(here.packages)
    if as_json:
        record = {
            "environment": json.loads(to_json(here)),
            "backends": {name: json.loads(to_json(found)) for name, found in backends.items()},
            "problems": problems,
        }
        click.echo(json.dumps(record, indent=2))
    else:
        click.echo(f"{here.cpu}, {here.cores} cores, {here.memory_bytes / 2**30:.0f} GiB")
        click.echo(
            f"INT8 dot products: {'yes' if here.has_int8_dot_product else 'no'}"
            f" ({', '.join(here.cpu_features) or 'no known features'})"
        )
        click.echo(
            f"NVIDIA: {here.gpu or ('driver' if environment.has_nvidia_driver() else 'no driver')}"
        )
        console.table(
            ("Backend", "Version", "Builds", "Runs here", "Remark"),
            [
                (
                    name,
                    found.version or "-",
                    "yes" if found.available else "no",
                    "yes" if found.available and found.can_execute else "no",
                    found.reason or ("" if found.can_execute else "running needs an NVIDIA GPU"),
                )
                for name, found in backends.items()
            ],
        )
        click.echo(", ".join(f"{name} {version}" for name, version in here.packages.items()))
        for problem in problems:
            click.echo(f"problem: {problem}")
    if problems:
        raise MissingDependencyError(
            f"{len(problems)} problem(s) found", hint="mend them as the lines above say"
        )
