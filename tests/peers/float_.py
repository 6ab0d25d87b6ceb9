"""No quantizer: the float model through the same columns."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.peers.subjects import Prepared


def copy(prepared: Prepared, folder: Path) -> Path:
    """The float graph as it is."""
    output = folder / "float.onnx"
    shutil.copyfile(prepared.model_path, output)
    return output
