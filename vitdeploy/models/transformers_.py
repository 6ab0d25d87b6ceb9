"""Hugging Face transformers: image classifiers and vision towers."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from huggingface_hub import errors as hub_errors
from torch import nn
from transformers.utils import logging as transformers_logging

from vitdeploy.artifacts.source import SourceDescription, Task
from vitdeploy.errors import ExportError, InputError, first_line
from vitdeploy.models import checkpoint
from vitdeploy.models.headless import replaced, without_classifiers
from vitdeploy.models.image_processor import preprocessing_in
from vitdeploy.models.library import Resized
from vitdeploy.models.plain_attention import use_plain_attention
from vitdeploy.models.transformers_positions import (
    carry_positions,
    remember_windows,
    restore_windows,
)
from vitdeploy.preprocessing import Preprocessing, Size

_PLAIN = "vitdeploy_plain"
_STRICT: type[Exception] = getattr(hub_errors, "StrictDataclassError", ValueError)
"""What configurations of transformers 5 raise for values of another type."""

_SENSELESS = (
    TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RuntimeError,
    AssertionError, _STRICT,
)  # fmt: skip
"""What the library raises for configurations without sense (found by trying values)."""

_HEADS = ("classifier", "cls_classifier", "distillation_classifier")


class VisionModel(nn.Module):
    """A transformers model that takes images and answers one tensor.

    `takes` names the output: 'logits', 'image_embeds', 'pooler_output', or
    'class_token', the first of the last hidden states, where the model has no pooler.
    """

    def __init__(self, wrapped: nn.Module, takes: str) -> None:
        super().__init__()
        self.wrapped = wrapped
        self.takes = takes
        self.folder: Path | None = None
        self.windows = remember_windows(wrapped)

    @property
    def config(self) -> Any:
        """Of the vision part: where text stands beside it, it has its own."""
        config = cast(Any, self.wrapped).config
        return getattr(config, "vision_config", config)

    @property
    def declared_task(self) -> Task | None:
        """What the configuration says that the classifier is trained for."""
        problem = getattr(cast(Any, self.wrapped).config, "problem_type", None)
        return {"multi_label_classification": "multilabel", "regression": "regress"}.get(problem)  # type: ignore[return-value]

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        output = self.wrapped(pixel_values=images)
        if self.takes == "class_token":
            return output.last_hidden_state[:, 0]
        return getattr(output, self.takes)


def build(
    architecture: str, *, model_kwargs: dict[str, Any], pretrained: bool = False
) -> VisionModel:
    """The class called `architecture` with random weights, of `model_kwargs`' "config".

    Raises InputError for a class that is no classifier of images and no vision
    tower, and for a configuration it does not take.
    """
    known, options = _class_of(architecture), dict(model_kwargs)
    config = _configuration(known, options.pop("config", None))
    with _quietly():
        try:
            config._attn_implementation = "eager"
            module = known(config, **options)
        except _SENSELESS as error:
            raise InputError(
                f"transformers cannot create {architecture}: {first_line(error)}",
                hint="check config.json and --model-kwargs",
            ) from error
    return VisionModel(module.eval(), _answer_of(known, module))


def with_weights(
    architecture: str,
    model_kwargs: dict[str, Any],
    state: checkpoint.State,
    *,
    origin: str,
    new_head: bool = False,
) -> VisionModel:
    """`build`, with the weights of `state`, whose names may be of any transformers version.

    With `new_head`, a classifier of another size than the file's is left random.
    Raises InputError listing every key that does not fit.
    """
    known, options = _class_of(architecture), dict(model_kwargs)
    config = _configuration(known, options.pop("config", None))
    with _quietly():
        try:
            module, report = known.from_pretrained(
                None,
                config=config,
                state_dict=dict(state),
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                attn_implementation="eager",
                **options,
            )
        except _SENSELESS as error:
            raise InputError(
                f"transformers cannot load {origin} as {architecture}: {first_line(error)}",
                hint="check that config.json belongs to these weights",
            ) from error
    misshaped = {name: (tuple(a), tuple(b)) for name, a, b in report["mismatched_keys"]}
    if new_head:
        misshaped = {n: s for n, s in misshaped.items() if n.rpartition(".")[0] not in _HEADS}
    checkpoint.require_fit(
        origin,
        missing=set(report["missing_keys"]),
        unexpected={name for name in report["unexpected_keys"] if "pooler." not in name},
        misshaped=misshaped,
    )
    return VisionModel(module.float().eval(), _answer_of(known, module))


def _class_of(architecture: str) -> Any:
    known = getattr(transformers, architecture, None)
    fits = isinstance(known, type) and getattr(known, "main_input_name", "") == "pixel_values"
    ending = architecture.endswith(("Model", "WithProjection", "WithTeacher"))
    if not fits or not (ending or architecture.endswith("ForImageClassification")):
        reason = "is no model of images" if known is not None else "is unknown"
        if fits:
            reason = "neither classifies images nor is a vision tower"
        raise InputError(
            f"{architecture!r} {reason} to transformers {transformers.__version__}",
            hint="name a folder of a ...ForImageClassification model, or of a vision tower "
            "such as ViTModel, Dinov2Model, CLIPVisionModel or SiglipVisionModel",
        )
    return known


def _configuration(known: Any, values: Any) -> Any:
    try:
        if not isinstance(values, dict):
            raise TypeError("it is no JSON object")
        return known.config_class.from_dict(copy.deepcopy(values))
    except _SENSELESS as error:
        raise InputError(
            f"the configuration of {known.__name__} cannot be used: {' '.join(str(error).split())}",
            hint="mend config.json, or --model-kwargs",
        ) from error


def _answer_of(known: Any, module: Any) -> str:
    name = known.__name__
    if "ForImageClassification" in name:
        return "logits"
    if name.endswith("WithProjection"):
        return "image_embeds"
    if getattr(module, "use_head", True) and getattr(module, "pooler", True) is not None:
        return "pooler_output"
    if hasattr(getattr(module, "embeddings", None), "cls_token"):
        return "class_token"
    raise InputError(
        f"this {name} has no pooled output and no class token", hint="use a model with a head"
    )


def recipe_of(
    module: nn.Module, architecture: str, model_kwargs: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    """The class and its configuration themselves."""
    return architecture, model_kwargs


def native_resolution(module: nn.Module) -> Size:
    """(height, width) of the configuration's image size."""
    return _pair(cast(VisionModel, module).config.image_size)


