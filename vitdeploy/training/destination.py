"""Where a training run is written, and what it may replace there."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from vitdeploy.artifacts.files import require_writable
from vitdeploy.errors import InputError

_REMEDY = "give a file in a folder you may write to with --out"


@dataclass(frozen=True)
class Destination:
    """The checkpoint, and beside it the state after each epoch, '<checkpoint>.resume'.

    `resume` goes on from the state; `overwrite` allows to replace a checkpoint.
    """

    checkpoint: Path
    resume: bool = False
    overwrite: bool = False

    @property
    def state(self) -> Path:
        return self.checkpoint.with_name(self.checkpoint.name + ".resume")

    def require_usable(self) -> None:
        """Raise InputError, before hours go into training, where the end of it could not be kept.

        That is: another kind of file is named, a file would be lost that nobody
        gave up, or the folder takes no new file.
        """
        if self.checkpoint.suffix != ".safetensors":
            raise InputError(
                f"the checkpoint {self.checkpoint} does not end in .safetensors",
                hint=f"give --out {self.checkpoint.name or 'model'}.safetensors",
            )
        # A folder or name that cannot even be looked at is left to the attempt to write there.
        taken, begun = os.path.lexists(self.checkpoint), os.path.lexists(self.state)
        if taken and not self.overwrite:
            raise InputError(
                f"{self.checkpoint} exists already",
                hint="give another name, or --overwrite to replace it when training has ended",
            )
        if begun and not self.resume:
            raise InputError(
                f"a run that was not finished is kept in {self.state}",
                hint="go on with --resume, or delete that file to begin anew",
            )
        if self.resume and not begun:
            raise InputError(
                f"there is nothing to resume at {self.state}", hint="start without --resume"
            )
        require_writable(self.checkpoint, remedy=_REMEDY)
        require_writable(self.state, remedy=_REMEDY)
