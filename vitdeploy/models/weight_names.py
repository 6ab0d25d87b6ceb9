"""Names of weights in a checkpoint, as the module has them."""

from __future__ import annotations

import torch

from vitdeploy.errors import InputError

State = dict[str, torch.Tensor]

_ANYWHERE = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""Left inside a name by torch.compile, FSDP and activation checkpointing."""

_LEADING = ("module", "model", "net", "ema", "ema_model", "model_ema", "backbone")
"""Left at its beginning by DataParallel, Lightning and averaging."""

_AVERAGED = ("ema", "ema_model", "model_ema", "averaged_model", "teacher")


def as_in_module(state: State, own: set[str]) -> tuple[State, str]:
    """`state` under the module's names `own`, and what was left aside, in words ('').

    Wrappers leave prefixes in any nesting ('module.model._orig_mod.blocks.0'),
    also in part of a file. Where several prefixes lead to a whole model, the
    averaged one is taken. Tensors beside a whole model (the loss, an averager's
    counter) are left aside.

    Raises InputError where several whole models stand in the file and none is
    an average.
    """
    cleaned = {_clean(name): tensor for name, tensor in state.items()}
    prefixes = _whole_models(cleaned.keys(), own)
    if not prefixes:
        return _stripped_one_by_one(cleaned, own), ""
    prefix = _chosen(prefixes)
    inside = {n.removeprefix(prefix): t for n, t in cleaned.items() if n.startswith(prefix)}
    if not prefix:
        return inside, ""
    aside = len(cleaned) - len(inside)
    notes = [f"under {prefix!r}"] if len(prefixes) > 1 else []
    notes += [f"{aside} tensors beside the model left aside"] if aside else []
    return inside, ", ".join(notes)


def without_wrappers(state: State) -> State:
    """`state` without the prefixes that every name shares, for names no module is asked about."""
    cleaned = {_clean(name): tensor for name, tensor in state.items()}
    for _ in range(4):
        first = {name.partition(".")[0] for name in cleaned}
        if len(first) != 1 or not first <= set(_LEADING):
            break
        cleaned = {name.partition(".")[2]: tensor for name, tensor in cleaned.items()}
    return cleaned


def _clean(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _ANYWHERE)


def _whole_models(names: object, own: set[str]) -> list[str]:
    """Prefixes under which every one of the module's names stands."""
    known = set(names)  # type: ignore[call-overload]
    if not own:
        return []
    first = min(own)
    starts = {name[: -len(first)] for name in known if name == first or name.endswith("." + first)}
    return sorted(start for start in starts if all(start + name in known for name in own))


def _chosen(prefixes: list[str]) -> str:
    averaged = [p for p in prefixes if set(p.split(".")) & set(_AVERAGED)]
    candidates = averaged or prefixes
    if len(candidates) > 1:
        raise InputError(
            f"the checkpoint holds several whole models, under {', '.join(map(repr, candidates))}",
            hint="save the one to deploy alone",
        )
    return candidates[0]


def _stripped_one_by_one(state: State, own: set[str]) -> State:
    renamed: State = {}
    for name, tensor in state.items():
        stripped = name
        while stripped not in own and stripped.partition(".")[0] in _LEADING:
            stripped = stripped.partition(".")[2]
        if stripped in renamed:
            raise InputError(
                f"the checkpoint holds {stripped} twice, under different prefixes",
                hint="save the model to deploy alone",
            )
        renamed[stripped] = tensor
    return renamed