def size_step(module: nn.Module) -> Size | None:
    """The patch size."""
    patch = getattr(cast(VisionModel, module).config, "patch_size", None)
    return None if patch is None else _pair(patch)


def _pair(value: Any) -> Size:
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[1]))


def at_resolution(module: nn.Module, description: SourceDescription, size: Size) -> Resized:
    """A copy whose positions are what the library's own resampling makes of them."""
    native, patch = native_resolution(module), size_step(module) or (1, 1)
    resized = cast(VisionModel, copy.deepcopy(module))
    restore_windows(resized.wrapped, resized.windows)
    methods = carry_positions(resized.wrapped, native, size, patch)
    try:
        with torch.inference_mode():
            resized(torch.zeros(1, description.in_chans, *size))
    except (RuntimeError, ValueError, IndexError, AssertionError, TypeError) as error:
        raise ExportError(
            f"{description.architecture} cannot run at {size[0]}x{size[1]}: {first_line(error)}",
            hint=f"try a multiple of its own size, or export it at {native[0]}x{native[1]}",
        ) from error
    if not methods and any("Rope" in type(part).__name__ for part in resized.modules()):
        methods = "rotary positions computed from the size"
    how = f"transformers {transformers.__version__}: {methods}" if methods else ""
    return Resized(resized, how or "none depend on the resolution")


def traceable(module: nn.Module, size: Size) -> nn.Module:
    """Plain attention, scaled before its first product; positions as they stand."""
    _register_plain_attention()
    plain = cast(VisionModel, copy.deepcopy(module))
    if not _carried(plain) and _square(native_resolution(plain)):
        carry_positions(plain.wrapped, size, size, size_step(plain) or (1, 1))
    for part in plain.modules():
        config = getattr(part, "config", None)
        if getattr(config, "_attn_implementation", None) == "eager":
            config._attn_implementation = _PLAIN  # type: ignore[union-attr]
    return use_plain_attention(plain)


def _carried(module: nn.Module) -> bool:
    return any("interpolate_pos_encoding" in vars(part) for part in module.modules())


def _square(size: Size) -> bool:
    return size[0] == size[1]


def _register_plain_attention() -> None:
    transformers.AttentionInterface.register(_PLAIN, _plain_attention)


def _plain_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """(n, heads, tokens, width) each, to (n, tokens, heads, width).

    As the library's eager form, except that the query is scaled, not the scores:
    large scores overflow float16 before a scale that comes after them.
    """
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = (query * scale) @ key.transpose(2, 3)
    if attention_mask is not None:
        scores = scores + attention_mask
    return (scores.softmax(-1) @ value).transpose(1, 2).contiguous(), None


def preprocessing_of(module: nn.Module) -> Preprocessing | None:
    """What the image processor of the folder does; None where there is none."""
    folder = cast(VisionModel, module).folder
    return None if folder is None else preprocessing_in(folder, native_resolution(module))


def class_count(module: nn.Module) -> int:
    """Width of the classifier; 0 for vision towers."""
    model = cast(VisionModel, module)
    return int(cast(Any, model.wrapped).num_labels) if model.takes == "logits" else 0


def labels_of(module: nn.Module) -> tuple[str, ...]:
    """The configuration's id2label; 'LABEL_0', ... is what the library writes without one."""
    named = cast(Any, cast(VisionModel, module).wrapped).config.id2label
    count = class_count(module)
    labels = tuple(str(named.get(i, named.get(str(i), i))) for i in range(count))
    return labels if len(set(labels)) == count else tuple(str(i) for i in range(count))


def features_of(module: nn.Module) -> nn.Module:
    """What the classifier is given; of a tower, what it answers.

    DeiT with two classifiers: the mean of what both are given, as the mean of
    their logits is the answer.
    """
    model = cast(VisionModel, module)
    names = tuple(name for name, _ in model.wrapped.named_children() if name in _HEADS)
    if model.takes != "logits" or not names:
        return model
    return without_classifiers(model, tuple(f"wrapped.{name}" for name in names))


class _Tokens(nn.Module):
    def __init__(self, model: VisionModel) -> None:
        super().__init__()
        self.wrapped = model.wrapped

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        tokens = cast(Any, self.wrapped)(pixel_values=images).last_hidden_state
        return tokens.flatten(2).transpose(1, 2) if tokens.ndim == 4 else tokens


def tokens_of(module: nn.Module) -> nn.Module:
    """The base model's last hidden states, as the library answers them."""
    model = cast(VisionModel, module)
    base = cast(Any, model.wrapped).base_model
    return _Tokens(cast(VisionModel, replaced(model, "wrapped", base)))


@contextmanager
def _quietly() -> Iterator[None]:
    """No progress bars and tables of keys: what does not fit is raised, not printed."""
    level = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity(transformers_logging.CRITICAL)
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()
