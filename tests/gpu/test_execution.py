"""TensorRT and TensorRT-RTX on a GPU: `python -m pytest -m gpu tests/gpu`.

Not one of these has been run yet: where they were written there is no GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_engines import LIMIT, SEVERAL, backend_here, build, distance

from vitdeploy.artifacts.engine import Engine
from vitdeploy.backends.selftest.graph import images
from vitdeploy.backends.selftest.run import selftest
from vitdeploy.backends.tensorrt.options import TensorRTOptions
from vitdeploy.errors import EngineError, InputError

pytestmark = pytest.mark.gpu

Load = Callable[[Engine], Any]


@pytest.fixture(scope="module", params=["tensorrt", "tensorrt-rtx"])
def backend(request: pytest.FixtureRequest) -> Any:
    return backend_here(request.param)


@pytest.fixture(scope="module")
def engine(backend: Any, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return build(backend, tmp_path_factory.mktemp("engine"))


@pytest.fixture
def session(backend: Any, engine: Engine) -> Any:
    loaded = backend.load(engine)
    yield loaded
    loaded.close()


def test_the_selftest_passes(backend: Any) -> None:
    found = selftest(backend)
    print(found.block())  # noqa: T201 - with -s, or where it fails
    assert found.comparison is not None
    assert found.passed


@pytest.mark.parametrize("count", [1, 2, 8, 9, 17])
def test_any_batch_gives_the_logits_of_each_image(count: int, session: Any, tmp_path: Path) -> None:
    pixels = images(count)
    for _ in range(3):
        assert distance(session.run(pixels), tmp_path, pixels) < LIMIT


def test_the_outputs_of_one_run_are_untouched_by_the_next(session: Any) -> None:
    first = session.run(images(4))
    kept = first.copy()
    session.run(-images(8))
    np.testing.assert_array_equal(first, kept)


@pytest.mark.parametrize("count", [1, 8, 17])  # as a CUDA graph, whole, in parts
def test_the_gpus_own_time_is_a_part_of_the_runs(count: int, session: Any) -> None:
    for _ in range(3):
        began = time.perf_counter()
        session.run(images(count))
        whole_ms = 1000 * (time.perf_counter() - began)
        assert 0 < session.device_ms() < whole_ms


def test_an_image_beside_one_that_is_not_a_number_is_not_touched(
    session: Any, tmp_path: Path
) -> None:
    pixels = images(4)
    spoiled = pixels.copy()
    spoiled[1] = np.nan
    given = session.run(spoiled)
    others = [0, 2, 3]
    assert distance(given[others], tmp_path, pixels[others]) < LIMIT


def test_memory_of_any_layout_is_taken(session: Any, tmp_path: Path) -> None:
    pixels = np.ascontiguousarray(images(4).transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    assert distance(session.run(pixels), tmp_path, pixels) < LIMIT
    with pytest.raises(InputError):
        session.run(images(4).astype(np.float64))


def test_sessions_side_by_side_in_threads(backend: Any, engine: Engine, tmp_path: Path) -> None:
    pixels = [images(8) * (1 + index) for index in range(4)]

    def work(batch: np.ndarray) -> np.ndarray:
        session = backend.load(engine)
        try:
            return [session.run(batch) for _ in range(5)][-1]
        finally:
            session.close()

    with ThreadPoolExecutor(4) as pool:
        for batch, given in zip(pixels, pool.map(work, pixels), strict=True):
            assert distance(given, tmp_path, batch) < LIMIT


def test_loading_and_closing_again_and_again(backend: Any, engine: Engine) -> None:
    for _ in range(20):
        session = backend.load(engine)
        session.run(images(1))
        session.close()
    with pytest.raises(EngineError, match="was closed"):
        session.run(images(1))


def test_a_truncated_engine_is_refused_by_the_vendor(backend: Any, tmp_path: Path) -> None:
    whole = build(backend, tmp_path)
    whole.path.write_bytes(whole.path.read_bytes()[:-100])
    with pytest.raises(EngineError) as caught:
        backend.load(whole)
    assert caught.value.hint
    assert "new to vitdeploy" not in caught.value.hint


def test_a_stripped_engine_answers_as_the_whole_one(backend: Any, tmp_path: Path) -> None:
    asked = replace(SEVERAL, strip_weights=True)
    session = backend.load(build(backend, tmp_path, asked))
    pixels = images(4)
    assert distance(session.run(pixels), tmp_path, pixels) < LIMIT
    session.close()


@pytest.mark.parametrize(
    "asked",
    [
        TensorRTOptions(optimization_level=0),
        TensorRTOptions(hardware_compatibility="ampere+"),
        TensorRTOptions(version_compatible=True),
        TensorRTOptions(refittable=True),
    ],
    ids=["level 0", "hardware", "version", "refit"],
)
def test_options_of_the_builder_leave_the_answers(asked: TensorRTOptions, tmp_path: Path) -> None:
    backend = backend_here("tensorrt")
    session = backend.load(build(backend, tmp_path, asked))
    pixels = images(4)
    assert distance(session.run(pixels), tmp_path, pixels) < LIMIT
    session.close()


def test_timings_are_kept_for_the_second_build(tmp_path: Path) -> None:
    backend = backend_here("tensorrt")
    first = build(backend, tmp_path)
    (cache,) = tmp_path.glob("timing-*.cache")
    size_bytes = cache.stat().st_size
    assert size_bytes > 0
    assert first.manifest.device
    build(backend, tmp_path)
    assert cache.stat().st_size == size_bytes, "nothing was left to time"


def test_rtx_keeps_what_it_compiled(tmp_path: Path) -> None:
    backend = backend_here("tensorrt-rtx")
    engine = build(backend, tmp_path)
    for _ in range(2):
        session = backend.load(engine)
        session.run(images(1))
        session.close()
        assert engine.path.with_suffix(".runtime-cache").stat().st_size > 0
