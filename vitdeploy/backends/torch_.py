"""PyTorch, eager and compiled: the source model as a session, the baseline of every comparison."""

from __future__ import annotations

import copy
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from vitdeploy.backends.base import ImageInput, checked_batch
from vitdeploy.errors import MissingDependencyError, first_line
from vitdeploy.models.source import SourceModel
from vitdeploy.progress import SILENT, Progress

Kind = Literal["fp32", "bf16", "fp16"]
_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class TorchSession:
    """Runs the source on the CPU, in float32 or in the half precision `kind`, in inference mode.

    With `compile` by `torch.compile`, which generates code when the first batch
    comes and for each further batch size until sizes are taken as dynamic; it
    raises MissingDependencyError where there is no C++ compiler.
    """

    def __init__(
        self,
        source: SourceModel,
        *,
        threads: int | None = None,
        compile: bool = False,
        kind: Kind = "fp32",
    ) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
        self._takes = ImageInput((source.description.in_chans, *source.resolution))
        answering = source.answering()
        self._type = _TYPES[kind]
        if kind != "fp32":
            # Converted in place, the source would be rounded for all others too.
            answering = copy.deepcopy(answering).to(self._type)
        # A module compiled in place would change the source, which others hold too.
        self._answer = torch.compile(answering) if compile else answering
        self.name = f"PyTorch {'compiled' if compile else 'eager'} {kind}"

    def run(self, batch: NDArray[np.float32]) -> NDArray[np.float32]:
        batch = checked_batch(batch, self._takes)
        # PyTorch warns of memory it may not write to.
        images = torch.from_numpy(batch if batch.flags.writeable else batch.copy())
        images = images.to(self._type)
        with torch.inference_mode():
            try:
                return self._answer(images).float().numpy()
            except RuntimeError as error:
                if "compiler" not in str(error).lower():
                    raise
                raise MissingDependencyError(
                    f"PyTorch cannot compile the model: {first_line(error)}",
                    hint="install a C++ compiler (apt install g++), or compare with eager PyTorch",
                ) from error


def source_sessions(
    source: SourceModel,
    *,
    threads: int | None = None,
    fair: bool = True,
    progress: Progress = SILENT,
) -> list[TorchSession]:
    """Eager float32 first; with `fair` also compiled, and both in bfloat16, as PyTorch can be run.

    Without a C++ compiler the compiled forms are left out, and that is said.
    """
    found = [TorchSession(source, threads=threads)]
    if not fair:
        return found
    kinds: tuple[Kind, ...] = ("fp32", "bf16")
    for kind in kinds:
        if kind != "fp32":
            found.append(TorchSession(source, threads=threads, kind=kind))
        compiled = TorchSession(source, threads=threads, compile=True, kind=kind)
        try:
            progress.note(f"compiling the source ({kind})")
            channels, (height, width) = source.description.in_chans, source.resolution
            compiled.run(np.zeros((1, channels, height, width), np.float32))
        except MissingDependencyError as error:
            progress.note(f"left out: {compiled.name}: {error}")
        else:
            found.append(compiled)
    return found
