"""Images unpacked into the cache: whole whenever they are used."""

from __future__ import annotations

import gzip
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitdeploy.artifacts.files import file_digest
from vitdeploy.demo import assets, fashion_mnist
from vitdeploy.errors import InputError, OutputError
from vitdeploy.images import scan


def digests(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): file_digest(path) for path in files}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


class TestEmbeddedImages:
    def test_damage_is_noticed_and_mended(self, cache: Path) -> None:
        folder = assets.images_folder("evaluation")
        whole = digests(folder)
        assert len(whole) == 2000
        lost, changed, added = (sorted(folder.rglob("*.png"))[i] for i in (0, 700, 1400))
        damages: dict[str, Callable[[], object]] = {
            "lost": lost.unlink,
            "changed": lambda: changed.write_bytes(changed.read_bytes()[:-9] + bytes(9)),
            "cut": lambda: changed.write_bytes(b""),
            "added": lambda: added.with_name("zz.png").write_bytes(added.read_bytes()),
        }
        for name, damage in damages.items():
            damage()
            assert digests(folder) != whole, name
            assert assets.images_folder("evaluation") == folder
            assert digests(folder) == whole, name
        assert [path.name for path in (cache / "vitdeploy").iterdir()] == [folder.parent.name]

    def test_a_whole_folder_is_left_alone(self, cache: Path) -> None:
        folder = assets.images_folder("evaluation")
        before = folder.stat().st_ino
        assert assets.images_folder("calibration").parent == folder.parent
        assert folder.stat().st_ino == before

    def test_several_processes_at_once(self, cache: Path) -> None:
        code = (
            "from vitdeploy.demo import assets; from vitdeploy.images import scan, decode\n"
            "images = scan(assets.images_folder('evaluation'))\n"
            "assert len(images) == 2000\n"
            "[decode(item.path) for item in images.items[::10]]"
        )
        started = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(3)]
        assert [process.wait(timeout=120) for process in started] == [0, 0, 0]

    def test_a_cache_that_cannot_be_written_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "file").touch()
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        with pytest.raises(OutputError, match="cannot be unpacked") as caught:
            assets.images_folder("evaluation")
        assert "XDG_CACHE_HOME" in str(caught.value.hint)


def idx_files(folder: Path, count: int = 20) -> Path:
    """Fashion-MNIST's four files, with a few images of noise."""
    folder.mkdir()
    generator = np.random.default_rng(0)
    for prefix in ("train", "t10k"):
        pixels = generator.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        for name, values in (("images-idx3", pixels), ("labels-idx1", labels)):
            header = bytes((0, 0, 8, values.ndim)) + struct.pack(f">{values.ndim}I", *values.shape)
            content = gzip.compress(header + values.tobytes())
            (folder / f"{prefix}-{name}-ubyte.gz").write_bytes(content)
    return folder


class TestFashionMnist:
    def test_every_image_is_written_under_its_label(self, tmp_path: Path) -> None:
        source = idx_files(tmp_path / "idx")
        root = fashion_mnist.unpack(source, tmp_path / "out")
        pixels, labels = fashion_mnist.read_split(source, "test")
        found = scan(root / "test", labels=fashion_mnist.LABELS)
        by_index = {int(item.path.stem): item for item in found.items}
        assert len(found) == len(pixels) == 20
        for index, item in by_index.items():
            assert item.label == labels[index]
            np.testing.assert_array_equal(np.asarray(Image.open(item.path)), pixels[index])

    @pytest.mark.parametrize("damage", ["lost image", "lost class", "added image", "no end"])
    def test_damage_is_noticed_and_mended(self, tmp_path: Path, damage: str) -> None:
        source = idx_files(tmp_path / "idx")
        root = fashion_mnist.unpack(source, tmp_path / "out")
        whole = digests(root)
        bags = root / "train" / "bag"
        if damage == "lost image":
            next(bags.iterdir()).unlink()
        elif damage == "lost class":
            for path in bags.iterdir():
                path.unlink()
            bags.rmdir()
        elif damage == "added image":
            (bags / "zz.png").write_bytes(b"")
        else:
            (root / ".train.complete").write_text("")
        assert digests(root) != whole
        fashion_mnist.unpack(source, root)
        assert digests(root) == whole

    def test_a_whole_folder_needs_no_source(self, tmp_path: Path) -> None:
        root = fashion_mnist.unpack(idx_files(tmp_path / "idx"), tmp_path / "out")
        assert fashion_mnist.unpack(tmp_path / "none", root) == root

    def test_a_cache_that_cannot_be_written_is_named(self, tmp_path: Path) -> None:
        source = idx_files(tmp_path / "idx")
        (tmp_path / "file").touch()
        with pytest.raises(OutputError, match="cannot be unpacked") as caught:
            fashion_mnist.unpack(source, tmp_path / "file" / "fashion-mnist")
        assert "XDG_CACHE_HOME" in str(caught.value.hint)

    def test_a_full_disk_is_named(self, tmp_path: Path, small_disk: Callable[[int], Path]) -> None:
        source = idx_files(tmp_path / "idx", count=2000)
        with pytest.raises(OutputError, match="No space left") as caught:
            fashion_mnist.unpack(source, small_disk(1) / "fashion-mnist")
        assert "free some space" in str(caught.value.hint)

    def test_a_source_that_may_not_be_read_is_named(self, tmp_path: Path, modes_bind: None) -> None:
        source = idx_files(tmp_path / "idx")
        (source / "train-images-idx3-ubyte.gz").chmod(0)
        with pytest.raises(InputError, match="cannot be read: Permission denied"):
            fashion_mnist.unpack(source, tmp_path / "out")
