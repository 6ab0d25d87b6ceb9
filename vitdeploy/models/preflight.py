"""What a request is refused for before PyTorch and the model's library are imported."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vitdeploy.artifacts.files import reading, require_file
from vitdeploy.models.names import understood
from vitdeploy.models.request import ModelRequest
from vitdeploy.models.size_step import require_multiple, step_told_by
from vitdeploy.preprocessing import Size


def require_present(request: ModelRequest) -> None:
    """Raise InputError for files that are not there, and unless weights are named once.

    A checkpoint named as the model brings its own, a model folder may.
    """
    named = understood(request.name)
    script = Path(named.architecture.rpartition(":")[0])
    if named.library == "python" and script.suffix == ".py":
        require_file(script, what="file of code")
    if request.checkpoint is not None:
        with reading(request.checkpoint, "checkpoint"):
            is_folder = request.checkpoint.is_dir()
        if not is_folder:
            require_file(request.checkpoint, what="checkpoint")
    if named.file is not None:
        require_file(named.file, what="checkpoint")
        request.require_no_weight_source()
    else:
        request.require_one_weight_source(own=named.folder is not None)


def require_sizes(request: ModelRequest, sizes: Sequence[Size], *, option: str = "--res") -> None:
    """Raise InputError where a name, a header or a config.json tells that patches do not tile."""
    step = step_told_by(request) if sizes else None
    for size in sizes:
        require_multiple(size, step, Path(request.name).name, option=option)
