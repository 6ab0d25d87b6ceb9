"""The sizes of a dynamic graph: which it takes, and on which it is tried."""

from __future__ import annotations

from vitdeploy.artifacts.onnx_model import ResolutionRange
from vitdeploy.errors import ExportError, InputError
from vitdeploy.models.source import SourceModel
from vitdeploy.preprocessing import Size

_FEWEST_PATCHES = 2
"""A grid one patch wide is taken for a broadcast by PyTorch's exporter, and PyTorch's own
antialiased resampling to a single column repeats its first row (2.14; Pillow does not)."""


def range_of(source: SourceModel, low: Size, high: Size) -> ResolutionRange:
    """Every multiple of the patch size from `low` to `high`, as `--dynamic-res` asks for.

    Raises InputError where an end is not a multiple or the range holds one
    size only, ExportError where the architecture has no patch size.
    """
    native = source.native or source
    step = native.library.size_step(native.module)
    if step is None:
        raise ExportError(
            f"{source.description.architecture} has no patch size to count in",
            hint="export one graph per size with --res",
        )
    for end in (low, high):
        native.require_patch_multiple(end, option="--dynamic-res")
    if not all(small < large for small, large in zip(low, high, strict=True)):
        raise InputError(
            f"{_text(low)}:{_text(high)} is not a range of sizes",
            hint="give the smaller size first, as in --dynamic-res 224:512; for one size use --res",
        )
    if any(side < _FEWEST_PATCHES * patch for side, patch in zip(low, step, strict=True)):
        least = (_FEWEST_PATCHES * step[0], _FEWEST_PATCHES * step[1])
        raise InputError(
            f"{_text(low)} is less than {_FEWEST_PATCHES} patches a side",
            hint=f"start at {_text(least)}",
        )
    return ResolutionRange(low, high, step)


def best_size(source: SourceModel, sizes: ResolutionRange) -> Size:
    """The native resolution, where it is in the range; else the nearest that is."""
    native = (source.native or source).resolution
    clamped = [
        min(max(side, low), high)
        for side, low, high in zip(native, sizes.low, sizes.high, strict=True)
    ]
    return (clamped[0], clamped[1])


def traced_size(source: SourceModel, sizes: ResolutionRange) -> Size:
    """A size unlike the native one on both sides where the range has one, and not square.

    What differs between a module at this size and at its own is what depends
    on the size. Equal sides, or the native ones, could be taken for constants.
    """
    native = (source.native or source).resolution
    rows, columns = (
        [side for side in _sides(sizes, axis) if side != native[axis]] or _sides(sizes, axis)
        for axis in (0, 1)
    )
    height = rows[len(rows) // 2]
    return height, next((side for side in columns if side != height), columns[0])


def tried_sizes(source: SourceModel, sizes: ResolutionRange) -> tuple[Size, ...]:
    """Lowest, native (where inside), highest, widest and tallest: corners show every mistake.

    A graph for 224:512 of a 224 ViT is tried at 224x224, 512x512, 224x512 and
    512x224: the last two have as many tokens, so a transposed grid shows.
    """
    tried = [sizes.low, best_size(source, sizes), sizes.high]
    tried += [(sizes.low[0], sizes.high[1]), (sizes.high[0], sizes.low[1])]
    return tuple(dict.fromkeys(tried))


def _sides(sizes: ResolutionRange, axis: int) -> list[int]:
    return list(range(sizes.low[axis], sizes.high[axis] + 1, sizes.step[axis]))


def _text(size: Size) -> str:
    return f"{size[0]}x{size[1]}"
