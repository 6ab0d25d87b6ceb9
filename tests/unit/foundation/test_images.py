"""Image folders: order, labels, decoding and batching."""

from __future__ import annotations

import io
import os
import random
import threading
from collections.abc import Generator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from vitdeploy.errors import InputError
from vitdeploy.images import batches, decode, image_digest, natural_key, scan, unreadable
from vitdeploy.images import batching as module
from vitdeploy.preprocessing import Preprocessing


def noise(seed: int, height: int = 24, width: int = 32) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def fill(folder: Path, names: Sequence[str]) -> None:
    for seed, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        noise(seed).save(path)


def test_flat_folders_are_in_natural_order_and_unlabelled(tmp_path: Path) -> None:
    fill(tmp_path, ["10.png", "2.png", "1.png", "b.png", "01.png"])
    found = scan(tmp_path)
    assert [item.path.name for item in found.items] == [
        "01.png",
        "1.png",
        "2.png",
        "10.png",
        "b.png",
    ]
    assert not found.is_labelled
    with pytest.raises(InputError, match="without labels") as caught:
        found.label_indices()
    assert "sub-folder per class" in str(caught.value.hint)


@given(st.lists(st.integers(0, 10**6), min_size=2, max_size=20))
def test_natural_order_of_numbers_is_numeric(numbers: list[int]) -> None:
    names = [f"img{number}x" for number in numbers]
    assert sorted(names, key=natural_key) == [f"img{number}x" for number in sorted(numbers)]


@given(st.sets(st.text("ab01²٣", max_size=5), min_size=2, max_size=12), st.randoms())
def test_the_order_depends_on_the_names_alone(names: set[str], generator: random.Random) -> None:
    shuffled = sorted(names)
    generator.shuffle(shuffled)
    assert sorted(shuffled, key=natural_key) == sorted(sorted(names), key=natural_key)


def test_classes_are_numbered_naturally_without_a_model(tmp_path: Path) -> None:
    fill(tmp_path, ["10/a.png", "2/a.png", "2/b.png", "1/sub/a.png"])
    found = scan(tmp_path)
    assert found.labels == ("1", "2", "10")
    assert found.label_indices().tolist() == [0, 1, 1, 2]


def test_a_class_missing_on_disk_shifts_nothing(tmp_path: Path) -> None:
    fill(tmp_path, ["cat/a.png", "eel/a.png"])
    found = scan(tmp_path, labels=("eel", "dog", "cat"))
    assert found.labels == ("eel", "dog", "cat")
    assert {item.path.parent.name: item.label for item in found.items} == {"cat": 2, "eel": 0}


def test_a_folder_without_images_is_no_class(tmp_path: Path) -> None:
    fill(tmp_path, ["a/1.png", "c/1.png", ".hidden/1.png", "a/.thumb.png"])
    (tmp_path / "b").mkdir()
    (tmp_path / "c" / "notes.txt").write_text("no image")
    found = scan(tmp_path)
    assert found.labels == ("a", "c")
    assert found.empty_classes == ("b",)
    assert found.take([0]).empty_classes == ("b",)
    assert len(found) == 2


def test_take_keeps_labels_and_order(tmp_path: Path) -> None:
    fill(tmp_path, ["a/1.png", "a/2.png", "b/1.png"])
    found = scan(tmp_path)
    assert found.take([2, 0]).label_indices().tolist() == [1, 0]
    assert found.take([2, 0]).items == (found.items[2], found.items[0])


@pytest.mark.parametrize(
    ("names", "labels", "said", "hint"),
    [
        ([], (), "holds no images", ".png"),
        (["a/1.png"], (), "one class only", "add the other class folders"),
        (["a/1.png", "b/1.png", "c.png"], (), "1 loose", "c.png"),
        (["a/1.png", "cow/1.png"], ("a", "b"), "no label of the model: cow", "a, b"),
    ],
)
def test_folders_that_cannot_be_used(
    tmp_path: Path, names: list[str], labels: tuple[str, ...], said: str, hint: str
) -> None:
    fill(tmp_path, names)
    with pytest.raises(InputError, match=said) as caught:
        scan(tmp_path, labels=labels)
    assert hint in str(caught.value.hint)


