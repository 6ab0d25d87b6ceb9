"""Finding the newest artifact of a model in a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal


def newest(
    folder: Path,
    kind: Literal["onnx", "engine"],
    *,
    name: str | None,
    weights_digest: str | None = None,
    precision: str | None = None,
) -> Path | None:
    """The file written last of those made from this model; None where there is none.

    Models are told apart by the digest of their weights where it is known,
    else by name; without a name every model will do. Sidecars that cannot be
    read are passed over here: reading the artifact itself names what is wrong.
    """
    found = []
    for sidecar in folder.glob("*.json") if folder.is_dir() else ():
        file = sidecar.with_suffix(f".{kind}")
        description = _description(sidecar, kind)
        if description is None or not file.is_file():
            continue
        source = description["source"]
        if weights_digest is not None:
            same = source.get("weights_digest") == weights_digest
        else:
            same = name in (None, source.get("name"))
        if same and precision in (None, description.get("precision")):
            found.append(file)
    return max(found, key=lambda file: file.stat().st_mtime_ns, default=None)


def _description(sidecar: Path, kind: str) -> dict[str, Any] | None:
    try:
        content = json.loads(sidecar.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(content, dict) or content.get("kind") != kind:
        return None
    description = content.get("model" if kind == "engine" else "description")
    if not isinstance(description, dict) or not isinstance(description.get("source"), dict):
        return None
    return description
