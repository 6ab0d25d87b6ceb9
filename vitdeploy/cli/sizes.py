"""--res of commands that run engines: the size at which one of a range of sizes is run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast

import click

from vitdeploy.cli.options import Resolution

if TYPE_CHECKING:
    from vitdeploy.artifacts.engine import Engine
    from vitdeploy.artifacts.onnx_model import OnnxModel

Sized = TypeVar("Sized", bound="Engine | OnnxModel")

size_option = click.option(
    "--res",
    "size",
    type=Resolution(),
    help="Of engines and graphs of a range of sizes: the one to run at (default: the source's own, "
    "or the nearest in the range).",
)
"""The command takes it as `size`."""


def at_size(model: Sized, size: tuple[int, int] | None, say: Callable[[str], None]) -> Sized:
    """`model` at the size asked for; where none was and it takes several, `say` hears which.

    Raises InputError for a size that it does not take.
    """
    from vitdeploy.artifacts.onnx_model import OnnxModel

    description = model.description if isinstance(model, OnnxModel) else model.manifest.model
    sizes = description.resolution_range
    if size is None and sizes is not None:
        height, width = description.resolution
        say(f"size: {height}x{width} of {sizes.in_words()}; --res takes another")
    return cast("Sized", model.at(size))
