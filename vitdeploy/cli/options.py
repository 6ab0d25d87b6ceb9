"""Options and value types that several commands share."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from vitdeploy.models.request import ModelRequest
    from vitdeploy.workspace import Workspace

Command = TypeVar("Command", bound=Callable[..., Any])

LONGEST_SIDE = 8192
"""Pixels; a ViT at patch 16 has 262,144 tokens there."""

LARGEST_BATCH = 65_536
"""Images; one of 224x224 pixels is 0.6 MB, so more than this fits no machine."""

_DIGITS = 10
"""More digits than any bound of ours; Python refuses to read thousands of them."""


class Finite(click.FloatRange):
    """A number in a range, which is neither NaN nor infinite."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{_short(value)} is not a finite number", param, ctx)
        return number


class Resolution(click.ParamType):
    """'384' or '384x512' (height x width)."""

    name = "PIXELS or HxW"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        parts = str(value).lower().split("x")
        if len(parts) in (1, 2) and all(
            _is_count(part) and 0 < int(part) <= LONGEST_SIDE for part in parts
        ):
            return (int(parts[0]), int(parts[-1]))
        self.fail(
            f"{_short(value)} is not a resolution of at most {LONGEST_SIDE} pixels a side; "
            "write 384 or 384x512",
            param,
            ctx,
        )


class ResolutionSpan(click.ParamType):
    """'224:512' or '224x224:384x512' (lowest:highest)."""

    name = "LOW:HIGH"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[tuple[int, int], tuple[int, int]]:
        ends = str(value).split(":")
        if len(ends) != 2:
            self.fail(f"{_short(value)} is not a range of resolutions; write 224:512", param, ctx)
        low, high = (Resolution().convert(end, param, ctx) for end in ends)
        if not all(small < large for small, large in zip(low, high, strict=True)):
            self.fail(
                f"{_short(value)} is not a range of sizes; write the smaller first, as in 224:512",
                param,
                ctx,
            )
        return low, high


