"""Statistics are found again by what decides them, and only whole."""

from __future__ import annotations

import io
import json
import logging
import os
import shutil
import subprocess
import sys
import textwrap
import time
import zipfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from PIL import Image

from vitdeploy.artifacts.onnx_model import OnnxModel
from vitdeploy.calibration.cache import CacheKey, StatisticsCache, cache_key
from vitdeploy.calibration.image_set import CalibrationSet, choose
from vitdeploy.errors import CalibrationError
from vitdeploy.images import ImageSet, scan

ARRAYS = {
    "absmax": np.array([1.5, 2.5], np.float32),
    "blocks.0/attn: histogram": np.arange(200, dtype=np.int64),
    "file": np.array(3.0),
    "empty": np.zeros((0, 4), np.float16),
}
KEY = CacheKey("graph", "preprocessing", "images", (32, 48), "absmax", (("bins", 8192),))


def same(found: dict[str, NDArray] | None, expected: dict[str, NDArray]) -> bool:
    return (
        found is not None
        and list(found) == list(expected)
        and all(
            found[name].dtype == array.dtype
            and found[name].shape == array.shape
            and np.array_equal(found[name], array)
            for name, array in expected.items()
        )
    )


class TestWhole:
    def test_what_was_put_is_found_in_every_bit(self, tmp_path: Path) -> None:
        cache = StatisticsCache(tmp_path / "not" / "yet" / "there")
        assert cache.get(KEY) is None
        assert cache.put(KEY, ARRAYS)
        assert same(StatisticsCache(tmp_path / "not" / "yet" / "there").get(KEY), ARRAYS)

    @given(
        arrays=st.dictionaries(
            st.text(max_size=8),
            st.one_of(
                hnp.arrays(np.int64, hnp.array_shapes(min_dims=0, max_side=4)),
                hnp.arrays(
                    np.float32,
                    hnp.array_shapes(min_dims=0, max_side=4),
                    elements=st.floats(-100, 100, width=32),
                ),
            ),
            max_size=4,
        )
    )
    def test_any_names_and_shapes(
        self, arrays: dict[str, NDArray], tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        cache = StatisticsCache(tmp_path_factory.mktemp("cache"))
        cache.put(KEY, arrays)
        assert same(cache.get(KEY), arrays)

    def test_the_last_put_counts(self, tmp_path: Path) -> None:
        cache = StatisticsCache(tmp_path)
        cache.put(KEY, ARRAYS)
        cache.put(KEY, {"absmax": np.ones(3)})
        assert same(cache.get(KEY), {"absmax": np.ones(3)})
        assert len(list(tmp_path.iterdir())) == 1

    @pytest.mark.parametrize("value", [np.nan, np.inf])
    def test_what_is_not_finite_is_refused(self, value: float, tmp_path: Path) -> None:
        cache = StatisticsCache(tmp_path)
        with pytest.raises(CalibrationError, match="'absmax' are not finite"):
            cache.put(KEY, {"absmax": np.array([1, value])})
        with pytest.raises(CalibrationError, match="numbers"):
            cache.put(KEY, {"names": np.array(["a"])})
        assert not list(tmp_path.iterdir())


class TestStale:
    """Everything that decides the statistics makes another key."""

    def test_every_part_of_the_key_counts(self, tmp_path: Path) -> None:
        cache = StatisticsCache(tmp_path)
        cache.put(KEY, ARRAYS)
        others = [
            replace(KEY, graph_digest="other"),
            replace(KEY, preprocessing_digest="other"),
            replace(KEY, images_digest="other"),
            replace(KEY, resolution=(48, 32)),
            replace(KEY, method="histogram"),
            replace(KEY, parameters=(("bins", 4096),)),
            replace(KEY, parameters=(("bins", "8192"),)),
            replace(KEY, parameters=()),
            replace(KEY, decoder="0"),
            replace(KEY, schema_version=0),
        ]
        assert len({key.digest for key in (KEY, *others)}) == len(others) + 1
        assert all(cache.get(key) is None for key in others)
        assert cache.get(replace(KEY)) is not None

    def test_the_same_path_with_other_bytes(
        self, model: OnnxModel, images: ImageSet, tmp_path: Path
    ) -> None:
        folder = tmp_path / "images"
        shutil.copytree(images.root, folder)
        before = cache_key(model, choose(scan(folder), count=40), "absmax")
        assert cache_key(model, choose(scan(folder), count=40), "absmax") == before
        path = choose(scan(folder), count=40).images.items[7].path
        Image.fromarray(np.zeros((32, 48, 3), np.uint8)).save(path)
        assert cache_key(model, choose(scan(folder), count=40), "absmax").digest != before.digest

    def test_the_same_images_elsewhere_and_in_another_order_are_the_same(
        self, model: OnnxModel, images: ImageSet, tmp_path: Path
    ) -> None:
        shutil.copytree(images.root, tmp_path / "copy")
        one = cache_key(model, choose(images, count=40, seed=0), "absmax")
        other = cache_key(model, choose(scan(tmp_path / "copy"), count=40, seed=1), "absmax")
        assert one == other

    def test_the_same_weights_with_other_interpolation(
        self, model: OnnxModel, calibration: CalibrationSet
    ) -> None:
        source = model.description.source
        preprocessing = replace(source.preprocessing, interpolation="nearest")
        assert preprocessing != source.preprocessing
        description = replace(
            model.description, source=replace(source, preprocessing=preprocessing)
        )
        other = replace(model, description=description)
        assert (
            cache_key(other, calibration, "a").digest != cache_key(model, calibration, "a").digest
        )

    def test_another_size_graph_and_method(
        self, model: OnnxModel, calibration: CalibrationSet
    ) -> None:
        sized = replace(model, description=replace(model.description, resolution=(48, 48)))
        keys = [
            cache_key(model, calibration, "absmax"),
            cache_key(sized, calibration, "absmax"),
            cache_key(replace(model, digest="0"), calibration, "absmax"),
            cache_key(model, calibration, "histogram"),
            cache_key(model, calibration, "absmax", {"tensors": ("a", "b")}),
            cache_key(model, calibration, "absmax", {"tensors": ("a",)}),
        ]
        assert len({key.digest for key in keys}) == len(keys)
        given_otherwise = cache_key(model, calibration, "absmax", {"b": 1, "a": 2})
        assert given_otherwise == cache_key(model, calibration, "absmax", {"a": 2, "b": 1})

    def test_an_entry_under_anothers_name_is_not_used(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        cache, other = StatisticsCache(tmp_path), replace(KEY, method="histogram")
        cache.put(KEY, ARRAYS)
        shutil.copy(cache.path(KEY), cache.path(other))
        assert cache.get(other) is None
        assert "not used" in caplog.text


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    cache = StatisticsCache(tmp_path_factory.mktemp("whole"))
    cache.put(KEY, ARRAYS)
    return cache.path(KEY).read_bytes()


class TestDamaged:
    def test_a_flipped_bit_is_a_miss_or_changes_nothing(self, whole: bytes, tmp_path: Path) -> None:
        """Every byte of the file in turn; some (dates in the archive) hold nothing of ours."""
        cache = StatisticsCache(tmp_path)
        missed = 0
        for place in range(len(whole)):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << (place % 8)
            cache.path(KEY).write_bytes(damaged)
            found = cache.get(KEY)
            missed += found is None
            assert found is None or same(found, ARRAYS)
        assert missed > len(whole) / 2

    def test_a_value_changed_with_its_checksums_is_a_miss(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A whole archive, whose numbers are not those that were put."""
        cache = StatisticsCache(tmp_path)
        cache.put(KEY, ARRAYS)
        with np.load(cache.path(KEY)) as content:
            arrays = dict(content)
        arrays["array_0"][1] += 1
        with cache.path(KEY).open("wb") as stream:
            np.savez(stream, **arrays)
        assert cache.get(KEY) is None
        assert "does not hold what it should" in caplog.text

    @pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.9, 0.999])
    def test_half_written_is_a_miss(
        self, share: float, whole: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        cache = StatisticsCache(tmp_path)
        cache.path(KEY).write_bytes(whole[: int(len(whole) * share)])
        with caplog.at_level(logging.WARNING):
            assert cache.get(KEY) is None
        assert "damaged and not used" in caplog.text
        assert cache.put(KEY, ARRAYS)
        assert same(cache.get(KEY), ARRAYS)

    @pytest.mark.parametrize("foreign", ["text", "npz", "pickle", "archive", "folder"])
    def test_foreign_files_are_misses(self, foreign: str, tmp_path: Path) -> None:
        cache = StatisticsCache(tmp_path)
        path = cache.path(KEY)
        buffer = io.BytesIO()
        if foreign == "folder":
            path.mkdir()
        elif foreign == "npz":
            np.savez(buffer, a=np.ones(3))
        elif foreign == "pickle":
            np.savez(buffer, header=np.array([{}], object))
        elif foreign == "archive":
            with zipfile.ZipFile(buffer, "w") as archive:
                archive.writestr("header.npy", json.dumps({"names": ["a"]}))
        if not path.is_dir():
            path.write_bytes(buffer.getvalue() or b"text")
        assert cache.get(KEY) is None

    def test_a_folder_that_takes_nothing_stops_nothing(
        self, tmp_path: Path, modes_bind: None, caplog: pytest.LogCaptureFixture
    ) -> None:
        tmp_path.chmod(0o500)
        try:
            assert not StatisticsCache(tmp_path).put(KEY, ARRAYS)
        finally:
            tmp_path.chmod(0o700)
        assert "not kept" in caplog.text
        assert not list(tmp_path.iterdir())


class TestRoom:
    def test_the_oldest_make_way(self, tmp_path: Path) -> None:
        cache = StatisticsCache(tmp_path, kept=3)
        keys = [replace(KEY, method=str(i)) for i in range(5)]
        for age, key in zip((50, 40, 30, 20, 10), keys, strict=True):
            cache.put(key, ARRAYS)
            os.utime(cache.path(key), (time.time() - age,) * 2)
        cache.put(keys[4], ARRAYS)
        assert [cache.get(key) is not None for key in keys] == [False, False, True, True, True]

    def test_what_was_never_finished_goes_after_a_day(self, tmp_path: Path) -> None:
        old, new = (tmp_path / f".statistics-{name}.partial.npz" for name in ("old", "new"))
        other = tmp_path / ".other.partial.npz"
        for path in (old, new, other):
            path.write_bytes(b"half")
        for path in (old, other):
            os.utime(path, (time.time() - 2 * 86_400,) * 2)
        StatisticsCache(tmp_path).put(KEY, ARRAYS)
        assert not old.exists()
        assert new.exists()
        assert other.exists()


HAMMER = """
    import sys, time
    from pathlib import Path
    import numpy as np
    from vitdeploy.calibration.cache import CacheKey, StatisticsCache

    folder, own = Path(sys.argv[1]), int(sys.argv[2])
    cache = StatisticsCache(folder, kept=2)
    keys = [CacheKey("g", "p", "i", (1, 1), str(i)) for i in range(3)]
    (folder / f"ready-{own}").touch()
    while len(list(folder.glob("ready-*"))) < 2:
        time.sleep(0.001)
    hits = 0
    end = time.monotonic() + 3
    while time.monotonic() < end:
        for key in keys:
            # One writer's arrays are all of one number: a mixture would show.
            value = np.random.default_rng().integers(0, 1000)
            assert cache.put(key, {"a": np.full(50_000, value), "b": np.full(9, value)})
            found = cache.get(key)
            if found is None:
                continue
            hits += 1
            values = np.unique(np.concatenate(list(found.values())))
            assert len(values) == 1 and len(found["a"]) == 50_000
    print(hits)
"""


def test_two_processes_never_spoil_an_entry(tmp_path: Path) -> None:
    """Both write, read and make room in the same folder for three seconds."""
    code = textwrap.dedent(HAMMER)
    command = [sys.executable, "-W", "error", "-c", code, str(tmp_path)]
    root = str(Path(__file__).parents[3])
    environment = {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
    with ExitStack() as running:
        both = []
        for own in range(2):
            process = subprocess.Popen(
                [*command, str(own)],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            both.append(running.enter_context(process))
            running.callback(process.kill)
        for process in both:
            output, errors = process.communicate(timeout=120)
            assert process.returncode == 0, errors
            assert errors == ""  # nor did the log hear of a damaged one
            assert int(output) > 10
    left = [path.name for path in tmp_path.iterdir() if not path.name.startswith("ready-")]
    assert all(name.startswith("statistics-") for name in left)
