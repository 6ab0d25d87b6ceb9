"""What several tests of this folder judge."""

from __future__ import annotations

import numpy as np
import pytest
from bench_model import Bench
from patterned import patterned_images, patterned_model


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    folder = tmp_path_factory.mktemp("bench")
    model = patterned_model(folder)
    images = patterned_images(folder / "evaluation", 600, seed=5, labelled=True)
    made = Bench(model, images, np.empty(0, np.float32))
    return Bench(model, images, made.answered(model))