def test_a_missing_folder_and_a_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        scan(tmp_path / "none")
    fill(tmp_path, ["a.png"])
    with pytest.raises(InputError, match="is a file"):
        scan(tmp_path / "a.png")


@pytest.mark.parametrize("place", ["", "dog", "dog/deep"])
def test_a_folder_that_cannot_be_read_is_named(
    tmp_path: Path, modes_bind: None, place: str
) -> None:
    fill(tmp_path, ["cat/a.png", "dog/b.png", "dog/deep/c.png"])
    closed = tmp_path / place
    assert len(scan(tmp_path)) == 3
    closed.chmod(0)
    try:
        with pytest.raises(InputError, match="cannot be read: Permission denied") as caught:
            scan(tmp_path)
    finally:
        closed.chmod(0o700)
    assert str(closed) in str(caught.value)
    assert "readable" in str(caught.value.hint)


def test_an_image_that_cannot_be_read_is_named(tmp_path: Path, modes_bind: None) -> None:
    fill(tmp_path, ["1.png", "2.png"])
    (tmp_path / "2.png").chmod(0)
    found = scan(tmp_path)
    assert unreadable(found) == [1]
    for read in (decode, image_digest):
        with pytest.raises(InputError, match=r"image .*2\.png cannot be read"):
            read(found.items[1].path)


def test_links_to_nothing_never_go_missing(tmp_path: Path) -> None:
    fill(tmp_path, ["a/1.png", "b/1.png"])
    (tmp_path / "a" / "2.png").symlink_to("nowhere.png")
    (tmp_path / "b" / "2.png").symlink_to("2.png")
    found = scan(tmp_path)
    assert [found.items[i].path.parent.name for i in unreadable(found)] == ["a", "b"]
    (tmp_path / "c").symlink_to("nowhere")
    with pytest.raises(InputError, match="c cannot be read: No such file"):
        scan(tmp_path)


def test_links_that_lead_in_circles_and_folders_called_images_are_passed_over(
    tmp_path: Path,
) -> None:
    fill(tmp_path, ["a/1.png", "b/1.png"])
    (tmp_path / "a" / "up").symlink_to("..")
    (tmp_path / "b" / "folder.png").mkdir()
    assert len(scan(tmp_path)) == 2


@pytest.mark.parametrize("place", ["pipe.png", "a/pipe.png"])
def test_a_pipe_called_an_image_is_refused(place: str, tmp_path: Path) -> None:
    """Reading it might never end, and passed over it would be an image less without a word."""
    fill(tmp_path, ["a/1.png", "b/1.png"])
    os.mkfifo(tmp_path / place)
    with pytest.raises(InputError, match=rf"{place} is called an image and is no regular file"):
        scan(tmp_path)


def test_names_that_are_no_utf8_become_printable_labels(tmp_path: Path) -> None:
    fill(tmp_path, ["a/1.png", os.fsdecode(b"caf\xe9/1.png")])
    found = scan(tmp_path)
    assert found.labels == ("a", "caf\\udce9")
    assert scan(tmp_path, labels=found.labels).label_indices().tolist() == [0, 1]
    assert decode(found.items[1].path).size == (32, 24)


def test_exif_rotation_is_applied(tmp_path: Path) -> None:
    image = noise(0)
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held so that the picture must turn clockwise
    image.save(tmp_path / "turned.png", exif=exif)
    expected = np.rot90(np.asarray(image), k=-1)
    np.testing.assert_array_equal(np.asarray(decode(tmp_path / "turned.png")), expected)


def test_cmyk_becomes_rgb(tmp_path: Path) -> None:
    plain = Image.new("RGB", (16, 16), (200, 30, 60))
    plain.convert("CMYK").save(tmp_path / "print.jpg", quality=100)
    decoded = decode(tmp_path / "print.jpg")
    assert decoded.mode == "RGB"
    assert np.abs(np.asarray(decoded).astype(int) - (200, 30, 60)).max() <= 4


def test_palettes_become_their_colours(tmp_path: Path) -> None:
    image = noise(1).quantize(16)
    image.save(tmp_path / "palette.png")
    palette = np.array(image.getpalette()).reshape(-1, 3)
    expected = palette[np.asarray(image)]
    np.testing.assert_array_equal(np.asarray(decode(tmp_path / "palette.png")), expected)