class BatchRange(click.ParamType):
    """'8', or 'min:opt:max' as in '1:8:64'."""

    name = "MIN:OPT:MAX"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int, int]:
        parts = str(value).split(":")
        if len(parts) in (1, 3) and all(_is_count(part) for part in parts):
            low, best, high = (int(parts[0]), int(parts[len(parts) // 2]), int(parts[-1]))
            if 1 <= low <= best <= high <= LARGEST_BATCH:
                return (low, best, high)
        self.fail(
            f"{_short(value)} is not a batch range up to {LARGEST_BATCH}; write 8 or 1:8:64",
            param,
            ctx,
        )


class JsonObject(click.ParamType):
    """A JSON object, as in '{"drop_path_rate": 0.1}'."""

    name = "JSON"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[str, Any]:
        from vitdeploy.artifacts.strict import plain_content

        try:
            parsed = plain_content(json.loads(value))
        except (ValueError, RecursionError) as error:
            self.fail(f"not valid JSON: {error}", param, ctx)
        if not isinstance(parsed, dict):
            self.fail("write a JSON object, as in '{\"depth\": 6}'", param, ctx)
        return parsed


class Numbers(click.ParamType):
    """'1,8,32', every number above zero, or with `zero` at least that, and at most `most`."""

    def __init__(
        self, kind: type[int] | type[float], *, zero: bool = False, most: float = 1e9
    ) -> None:
        self._kind = kind
        self._zero = zero
        self._most = most
        self.name = "N,N,..."

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Any, ...]:
        try:
            numbers = tuple(self._kind(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{_short(value)} is not a list of numbers; write 1,8,32", param, ctx)
        if not all(number > 0 or (self._zero and number == 0) for number in numbers):
            least = "zero or above" if self._zero else "above zero"
            self.fail(f"every number must be {least}", param, ctx)
        if not all(number <= self._most for number in numbers):
            self.fail(f"every number must be at most {self._most:,g}", param, ctx)
        return numbers


class ModelName(click.ParamType):
    """What files and reports call a model."""

    name = "NAME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from vitdeploy.artifacts.source import require_name

        require_name(value)
        return value


def _is_count(text: str) -> bool:
    return text.isdecimal() and len(text) < _DIGITS


def _short(value: Any, most: int = 40) -> str:
    """What was typed, quoted, and cut where it would flood the terminal."""
    text = str(value)
    return repr(text if len(text) <= most else text[:most] + "...")


POINTS = Finite(0.01, 100)
"""Of accuracy that may be lost; a hundredth asks for millions of images to be proved."""

SEED = click.IntRange(0, 2**32 - 1)
"""What every library of random numbers takes."""


class _Named(click.Path):
    """A path that was written: an empty one, which a shell makes of an unset variable, would be
    the working folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("the path is empty", param, ctx)
        return super().convert(value, param, ctx)


PATH = _Named(path_type=Path)

MODEL_KEYS = (
    "model_name",
    "checkpoint",
    "pretrained",
    "random_weights",
    "num_classes",
    "in_chans",
    "model_kwargs",
    "task",
    "mean",
    "std",
    "interpolation",
    "crop_pct",
    "crop_mode",
)
"""What `model_options` adds to a command."""


def timing_options(command: Command) -> Command:
    """--batch and --seconds of a timing. The command takes them as `batch` and `seconds`."""
    options = [
        click.option(
            "-b", "--batch", type=Numbers(int, most=LARGEST_BATCH), default="1,8", show_default=True
        ),
        click.option(
            "--seconds",
            type=Finite(min=1),
            default=60,
            show_default=True,
            help="Time for at most so long per batch size.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def model_options(command: Command) -> Command:
    """--model and what belongs to it. The command takes them as `**model`."""
    options = [
        click.option(
            "--model",
            "model_name",
            help="timm name, torchvision:NAME, transformers:NAME, model folder, "
            "module:factory, file.py:factory, described checkpoint, or 'demo'; for `evaluate` "
            "also the .onnx graph that `adopt` wrote.",
        ),
        click.option(
            "--checkpoint",
            type=PATH,
            help="Weights: .safetensors, .pth (weights only), shards, or a folder.",
        ),
        click.option(
            "--pretrained", is_flag=True, help="The library's pretrained weights (needs the hub)."
        ),
        click.option("--random-weights", is_flag=True, help="Untrained weights, knowingly."),
        click.option("--num-classes", type=click.IntRange(1, 10_000_000)),
        click.option("--in-chans", type=click.IntRange(1, 4096)),
        click.option("--model-kwargs", type=JsonObject(), help="More arguments of the model."),
        click.option(
            "--task",
            type=click.Choice(["classify", "multilabel", "regress", "features"]),
            help="What the model is for (default: what it says, else classify).",
        ),
    ]
    command = preprocessing_options("the model's own")(command)
    for option in reversed(options):
        command = option(command)
    return command


def preprocessing_options(default: str) -> Callable[[Command], Command]:
    """--mean and what else says how images become inputs; `default` is said in the help."""

    def add(command: Command) -> Command:
        for option in reversed(_preprocessing(default)):
            command = option(command)
        return command

    return add


def _preprocessing(default: str) -> list[Callable[[Command], Command]]:
    return [
        click.option(
            "--mean",
            type=Numbers(float, zero=True, most=1),
            help=f"Per channel, of pixels in [0, 1] (default: {default}).",
        ),
        click.option("--std", type=Numbers(float, most=1), help="Per channel, like --mean."),
        click.option(
            "--interpolation", type=click.Choice(["nearest", "bilinear", "bicubic", "lanczos"])
        ),
        click.option(
            "--crop-pct",
            type=Finite(0, 1, min_open=True),
            help="Share of the resized image that the crop keeps.",
        ),
        click.option("--crop-mode", type=click.Choice(["center", "squash", "border"])),
    ]


def requested_model(positional: str | None, model: dict[str, Any]) -> ModelRequest | None:
    """The model the command line names; None where it names none.

    Raises click.UsageError where options of a model come without its name.
    """
    name = model.pop("model_name")
    if positional and name and positional != name:
        raise click.UsageError(f"the model is named twice: {positional} and {name}")
    name = positional or name
    given = {key: value for key, value in model.items() if value not in (None, False)}
    if name is None:
        if given:
            options = ", ".join("--" + key.replace("_", "-") for key in given)
            verb = "belongs" if len(given) == 1 else "belong"
            raise click.UsageError(f"{options} {verb} to a model: name it with --model")
        return None
    from vitdeploy.models.request import ModelRequest

    return ModelRequest(name=name, **model)


def workspace(say: Callable[[str], None]) -> Workspace:
    """The workspace of the current folder."""
    from vitdeploy.workspace import open_workspace

    return open_workspace(Path(), say)


json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
output_option = click.option(
    "-o",
    "--out",
    "output",
    type=PATH,
    help="Folder for results (default: the recipe's, 'artifacts').",
)
threads_option = click.option(
    "--threads",
    type=click.IntRange(1, 1024),
    help="CPU threads (default: all this process may use).",
)
