"""Whether an artifact comes from the model a request names. No weights are loaded to tell."""

from __future__ import annotations

from vitdeploy.artifacts.source import SourceDescription
from vitdeploy.errors import InputError
from vitdeploy.models.names import Named, understood
from vitdeploy.models.request import ModelRequest


def seems_from(request: ModelRequest, source: SourceDescription) -> bool:
    """Whether `source` is what `request` loads, as far as names and the weights' file tell.

    The artifact may carry a name of its own (`export --name`): library and
    architecture, or the model's folder, then stand for it.
    """
    try:
        named = understood(request.name)
    except InputError:  # nothing of it is here, as on a device that only runs engines
        return source.name == request.name
    if not _weights_agree(named, request, source):
        return False
    from_folder = named.folder is not None or named.repository is not None
    same = (source.library, source.architecture) == (named.library, named.architecture)
    return source.name == request.name or from_folder or same


def _weights_agree(named: Named, request: ModelRequest, source: SourceDescription) -> bool:
    """Whether `source.origin` may be where the request's weights are, as `opened` writes it."""
    place = named.repository or ("" if named.folder is None else named.folder.name)
    if request.checkpoint is not None:
        file = request.checkpoint.name
        files = (file, f"{place}/{file}")
    elif place:
        return source.origin.startswith(f"{place}/")
    elif request.pretrained:
        files = ("pretrained weights",)
    else:
        return True
    # What was done to the weights follows: 'a.pth (its ...)', 'a.pth; ...'.
    return f"{source.origin} ".startswith(tuple(file + end for file in files for end in " ;"))
