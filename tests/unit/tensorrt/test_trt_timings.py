"""Timings of kernels: kept between builds, apart by GPU and version, shared by builds at once."""

from __future__ import annotations

from pathlib import Path

from vitdeploy.backends.tensorrt.timing_cache import KeptTimings, cache_file


class Timings:
    """A configuration whose cache is text; versions other than its own are not taken."""

    def __init__(self, learns: str) -> None:
        self.learns = learns
        self.text = ""

    def create_timing_cache(self, content: bytes) -> Timings | None:
        if content and not content.startswith(b"v1"):
            return None
        made = Timings(self.learns)
        made.text = content.decode() or "v1"
        return made

    def set_timing_cache(self, cache: Timings, ignore_mismatch: bool) -> bool:
        assert ignore_mismatch is False
        self.text = cache.text + self.learns
        return True

    def get_timing_cache(self) -> Timings:
        return self

    def combine(self, other: Timings, ignore_mismatch: bool) -> bool:
        assert ignore_mismatch is False
        self.text += other.text.removeprefix("v1")
        return True

    def serialize(self) -> bytes:
        return self.text.encode()


def test_timings_are_kept_between_builds(tmp_path: Path) -> None:
    path = tmp_path / "timings" / "a.cache"
    said: list[str] = []
    for learns in (" a", " b"):
        kept, config = KeptTimings(path, said.append), Timings(learns)
        kept.attach(config)
        kept.keep(config)
    assert path.read_text() == "v1 a b"
    assert said == []


def test_two_builds_at_once_keep_both_timings(tmp_path: Path) -> None:
    path = tmp_path / "a.cache"
    first, second = Timings(" a"), Timings(" b")
    one, other = KeptTimings(path, print), KeptTimings(path, print)
    one.attach(first)
    other.attach(second)
    one.keep(first)
    other.keep(second)
    assert path.read_text() == "v1 b a"


def test_a_damaged_timing_cache_is_said_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.cache"
    path.write_text("garbage")
    said: list[str] = []
    kept, config = KeptTimings(path, said.append), Timings(" a")
    kept.attach(config)
    assert ["written anew" in text for text in said] == [True]
    kept.keep(config)
    assert path.read_text() == "v1 a"


def test_timings_that_cannot_be_kept_do_not_cost_the_engine(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said: list[str] = []
    kept, config = KeptTimings(tmp_path / "file" / "a.cache", said.append), Timings(" a")
    kept.attach(config)
    kept.keep(config)
    assert ["was not kept" in text for text in said] == [True]


def test_timings_of_another_gpu_or_version_are_another_file(tmp_path: Path) -> None:
    names = {
        cache_file(tmp_path, gpu, version).name
        for gpu in ("NVIDIA L4 sm89", "NVIDIA A10 sm86")
        for version in ("10.3.0", "10.16.1")
    }
    assert len(names) == 4
    assert "timing-nvidia-l4-sm89-10.3.0.cache" in names
