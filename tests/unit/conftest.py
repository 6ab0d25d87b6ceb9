"""What tests of every part share."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _operators_read_once() -> Iterator[None]:
    """PyTorch's exporter parses the source of its 500 operators for every graph, always alike.

    That is a quarter of a small export; tests make hundreds.
    """
    if "torch" not in sys.modules:
        yield
        return
    from torch.onnx._internal.exporter import _registration

    library = _registration.onnxscript_apis
    with pytest.MonkeyPatch.context() as patch:
        read_once = functools.cache(library.get_torchlib_ops)
        patch.setattr(library, "get_torchlib_ops", read_once)
        yield
