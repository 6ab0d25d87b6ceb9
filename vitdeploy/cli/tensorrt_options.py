"""The options of `build-engine` that say how an engine is built, most of them TensorRT's.

They become one `BuildOptions`; a runtime refuses those that it does not have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from vitdeploy.cli.options import PATH, BatchRange, Command, threads_option

if TYPE_CHECKING:
    from vitdeploy.backends.base import BuildOptions
    from vitdeploy.target import Target

_DEFAULT_BATCH = (1, 8, 64)


class BatchRanges(click.ParamType):
    """'1:8:64', or several profiles as in '1:1:1,1:8:64'."""

    name = "MIN:OPT:MAX[,...]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[tuple[int, int, int], ...]:
        if isinstance(value, tuple):
            return value
        one = BatchRange()
        return tuple(one.convert(part, param, ctx) for part in str(value).split(","))


class NamedShape(click.ParamType):
    """One input's shape as trtexec spells it: 'pixels:1x3x224x224'."""

    name = "INPUT:NxCxHxW"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, tuple[int, ...]]:
        if isinstance(value, tuple):
            return value
        # The name may hold colons itself; trtexec takes quotes around it.
        name, _, sides = str(value).rpartition(":")
        parts = sides.split("x")
        if not name or not all(part.isdecimal() and len(part) < 10 for part in parts):
            self.fail(f"{value!r} is no shape of one input; write pixels:1x3x224x224", param, ctx)
        return name.strip("'\""), tuple(map(int, parts))


def build_options(command: Command) -> Command:
    """--batch and what belongs to it. The command takes them as `**options`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


_OPTIONS = [
    click.option(
        "--batch",
        type=BatchRanges(),
        help="Images per run; TensorRT takes several ranges: 1:1:1,1:8:64.  [default: 1:8:64]",
    ),
    click.option(
        "--workspace",
        "workspace_mib",
        type=click.IntRange(1, 1 << 24),
        metavar="MIB",
        help="MiB that kernels may use, as in 4096 (TensorRT).",
    ),
    click.option(
        "--opt-level",
        type=click.IntRange(0, 5),
        help="0 builds fast, 5 searches longest (TensorRT; default: its own, 3).",
    ),
    click.option(
        "--timing-cache",
        type=PATH,
        help="Folder of kernel timings, kept between builds (TensorRT; default: that of results).",
    ),
    click.option("--no-timing-cache", is_flag=True, help="Time every kernel anew (TensorRT)."),
    click.option(
        "--hardware-compat",
        type=click.Choice(["ampere+", "same-cc"]),
        help="One engine for Ampere and newer, or for all GPUs of this compute capability "
        "(TensorRT; slower).",
    ),
    click.option(
        "--version-compat",
        is_flag=True,
        help="An engine that newer versions load too (TensorRT; slower).",
    ),
    click.option(
        "--strip-weights",
        is_flag=True,
        help="Leave the weights out; they come from the graph beside the engine (TensorRT).",
    ),
    click.option("--refit", is_flag=True, help="Weights can be replaced later (TensorRT)."),
    click.option(
        "--minShapes", "min_shapes", type=NamedShape(), help="As trtexec spells a profile."
    ),
    click.option("--optShapes", "opt_shapes", type=NamedShape(), help="Likewise."),
    click.option("--maxShapes", "max_shapes", type=NamedShape(), help="Likewise."),
    threads_option,
]


def read_build_options(options: dict[str, Any], targets: tuple[Target, ...] | None) -> BuildOptions:
    """What `build_options` added, as the backends take it.

    Raises click.UsageError where two options say the same thing.
    """
    from vitdeploy.backends.base import BuildOptions
    from vitdeploy.backends.tensorrt.options import TensorRTOptions
    from vitdeploy.target import CPU

    shapes = _shapes(options)
    if shapes is not None and options["batch"] is not None:
        raise click.UsageError(
            "--batch and --minShapes, --optShapes, --maxShapes exclude each other"
        )
    if options["timing_cache"] is not None and options["no_timing_cache"]:
        raise click.UsageError("--timing-cache and --no-timing-cache exclude each other")
    batches = options["batch"] or (_DEFAULT_BATCH,)
    mib = options["workspace_mib"]
    return BuildOptions(
        targets=targets or (CPU,),
        batch=batches[0],
        threads=options["threads"],
        workspace_bytes=None if mib is None else mib << 20,
        tensorrt=TensorRTOptions(
            batches=batches if len(batches) > 1 else (),
            shapes=shapes,
            optimization_level=options["opt_level"],
            timing_cache=options["timing_cache"],
            without_timing_cache=options["no_timing_cache"],
            hardware_compatibility=options["hardware_compat"],
            version_compatible=options["version_compat"],
            strip_weights=options["strip_weights"],
            refittable=options["refit"],
        ),
    )


def _shapes(options: dict[str, Any]) -> Any:
    """The profile of --minShapes and the others; what is not given is like the nearest given."""
    from vitdeploy.backends.tensorrt.options import Shapes

    least, best, most = (options[f"{which}_shapes"] for which in ("min", "opt", "max"))
    best = best or most or least
    if best is None:
        return None
    three = (least or best, best, most or best)
    names = {name for name, _ in three}
    if len(names) > 1:
        raise click.UsageError(
            f"--minShapes, --optShapes and --maxShapes name several inputs: {', '.join(names)}"
        )
    return Shapes(best[0], *(shape for _, shape in three))