@pytest.mark.parametrize("transparency", [3, bytes(range(0, 256, 16))], ids=["index", "bytes"])
def test_palettes_with_transparency_keep_their_colours(
    tmp_path: Path, transparency: int | bytes
) -> None:
    image = noise(1).quantize(16)
    image.save(tmp_path / "plain.png")
    image.save(tmp_path / "clear.png", transparency=transparency)
    np.testing.assert_array_equal(
        np.asarray(decode(tmp_path / "clear.png")), np.asarray(decode(tmp_path / "plain.png"))
    )


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_alpha_is_dropped_not_blended(tmp_path: Path, mode: str) -> None:
    image = noise(2).convert(mode)
    image.putalpha(
        Image.fromarray(np.arange(24 * 32, dtype=np.uint16).reshape(24, 32) % 256).convert("L")
    )
    image.save(tmp_path / "clear.png")
    colours = np.asarray(image)[..., :-1]
    decoded = np.asarray(decode(tmp_path / "clear.png"))
    np.testing.assert_array_equal(decoded, np.broadcast_to(colours, decoded.shape))


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_16_bits_are_scaled_not_saturated(tmp_path: Path, suffix: str) -> None:
    ramp = np.linspace(0, 65535, 32 * 32).astype(np.uint16).reshape(32, 32)
    Image.fromarray(ramp).save(tmp_path / f"deep{suffix}")
    decoded = np.asarray(decode(tmp_path / f"deep{suffix}"))
    assert decoded.shape == (32, 32, 3)
    assert np.abs(decoded[..., 0] - ramp / 257.0).max() <= 1
    assert len(np.unique(decoded)) == 256


def test_grayscale_and_one_bit_become_rgb(tmp_path: Path) -> None:
    gray = noise(3).convert("L")
    gray.save(tmp_path / "gray.png")
    decoded = np.asarray(decode(tmp_path / "gray.png"))
    np.testing.assert_array_equal(decoded, np.repeat(np.asarray(gray)[..., None], 3, axis=2))
    gray.convert("1").save(tmp_path / "fax.png")
    assert set(np.unique(np.asarray(decode(tmp_path / "fax.png")))) == {0, 255}


FORMATS = {
    ".png": {},
    ".jpg": {},
    ".webp": {},
    ".bmp": {},
    ".gif": {},
    ".tif": {},
    ".tiff": {"compression": "tiff_lzw"},
    ".ppm": {},
}


def damaged(whole: bytes, generator: np.random.Generator) -> bytes:
    """Cut somewhere, or with four bytes of its first 200 overwritten."""
    if generator.integers(2):
        return whole[: int(generator.integers(0, len(whole)))]
    content = bytearray(whole)
    for place in generator.integers(0, min(len(whole), 200), 4):
        content[int(place)] = int(generator.integers(0, 256))
    return bytes(content)


@pytest.mark.filterwarnings("ignore::UserWarning:PIL", "ignore::RuntimeWarning:PIL")
@pytest.mark.parametrize("suffix", FORMATS)
def test_broken_files_are_named_whatever_is_broken(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image or an InputError, nothing else."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100_000)
    noise(4).save(tmp_path / f"whole{suffix}", **FORMATS[suffix])
    whole = (tmp_path / f"whole{suffix}").read_bytes()
    generator = np.random.default_rng(5)
    path = tmp_path / f"broken{suffix}"
    refused: list[InputError] = []
    for _ in range(120):
        path.write_bytes(damaged(whole, generator))
        try:
            assert decode(path).mode == "RGB"
        except InputError as error:
            refused.append(error)
    assert len(refused) >= 20
    assert all(str(path) in str(error) and error.hint for error in refused)


def test_a_text_file_and_a_missing_one_are_named(tmp_path: Path) -> None:
    (tmp_path / "note.png").write_text("not an image")
    for name in ("note.png", "gone.png"):
        with pytest.raises(InputError, match=name):
            decode(tmp_path / name)


def test_a_decompression_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, ["big.png"])
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 24 * 32 // 3)
    with pytest.raises(InputError, match=r"big\.png"):
        decode(tmp_path / "big.png")


