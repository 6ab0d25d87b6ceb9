"""torchvision: its ViT, Swin and MaxViT classifiers, and others by their name."""

from __future__ import annotations

import copy
import math
from difflib import get_close_matches
from types import MethodType
from typing import Any, cast

import torch
import torchvision
from torch import nn
from torch.nn import functional
from torchvision.models.vision_transformer import VisionTransformer

from vitdeploy.artifacts.source import SourceDescription
from vitdeploy.errors import ExportError, InputError, MissingDependencyError, first_line
from vitdeploy.models.headless import without_classifiers
from vitdeploy.models.hub import fetched_by_torch
from vitdeploy.models.library import Resized
from vitdeploy.models.plain_attention import use_plain_attention
from vitdeploy.preprocessing import Preprocessing, Size

_WEIGHTS = "_vitdeploy_weights"
"""Attribute of a built module: the weights entry that says preprocessing and labels."""

_HEADS = ("heads.head", "head", "classifier.5", "fc")
"""ViT, Swin, MaxViT, and the name most convolutional ones use."""


def names() -> tuple[str, ...]:
    """torchvision's image classifiers."""
    return tuple(torchvision.models.list_models(module=torchvision.models))


def build(
    architecture: str, *, model_kwargs: dict[str, Any], pretrained: bool = False
) -> nn.Module:
    """Create a torchvision classifier in evaluation mode.

    'vit_b_16', or 'vit_b_16.IMAGENET1K_SWAG_E2E_V1' with an entry of its
    weights; the default entry otherwise. Pretrained weights with another
    number of classes keep everything but the head, which is then random.

    Raises InputError for an unknown name, entry or argument,
    MissingDependencyError where pretrained weights cannot be fetched.
    """
    name, _, tag = architecture.partition(".")
    require_known(name)
    kwargs = dict(model_kwargs)
    if kwargs.pop("in_chans", 3) != 3:
        raise InputError(
            f"torchvision's {name} takes three channels", hint="use timm's ViTs for --in-chans"
        )
    entry = _entry(name, tag)
    state = _fetched(name, entry) if pretrained else None
    if pretrained and name.startswith("vit"):
        kwargs.setdefault("image_size", entry.meta["min_size"][0])
    try:
        module = torchvision.models.get_model(name, weights=None, **kwargs).eval()
    except (TypeError, ValueError, AssertionError, RuntimeError) as error:
        raise InputError(
            f"torchvision cannot create {name}: {first_line(error)}",
            hint="check --model-kwargs and --num-classes",
        ) from error
    if state is not None:
        _load(module, state, name)
    setattr(module, _WEIGHTS, entry)
    if isinstance(module, torchvision.models.MaxVit):
        cast(Any, module).input_size = tuple(kwargs.get("input_size", (224, 224)))
    return module


def require_known(name: str) -> None:
    """Raise InputError, suggesting near names, unless torchvision has the classifier."""
    if name in names():
        return
    near = get_close_matches(name, names(), n=3, cutoff=0.6)
    hint = f"did you mean {', '.join('torchvision:' + n for n in near)}?" if near else None
    raise InputError(
        f"torchvision has no classifier called {name!r}",
        hint=hint or "torchvision.models.list_models(module=torchvision.models) lists them",
    )


def _entry(name: str, tag: str) -> Any:
    entries = torchvision.models.get_model_weights(name)
    known = [entry.name for entry in entries]
    if tag and tag not in known:
        raise InputError(
            f"torchvision has no weights {tag!r} of {name}", hint=f"it has {', '.join(known)}"
        )
    return entries[tag] if tag else cast(Any, entries).DEFAULT


def _fetched(name: str, entry: Any) -> dict[str, torch.Tensor]:
    try:
        with fetched_by_torch(entry.url):
            return dict(entry.get_state_dict(progress=False, check_hash=True))
    except (OSError, RuntimeError) as error:
        raise MissingDependencyError(
            f"the pretrained weights of {name} cannot be fetched: {first_line(error)}",
            hint="go online once, or give a local file with --checkpoint",
        ) from error


