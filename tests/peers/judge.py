"""The child process that runs one file on one runtime over the evaluation images.

    python -m tests.peers.judge SUBJECT_FOLDER RUNTIME FILE THREADS ANSWERS

`ANSWERS` becomes an .npy of (images, classes). Apart from its parent because what another
tool wrote may bring a runtime down.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from tests.peers.sessions import open_session
from tests.peers.subjects import Prepared
from vitdeploy.artifacts.files import atomic_path
from vitdeploy.backends.base import image_input
from vitdeploy.errors import VitDeployError

_BATCH = 50


def main(subject: str, runtime: str, file: str, threads: str, answers: str) -> None:
    prepared = Prepared(Path(subject))
    takes = image_input(prepared.model().description)
    pixels = np.load(prepared.folder / "evaluation.npy", mmap_mode="r")
    try:
        session = open_session(runtime, Path(file), takes, int(threads), runtime)
        logits = np.concatenate(
            [session.run(pixels[i : i + _BATCH]) for i in range(0, len(pixels), _BATCH)]
        )
    except VitDeployError as error:
        sys.exit(str(error))
    with atomic_path(Path(answers)) as temporary:
        np.save(temporary, logits)


if __name__ == "__main__":
    main(*sys.argv[1:])
