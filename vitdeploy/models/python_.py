"""Any Python factory: 'package.module:factory' or 'path/to/file.py:factory'."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import nn

from vitdeploy.artifacts.source import SourceDescription
from vitdeploy.errors import ExportError, InputError, first_line
from vitdeploy.models.factory import call, imported
from vitdeploy.models.headless import without_classifiers
from vitdeploy.models.library import Resized
from vitdeploy.models.plain_attention import use_plain_attention
from vitdeploy.models.resampling import Sizes, resample_state
from vitdeploy.preprocessing import Preprocessing, Size

SIZE_NAMES = ("image_size", "img_size", "input_size")
CLASS_NAMES = ("num_classes", "num_labels", "n_classes", "classes")
CHANNEL_NAMES = ("in_chans", "in_channels", "num_channels", "channels")
"""What factories call the same thing."""


class FactoryModel(nn.Module):
    """A factory's module answering one tensor.

    `takes` says which part of its answer: None for a tensor, an index into a
    tuple, or a key. With `is_tower`, that tensor holds features, not logits.
    """

    def __init__(self, wrapped: nn.Module, size: Size) -> None:
        super().__init__()
        self.wrapped = wrapped
        self.size = size
        self.takes: int | str | None = None
        self.channels = 3
        self.width = 0
        self.is_tower = False

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        answer = self.wrapped(images)
        if self.takes is None:
            return answer
        if isinstance(self.takes, str) and not isinstance(answer, Mapping):
            return getattr(answer, self.takes)
        return answer[self.takes]


def build(
    architecture: str, *, model_kwargs: dict[str, Any], pretrained: bool = False
) -> FactoryModel:
    """Call the factory, which must return an nn.Module of images to (n, classes).

    'num_classes' and 'in_chans' reach it under the name it has for them.
    `pretrained` is passed on where the factory takes it; otherwise what it
    returns is trusted to be trained.

    Raises InputError for an answer that is no such module, for an error of the
    factory's own (shown as its own), and where the image size cannot be known.
    """
    factory = imported(architecture)
    kwargs = _named_as_factory_does(architecture, factory, model_kwargs)
    if pretrained and "pretrained" in inspect.signature(factory).parameters:
        kwargs["pretrained"] = True
    module = call(architecture, factory, kwargs)
    if not isinstance(module, nn.Module):
        raise InputError(
            f"{architecture} returned a {type(module).__name__}, not a torch.nn.Module",
            hint="name a class or function that returns the model",
        )
    model = FactoryModel(module.eval(), _size_of(architecture, factory, module, kwargs))
    channels = next((int(kwargs[name]) for name in CHANNEL_NAMES if name in kwargs), 3)
    model.channels = channels
    _probe(architecture, model)
    return model


def _named_as_factory_does(
    architecture: str, factory: Callable[..., Any], given: dict[str, Any]
) -> dict[str, Any]:
    kwargs = dict(given)
    for names in (CLASS_NAMES, CHANNEL_NAMES):
        for name in names:
            if name in kwargs and name not in _parameters(factory):
                own = next((n for n in names if n in _parameters(factory)), None)
                if own is not None:
                    kwargs[own] = kwargs.pop(name)
    for name in SIZE_NAMES:
        if isinstance(kwargs.get(name), list):
            kwargs[name] = tuple(kwargs[name])  # JSON has no tuples, and factories test for them
    return kwargs


def _parameters(factory: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(factory).parameters


def _size_parameter(factory: Callable[..., Any], kwargs: dict[str, Any]) -> str | None:
    known = _parameters(factory)
    return next((n for n in SIZE_NAMES if n in kwargs), None) or next(
        (n for n in SIZE_NAMES if n in known), None
    )


def _size_of(
    architecture: str, factory: Callable[..., Any], module: nn.Module, kwargs: dict[str, Any]
) -> Size:
    name = _size_parameter(factory, kwargs)
    value = kwargs.get(name) if name is not None else None
    if name is not None and value is None and name in _parameters(factory):
        default = _parameters(factory)[name].default
        value = None if default is inspect.Parameter.empty else default
    if value is None:
        value = next((v for n in SIZE_NAMES if (v := getattr(module, n, None)) is not None), None)
    if isinstance(value, int):
        return (value, value)
    if isinstance(value, tuple | list) and len(value) >= 2:
        return (int(value[-2]), int(value[-1]))
    raise InputError(
        f"the image size of {architecture} is not known",
        hint="let the factory take image_size (and give it with "
        "--model-kwargs '{\"image_size\": 224}'), or set it on the module: model.image_size = 224",
    )


def _probe(architecture: str, model: FactoryModel) -> None:
    """Run the module once, to see what it answers. Raises InputError for what cannot be taken."""
    images = torch.zeros(2, model.channels, *model.size)
    with torch.inference_mode():
        answer = call(architecture, model.wrapped, {}, images)
    model.takes = _taken(architecture, answer)
    with torch.inference_mode():
        taken = model(images)
    if not isinstance(taken, torch.Tensor) or taken.ndim != 2 or taken.shape[0] != 2:
        shape = tuple(taken.shape) if isinstance(taken, torch.Tensor) else type(taken).__name__
        raise InputError(
            f"{architecture} answers {shape} for two images, not (2, classes)",
            hint="wrap the model so that it returns one row of logits (or features) per image",
        )
    model.width = taken.shape[1]


def _taken(architecture: str, answer: Any) -> int | str | None:
    if isinstance(answer, torch.Tensor):
        return None
    if isinstance(answer, Mapping) and "logits" in answer:
        return "logits"
    if isinstance(getattr(answer, "logits", None), torch.Tensor):
        return "logits"
    if isinstance(answer, tuple | list):
        rows = [i for i, part in enumerate(answer) if isinstance(part, torch.Tensor)]
        fitting = [i for i in rows if answer[i].ndim == 2]
        if len(fitting) == 1:
            return fitting[0]
        raise InputError(
            f"{architecture} answers {len(fitting)} tensors of (n, k); which holds the logits "
            "cannot be told",
            hint="wrap the model so that it returns the logits alone",
        )
    keys = f" with {', '.join(map(str, answer))}" if isinstance(answer, Mapping) else ""
    raise InputError(
        f"{architecture} answers a {type(answer).__name__}{keys}, in which there are no logits",
        hint="wrap the model so that it returns the logits alone",
    )


def note_of(module: nn.Module) -> str:
    """Which part of its answer is taken, in words ('' for a plain tensor)."""
    takes = cast(FactoryModel, module).takes
    if takes is None:
        return ""
    return f"output {takes!r} of the model" if isinstance(takes, str) else f"output {takes}"


def recipe_of(
    module: nn.Module, architecture: str, model_kwargs: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    """The factory and its arguments themselves."""
    return architecture, model_kwargs


def native_resolution(module: nn.Module) -> Size:
    """What the factory was given, or has as its default, or its module says."""
    return cast(FactoryModel, module).size


def size_step(module: nn.Module) -> Size | None:
    """The module's patch size, where it says one."""
    wrapped = cast(FactoryModel, module).wrapped
    patch = getattr(wrapped, "patch_size", None)
    patch = getattr(getattr(wrapped, "patch_embed", None), "patch_size", patch)
    if isinstance(patch, int):
        return (patch, patch)
    if isinstance(patch, tuple | list) and len(patch) == 2:
        return (int(patch[0]), int(patch[1]))
    return None


