"""The embedded model and images: real weights, real photographs of clothes.

Everything lies in `data/` as it was made by `vitdeploy.demo.build`. The images
are unpacked once into the user's cache folder.
"""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path
from typing import Literal

from vitdeploy import environment
from vitdeploy.artifacts.files import file_digest
from vitdeploy.errors import OutputError
from vitdeploy.preprocessing import Size

DATA = Path(__file__).parent / "data"
CHECKPOINT = DATA / "demo.safetensors"
IMAGES = DATA / "images.zip"
NATIVE: Size = (128, 128)
RESOLUTION: Size = (192, 192)
"""The demo's target: one and a half times the native size, 145 tokens instead of 65."""

GRAPH = DATA / "demo_192x192_fp32.onnx"

Part = Literal["calibration", "evaluation"]


def reference_path(resolution: Size) -> Path:
    """The source's logits on the evaluation images at the native or the demo's resolution."""
    return DATA / f"reference_{resolution[0]}x{resolution[1]}.npz"


def images_folder(part: Part) -> Path:
    """The folder of calibration or evaluation images, one sub-folder per class.

    Unpacked on first use; several processes may do so at once. Raises
    OutputError where the cache folder cannot be written.
    """
    root = environment.cache_folder() / f"demo-{file_digest(IMAGES)[:16]}"
    if not root.is_dir():
        _unpack(root)
    return root / part


def _unpack(root: Path) -> None:
    temporary = root.with_name(f"{root.name}.{environment.unique_suffix()}.partial")
    try:
        with zipfile.ZipFile(IMAGES) as archive:
            archive.extractall(temporary)
        try:
            temporary.rename(root)
        except OSError:
            # Another process was first; its folder is as good as ours.
            if not root.is_dir():
                raise
    except OSError as error:
        raise OutputError(
            f"the demo's images cannot be unpacked to {root}: {error.strerror or error}",
            hint="free some space, or set XDG_CACHE_HOME to a folder you may write to",
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
