"""The shapes an engine takes: what was asked for, against what the graph allows."""

from __future__ import annotations

from dataclasses import dataclass

from vitdeploy.artifacts.onnx_model import ModelDescription
from vitdeploy.backends.base import BuildOptions, image_input
from vitdeploy.backends.tensorrt.options import BatchSpan, Shape, Shapes
from vitdeploy.errors import InputError
from vitdeploy.preprocessing import Size

Profile = tuple[Shape, Shape, Shape]
"""Full shapes of the input: smallest, best, largest."""


@dataclass(frozen=True)
class ImageShapes:
    """One image as a graph takes it, without the batch: (3, 224, 224), or (224, 224, 3) of bytes.

    The three are the same for a graph of one size.
    """

    smallest: Shape
    best: Shape
    largest: Shape


def image_shapes(description: ModelDescription) -> ImageShapes:
    sizes = description.resolution_range
    dtype = image_input(description).dtype

    def taken(size: Size) -> Shape:
        channels = description.source.in_chans
        return (*size, channels) if dtype == "uint8" else (channels, *size)

    best = description.resolution
    low, high = (best, best) if sizes is None else (sizes.low, sizes.high)
    return ImageShapes(taken(low), taken(best), taken(high))


def profiles_of(description: ModelDescription, options: BuildOptions) -> tuple[Profile, ...]:
    """The profiles to build, in the order given.

    Raises InputError for an impossible range, two that are the same, and
    shapes that name another input or a size the graph does not take.
    """
    images = image_shapes(description)
    shapes = options.tensorrt.shapes
    if shapes is not None:
        _check_shapes(shapes, description.input_name, images)
        return ((shapes.smallest, shapes.best, shapes.largest),)
    spans = options.tensorrt.batches or (options.batch,)
    if len(set(spans)) < len(spans):
        raise InputError("a batch range is given twice", hint="leave one of them out")
    for span in spans:
        _check_span(span)
    return tuple(
        (
            (smallest, *images.smallest),
            (best, *images.best),
            (largest, *images.largest),
        )
        for smallest, best, largest in spans
    )


def whole_span(profiles: tuple[Profile, ...]) -> BatchSpan:
    """From the smallest batch of any profile to the largest of any; best is the widest one's.

    >>> whole_span((((1, 3), (1, 3), (1, 3)), ((1, 3), (8, 3), (64, 3))))
    (1, 8, 64)
    """
    widest = max(profiles, key=lambda profile: profile[2][0])
    return (min(profile[0][0] for profile in profiles), widest[1][0], widest[2][0])


def _check_span(span: BatchSpan) -> None:
    smallest, best, largest = span
    if not 1 <= smallest <= best <= largest:
        raise InputError(
            f"the batch range {smallest}:{best}:{largest} is impossible",
            hint="give smallest:optimal:largest, each at least 1 and none below the one before",
        )


def _check_shapes(shapes: Shapes, input_name: str, images: ImageShapes) -> None:
    if shapes.input_name != input_name:
        raise InputError(
            f"the shapes are of an input {shapes.input_name!r}; the graph's is {input_name!r}",
            hint=f"write --minShapes={input_name}:1x{_by_x(images.best)}",
        )
    three = (shapes.smallest, shapes.best, shapes.largest)
    if len({len(images.best) + 1, *map(len, three)}) != 1:
        raise InputError(
            f"the shapes {', '.join(map(_by_x, three))} have not the four sides of a batch",
            hint=f"write --minShapes={input_name}:1x{_by_x(images.best)}",
        )
    _check_span((shapes.smallest[0], shapes.best[0], shapes.largest[0]))
    sides = zip(*(shape[1:] for shape in three), images.smallest, images.largest, strict=True)
    for smallest, best, largest, least, most in sides:
        if not least <= smallest <= best <= largest <= most:
            takes = _by_x(images.smallest)
            if images.smallest != images.largest:
                takes += f" to {_by_x(images.largest)}"
            raise InputError(
                f"the shapes {', '.join(map(_by_x, three))} do not fit the graph, "
                f"which takes images of {takes}",
                hint="give sizes in that range, none below the one before, or export "
                "the model with --res or --dynamic-res",
            )


def _by_x(shape: Shape) -> str:
    return "x".join(map(str, shape))
