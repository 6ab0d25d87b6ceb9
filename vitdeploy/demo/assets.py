"""The embedded model and images: real weights, real photographs of clothes.

Everything lies in `data/` as it was made by `vitdeploy.demo.build`. The images
are unpacked once into the user's cache folder.
"""

from __future__ import annotations

import shutil
import zipfile
import zlib
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

    Unpacked on first use, and again where files were lost or changed since;
    several processes may do so at once. Raises OutputError where the cache
    folder cannot be written.
    """
    root = environment.cache_folder() / f"demo-{file_digest(IMAGES)[:16]}"
    if not _is_whole(root):
        _unpack(root)
    return root / part


def _is_whole(root: Path) -> bool:
    """Whether `root` holds the archive's files, each with its bytes, and no others."""
    with zipfile.ZipFile(IMAGES) as archive:
        expected = {info.filename: info.CRC for info in archive.infolist() if not info.is_dir()}
    try:
        found = {
            path.relative_to(root).as_posix(): zlib.crc32(path.read_bytes())
            for path in root.rglob("*")
            if not path.is_dir()
        }
    except OSError:
        return False
    return found == expected


def _unpack(root: Path) -> None:
    temporary = root.with_name(f"{root.name}.{environment.unique_suffix()}.partial")
    damaged = temporary.with_suffix(".damaged")
    try:
        with zipfile.ZipFile(IMAGES) as archive:
            archive.extractall(temporary)
        # Another process may have been first; only a damaged folder makes way.
        if root.exists() and not _is_whole(root):
            root.rename(damaged)
        try:
            temporary.rename(root)
        except OSError:
            # Its folder is as good as ours.
            if not root.is_dir():
                raise
    except OSError as error:
        raise OutputError(
            f"the demo's images cannot be unpacked to {root}: {error.strerror or error}",
            hint="free some space, or set XDG_CACHE_HOME to a folder you may write to",
        ) from error
    finally:
        for folder in (temporary, damaged):
            shutil.rmtree(folder, ignore_errors=True)
