"""vitdeploy, as `build-engine --int8` calls it."""

from __future__ import annotations

from pathlib import Path

from tests.peers.subjects import Prepared
from vitdeploy.calibration.precision import PrecisionRequest, with_precision


def quantize(prepared: Prepared, folder: Path) -> Path:
    """INT8 from the image files themselves, decoding and the guard of answers included.

    No cache is given: everything is gathered anew. Raises GateFailedError
    where the answers are lost.
    """
    request = PrecisionRequest(precision="int8", calibration=prepared.calibration())
    return with_precision(prepared.model(), request, folder).path
