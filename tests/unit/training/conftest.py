from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from training_shapes import write_folder

from vitdeploy.images import ImageSet


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> ImageSet:
    return write_folder(tmp_path_factory.mktemp("train"), 48, seed=0)


@pytest.fixture(scope="session")
def held_out(tmp_path_factory: pytest.TempPathFactory) -> ImageSet:
    return write_folder(tmp_path_factory.mktemp("held-out"), 24, seed=1)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