def _load(module: nn.Module, state: dict[str, torch.Tensor], name: str) -> None:
    own = module.state_dict()
    other = {key for key, value in state.items() if key in own and own[key].shape != value.shape}
    strange = {key for key in other if key.rpartition(".")[0] not in _HEADS}
    if strange or state.keys() != own.keys():
        raise InputError(
            f"the pretrained weights of {name} do not fit: {', '.join(sorted(strange)[:3])}",
            hint="leave arguments that change the architecture out; another size is given by --res",
        )
    module.load_state_dict({key: own[key] if key in other else state[key] for key in own})


def recipe_of(
    module: nn.Module, architecture: str, model_kwargs: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    """The name, and the native size, which the pretrained entry may have set."""
    if isinstance(module, VisionTransformer):
        return architecture, {**model_kwargs, "image_size": module.image_size}
    return architecture, model_kwargs


def native_resolution(module: nn.Module) -> Size:
    """Of a ViT its own; of the others what their weights were evaluated at."""
    if isinstance(module, VisionTransformer):
        return (module.image_size, module.image_size)
    built_for = getattr(module, "input_size", None)
    if built_for is not None:
        return (int(built_for[0]), int(built_for[1]))
    crop = int(_transforms(module).crop_size[0])
    return (crop, crop)


def size_step(module: nn.Module) -> Size | None:
    """The patch size of ViT and Swin."""
    if isinstance(module, VisionTransformer):
        return (module.patch_size, module.patch_size)
    if isinstance(module, torchvision.models.SwinTransformer):
        stride = cast(Any, module.features)[0][0].stride
        return (int(stride[0]), int(stride[1]))
    return None


def at_resolution(module: nn.Module, description: SourceDescription, size: Size) -> Resized:
    """ViT: positions resampled as `interpolate_embeddings` does, aligned corners.

    MaxViT is created again for `size`, a square of which its windows must
    divide every stage; Swin and convolutional models have nothing that depends on the size.
    """
    native = native_resolution(module)
    how = "none depend on the resolution"
    if isinstance(module, torchvision.models.MaxVit):
        resized = _created_for(module, description, size)
    else:
        resized = copy.deepcopy(module)
    if isinstance(resized, VisionTransformer):
        resized.encoder.pos_embedding = _resampled(resized, native, size)
        cast(Any, resized)._process_input = MethodType(_any_size, resized)
        how = "torchvision: tokens, bicubic with aligned corners"
    try:
        with torch.inference_mode():
            resized(torch.zeros(1, description.in_chans, *size))
    except (AssertionError, RuntimeError, ValueError, IndexError) as error:
        raise _stuck(description.architecture, native, size, error) from error
    return Resized(resized, how)


def _created_for(module: nn.Module, description: SourceDescription, size: Size) -> nn.Module:
    kwargs = {**description.model_kwargs, "input_size": size}
    try:
        resized = build(description.architecture, model_kwargs=kwargs)
    except InputError as error:
        native = native_resolution(module)
        raise _stuck(description.architecture, native, size, error) from error
    resized.load_state_dict(module.state_dict())
    return resized


def _stuck(architecture: str, native: Size, size: Size, error: Exception) -> ExportError:
    own = "x".join(map(str, native))
    return ExportError(
        f"torchvision's {architecture} cannot run at {size[0]}x{size[1]}: {first_line(error)}",
        hint=f"try square multiples of its own {own}, or timm's counterpart, whose windows adapt",
    )


def _resampled(module: VisionTransformer, native: Size, size: Size) -> nn.Parameter:
    """`interpolate_embeddings` for grids that need not be square.

    (1, 1 + rows * columns, width): the class token's row is kept.
    """
    patch = module.patch_size
    table = module.encoder.pos_embedding.detach()
    old = (native[0] // patch, native[1] // patch)
    new = (size[0] // patch, size[1] // patch)
    if old == new:
        return nn.Parameter(table)
    token, cells = table[:, :1], table[:, 1:]
    assert cells.shape[1] == math.prod(old)
    image = cells.permute(0, 2, 1).reshape(1, -1, *old)
    image = functional.interpolate(image, size=new, mode="bicubic", align_corners=True)
    return nn.Parameter(torch.cat([token, image.flatten(2).permute(0, 2, 1)], dim=1))


def _any_size(module: VisionTransformer, images: torch.Tensor) -> torch.Tensor:
    """torchvision's `_process_input` less its assertion that images are square."""
    return module.conv_proj(images).flatten(2).permute(0, 2, 1)


def traceable(module: nn.Module, size: Size) -> nn.Module:
    """Attention traced plainly, the query scaled first."""
    plain = copy.deepcopy(module)
    if isinstance(plain, VisionTransformer):
        cast(Any, plain)._process_input = MethodType(_any_size, plain)
    return use_plain_attention(plain)


def _transforms(module: nn.Module) -> Any:
    return getattr(module, _WEIGHTS).transforms()


def preprocessing_of(module: nn.Module) -> Preprocessing:
    """The transforms of the weights entry: shorter side, center crop, mean and std."""
    transforms = _transforms(module)
    crop, resized = int(transforms.crop_size[0]), int(transforms.resize_size[0])
    share = crop / resized
    if math.floor(crop / share) != resized:
        share = math.nextafter(share, 0.0)
    return Preprocessing(
        mean=tuple(transforms.mean),
        std=tuple(transforms.std),
        interpolation=transforms.interpolation.value,
        crop_pct=share,
        crop_mode="center",
    )


def _head(module: nn.Module) -> str:
    for name in _HEADS:
        try:
            if isinstance(module.get_submodule(name), nn.Linear):
                return name
        except AttributeError:
            continue
    linear = [name for name, part in module.named_modules() if isinstance(part, nn.Linear)]
    if not linear:
        raise InputError(
            f"torchvision's {type(module).__name__} has no linear classifier",
            hint="use one of its transformers: vit_b_16, swin_t, swin_v2_t, maxvit_t",
        )
    return linear[-1]


def class_count(module: nn.Module) -> int:
    """Width of the classifier."""
    return int(cast(Any, module.get_submodule(_head(module))).out_features)


def labels_of(module: nn.Module) -> tuple[str, ...]:
    """The categories of the weights entry, where the head has as many; else '0', '1', ..."""
    categories = getattr(module, _WEIGHTS).meta["categories"]
    count = class_count(module)
    return tuple(categories) if len(categories) == count else tuple(map(str, range(count)))


def features_of(module: nn.Module) -> nn.Module:
    """What the classifier is given."""
    return without_classifiers(module, (_head(module),))


class _Tokens(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.wrapped = module

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        model = cast(Any, self.wrapped)
        if isinstance(model, VisionTransformer):
            tokens = model._process_input(images)
            classes = model.class_token.expand(tokens.shape[0], -1, -1)
            return model.encoder(torch.cat([classes, tokens], dim=1))
        if isinstance(model, torchvision.models.SwinTransformer):
            return model.norm(model.features(images)).flatten(1, 2)
        grid = model.stem(images)
        for block in model.blocks:
            grid = block(grid)
        return grid.flatten(2).transpose(1, 2)


def tokens_of(module: nn.Module) -> nn.Module:
    """ViT's and Swin's normalized tokens; MaxViT's last grid, which it normalizes pooled."""
    known = (VisionTransformer, torchvision.models.SwinTransformer, torchvision.models.MaxVit)
    if not isinstance(module, known):
        raise InputError(
            f"torchvision's {type(module).__name__} has no tokens", hint="take --output features"
        )
    return _Tokens(module)
