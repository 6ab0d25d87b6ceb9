"""A model up to its classifier, sharing its weights."""

from __future__ import annotations

import copy

from torch import nn


def replaced(module: nn.Module, name: str, part: nn.Module) -> nn.Module:
    """`module` with the submodule called `name` ('heads.head') replaced; nothing is copied.

    The modules on the way to it are copied without their weights, so the
    original stays whole.
    """
    first, _, rest = name.partition(".")
    shell = copy.copy(module)
    shell._modules = dict(module._modules)
    inner = module._modules[first]
    assert inner is not None
    shell._modules[first] = replaced(inner, rest, part) if rest else part
    return shell


def without_classifiers(module: nn.Module, names: tuple[str, ...]) -> nn.Module:
    """`module` answering what its classifiers called `names` are given."""
    for name in names:
        module = replaced(module, name, nn.Identity())
    return module