def at_resolution(module: nn.Module, description: SourceDescription, size: Size) -> Resized:
    """The factory called for `size`, the weights carried over by kind (timm's resampling).

    A factory that takes no size gives a model whose weights serve every size,
    or none but its own.
    """
    native = cast(FactoryModel, module)
    factory = imported(description.architecture)
    name = _size_parameter(factory, description.model_kwargs)
    resized, how = copy.deepcopy(native), "none depend on the resolution"
    resized.size = size
    try:
        if name is not None:
            wanted = size[0] if size[0] == size[1] else size
            kwargs = {**description.model_kwargs, name: wanted}
            resized = build(description.architecture, model_kwargs=kwargs)
            resized.is_tower = native.is_tower
            carried, kinds = resample_state(
                native.wrapped.state_dict(), resized.wrapped.state_dict(), Sizes(native.size, size)
            )
            resized.wrapped.load_state_dict(carried)
            how = f"vitdeploy: {kinds}" if kinds else "made by the factory for the resolution"
        with torch.inference_mode():
            resized(torch.zeros(1, description.in_chans, *size))
    except (InputError, RuntimeError, ValueError, AssertionError, IndexError, TypeError) as error:
        raise ExportError(
            f"{description.architecture} cannot run at {size[0]}x{size[1]}: {first_line(error)}",
            hint=f"export it at its own {native.size[0]}x{native.size[1]}, "
            "or let the factory take image_size",
        ) from error
    return Resized(resized, how)


def traceable(module: nn.Module, size: Size) -> nn.Module:
    """PyTorch's own attention modules traced plainly; the rest as it is written."""
    return use_plain_attention(copy.deepcopy(module))


def preprocessing_of(module: nn.Module) -> Preprocessing | None:
    """None: a factory says nothing of it."""
    return None


def class_count(module: nn.Module) -> int:
    """Width of the answer."""
    return cast(FactoryModel, module).width


def labels_of(module: nn.Module) -> tuple[str, ...]:
    """'0', '1', ...: a factory names no classes."""
    return tuple(str(i) for i in range(class_count(module)))


def features_of(module: nn.Module) -> nn.Module:
    """What the last linear layer of as many rows as there are classes is given.

    A tower's answer is its features. Raises InputError where there is no such layer.
    """
    model = cast(FactoryModel, module)
    if model.is_tower:
        return model
    heads = [
        name
        for name, part in model.named_modules()
        if isinstance(part, nn.Linear) and part.out_features == model.width
    ]
    if heads:
        headless = without_classifiers(model, (heads[-1],))
        with torch.inference_mode():
            answer = headless(torch.zeros(1, model.channels, *model.size))
        if answer.ndim == 2 and answer.shape[1] == model.get_submodule(heads[-1]).in_features:
            return headless
    raise InputError(
        "which part of this model is its features cannot be told",
        hint="name a factory that returns the model up to them, with --task features",
    )


def tokens_of(module: nn.Module) -> nn.Module:
    """Not known of a factory."""
    raise InputError(
        "which part of this model is its tokens cannot be told",
        hint="use --output logits or features",
    )