def test_broken_exif_data_is_an_image_that_cannot_be_read(tmp_path: Path) -> None:
    """The image is to be turned, and the width among its tags is a text: no file can hold that."""
    text_for_width = b"\x01\x09\0\x02\0\0\0\x04abc\0"
    turned = b"\x01\x12\0\x03\0\0\0\x01\0\x06\0\0"
    exif = b"Exif\0\0MM\0*\0\0\0\x08\0\x02" + text_for_width + turned + bytes(4)
    noise(0).save(tmp_path / "turned.jpg", exif=exif)
    with pytest.raises(InputError, match=r"turned\.jpg cannot be read: .*integer"):
        decode(tmp_path / "turned.jpg")


def test_an_extreme_strip_is_refused_before_it_is_enlarged(tmp_path: Path) -> None:
    fill(tmp_path, ["1.png"])
    Image.new("RGB", (1, 20_000)).save(tmp_path / "strip.png")
    with pytest.raises(InputError, match=r"strip\.png: 1x20000 .* 1024x20480000") as caught:
        list(batches(scan(tmp_path), Preprocessing(), (1024, 1024), 2))
    assert "crop" in str(caught.value.hint)
    (squashed,) = batches(scan(tmp_path), Preprocessing(crop_mode="squash"), (64, 64), 2)
    assert squashed.shape == (2, 3, 64, 64)


def test_unreadable_lists_the_broken_ones(tmp_path: Path) -> None:
    fill(tmp_path, [f"{i}.png" for i in range(6)])
    for name in ("1.png", "4.png"):
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:200])
    assert unreadable(scan(tmp_path)) == [1, 4]


def test_batches_keep_order_and_end_with_a_partial_one(tmp_path: Path) -> None:
    fill(tmp_path, [f"{i}.png" for i in range(11)])
    found, recipe = scan(tmp_path), Preprocessing(crop_pct=0.9)
    given = list(batches(found, recipe, (16, 24), 4))
    assert [batch.shape for batch in given] == [(4, 3, 16, 24)] * 2 + [(3, 3, 16, 24)]
    expected = [recipe.apply(decode(item.path), (16, 24)) for item in found.items]
    np.testing.assert_array_equal(np.concatenate(given), np.stack(expected))


def test_batches_decode_a_few_ahead_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, [f"{i}.png" for i in range(40)])
    seen: list[Path] = []
    lock = threading.Lock()

    def counted(path: Path) -> Image.Image:
        with lock:
            seen.append(path)
        return decode(path)

    monkeypatch.setattr(module, "decode", counted)
    stream = batches(scan(tmp_path), Preprocessing(), (16, 16), 2)
    assert not seen
    next(stream)
    next(stream)
    assert isinstance(stream, Generator)
    stream.close()  # waits for what is under way
    assert 4 <= len(seen) <= 12


def test_batches_name_the_image_that_cannot_be_read(tmp_path: Path) -> None:
    fill(tmp_path, [f"{i}.png" for i in range(9)])
    (tmp_path / "5.png").write_bytes(b"")
    stream = batches(scan(tmp_path), Preprocessing(), (16, 16), 2)
    next(stream)
    with pytest.raises(InputError, match=r"5\.png"):
        list(stream)


def test_a_digest_names_the_bytes_not_the_file(tmp_path: Path) -> None:
    fill(tmp_path, ["a.png", "b.png"])
    (tmp_path / "copy.png").write_bytes((tmp_path / "a.png").read_bytes())
    digests = {name: image_digest(tmp_path / name) for name in ("a.png", "b.png", "copy.png")}
    assert digests["a.png"] == digests["copy.png"]
    assert digests["a.png"] != digests["b.png"]


def test_formats_are_decoded_alike(tmp_path: Path) -> None:
    image = noise(6)
    for suffix in (".png", ".bmp", ".tif", ".ppm"):
        buffer = io.BytesIO()
        image.save(buffer, {".png": "PNG", ".bmp": "BMP", ".tif": "TIFF", ".ppm": "PPM"}[suffix])
        (tmp_path / f"same{suffix}").write_bytes(buffer.getvalue())
        np.testing.assert_array_equal(np.asarray(decode(tmp_path / f"same{suffix}")), image)
