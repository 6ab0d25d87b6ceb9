"""A module for one size becomes one for every size of a range."""

from __future__ import annotations

from itertools import chain
from typing import Any

import torch
from torch import nn

from vitdeploy.artifacts.onnx_model import ResolutionRange
from vitdeploy.errors import ExportError
from vitdeploy.export.dynamic.positions import (
    AbsolutePositions,
    HeldTable,
    RotaryTables,
    are_positions,
)
from vitdeploy.export.dynamic.resampling import KERNELS
from vitdeploy.export.dynamic.sizes import traced_size
from vitdeploy.models.source import SourceModel
from vitdeploy.preprocessing import Size

_EXACTNESS = 1e-4
"""Difference allowed between our positions and the library's, in deviations of theirs."""

_HINT = "export one graph per size with --res"


class DynamicSize(nn.Module):
    """Computes what depends on the size, puts it where the module looks for it, and calls it.

    `held` names the module's tensors, `computed` holds in the same order what
    makes each from (rows, columns).
    """

    def __init__(
        self, wrapped: nn.Module, step: Size, held: list[str], computed: list[nn.Module]
    ) -> None:
        super().__init__()
        self.wrapped = wrapped
        self.positions = nn.ModuleList(computed)
        self._held = held
        self._step = step

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        rows, columns = images.shape[2] // self._step[0], images.shape[3] // self._step[1]
        tensors = {
            name: compute(rows, columns)
            for name, compute in zip(self._held, self.positions, strict=True)
        }
        return torch.func.functional_call(self.wrapped, tensors, (images,))


def make_dynamic(source: SourceModel, sizes: ResolutionRange) -> nn.Module:
    """A module that computes at every size of the range what `source.at(size)` does there.

    What depends on the size is found by comparing the source at two sizes:
    absolute positions (in whichever of the three bicubic ways the library
    resamples them) and rotary tables are computed from the size from then on.
    At the native size absolute positions are the trained ones, bit for bit.

    Raises ExportError, naming it, where anything else depends on the size:
    windows, relative tables, or positions resampled in another way.
    """
    native = source.at((source.native or source).resolution)
    probe_size = traced_size(source, sizes)
    probe = native.at(probe_size)
    grids = (_grid(native.resolution, sizes.step), _grid(probe_size, sizes.step))
    module, other = (_any_size(at.traceable()) for at in (native, probe))
    held: list[str] = []
    computed: list[nn.Module] = []
    for name in _rotary(module):
        tables = _rotary_tables(name, module, other, grids)
        module.set_submodule(name, HeldTable(tables(*grids[1])))
        other.set_submodule(name, HeldTable(tables(*grids[1])))
        held.append(f"{name}.table")
        computed.append(tables)
    tensors, others = _tensors(module), _tensors(other)
    for name in _different(tensors, others):
        held.append(name)
        computed.append(_positions(name, tensors.get(name), others.get(name), grids, source))
    return DynamicSize(module, sizes.step, held, computed).eval()


def _grid(size: Size, step: Size) -> Size:
    return size[0] // step[0], size[1] // step[1]


def _any_size(module: nn.Module) -> Any:
    """Switch off the checks by which embeddings refuse every size but one."""
    for part in module.modules():
        if hasattr(part, "strict_img_size"):
            part.strict_img_size = False  # type: ignore[assignment]
            # Without a size timm's embedding has nothing to check, so nothing is traced.
            part.img_size = None  # type: ignore[assignment]
    return module


def _rotary(module: nn.Module) -> list[str]:
    return [
        name for name, part in module.named_modules() if callable(getattr(part, "get_embed", None))
    ]


def _rotary_tables(
    name: str, module: nn.Module, other: nn.Module, grids: tuple[Size, Size]
) -> RotaryTables:
    """Tables proved equal to the module's own at both sizes."""
    tables = RotaryTables(module.get_submodule(name))
    for at, grid in zip((module, other), grids, strict=True):
        rope: Any = at.get_submodule(name)
        own = rope.get_embed(shape=grid)
        made = tables(*grid)
        if own.shape != made.shape or not torch.allclose(own, made, atol=_EXACTNESS, rtol=0):
            raise ExportError(
                f"the rotary tables of {name} cannot be computed for any size", hint=_HINT
            )
    return tables


def _tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    named = chain(module.named_parameters(), module.named_buffers())
    return {name: tensor.detach() for name, tensor in named}


def _different(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> list[str]:
    return [
        name
        for name in dict.fromkeys((*one, *two))
        if name not in one or name not in two or not torch.equal(one[name], two[name])
    ]


def _positions(
    name: str,
    native: torch.Tensor | None,
    probe: torch.Tensor | None,
    grids: tuple[Size, Size],
    source: SourceModel,
) -> AbsolutePositions:
    """The absolute positions `name`, resampled in the way that turns `native` into `probe`."""
    if native is None or probe is None or not are_positions(native, probe, grids):
        raise ExportError(
            f"{name} of {source.description.architecture} depends on the size, "
            "and is neither absolute nor rotary positions (windows and relative tables "
            "belong to one size)",
            hint=_HINT,
        )
    allowed = _EXACTNESS * float(probe.float().std())
    for kernel in KERNELS:
        positions = AbsolutePositions(native, grids[0], kernel)
        made = positions(*grids[1])
        if made.shape == probe.shape and torch.allclose(made, probe, atol=allowed, rtol=0):
            return positions
    raise ExportError(
        f"{source.description.architecture} carries {name} to other sizes in a way that is "
        "none of " + ", ".join(kernel.name for kernel in KERNELS),
        hint=_HINT,
    )
