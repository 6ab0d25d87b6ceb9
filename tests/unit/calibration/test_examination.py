"""What is said of files as Pillow and others write them, and which pictures count as alike."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from vitdeploy.calibration.examination import (
    Broken,
    Picture,
    examine,
    near_duplicates,
    trait_findings,
)
from vitdeploy.images import image_digest


def photo(seed: int, width: int = 60, height: int = 40) -> Image.Image:
    """Smooth patches of colour, as unlike each other as photographs."""
    patches = np.random.default_rng(seed).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    return Image.fromarray(patches).resize((width, height), Image.Resampling.BICUBIC)


def deep_gray() -> Image.Image:
    values = np.random.default_rng(1).integers(0, 1 << 16, (40, 60)).astype(np.uint16)
    return Image.fromarray(values)


def rotated(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def deep_png(colour_type: int, channels: int) -> bytes:
    """A PNG of 16 bits a channel, which Pillow reads but does not write in colour."""

    def chunk(name: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(name + data))
        return struct.pack(">I", len(data)) + name + data + check

    header = struct.pack(">IIBBBBB", 8, 8, 16, colour_type, 0, 0, 0)
    rows = b"".join(b"\0" + b"\x12\x34" * channels * 8 for _ in range(8))
    start = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header)
    return start + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def look(path: Path) -> Picture:
    found = examine(path)
    assert isinstance(found, Picture)
    return found


WRITTEN: dict[str, tuple[str, Callable[[Path], object], dict[str, str]]] = {
    "plain png": ("a.png", lambda p: photo(0).save(p), {}),
    "plain jpeg": ("a.jpg", lambda p: photo(0).save(p), {}),
    "upright by its EXIF": ("a.jpg", lambda p: photo(0).save(p, exif=rotated(1)), {}),
    "lying by its EXIF": (
        "a.jpg", lambda p: photo(0).save(p, exif=rotated(6)), {"exif_rotated": "orientation 6"},
    ),
    "mirrored by its EXIF": (
        "a.png", lambda p: photo(0).save(p, exif=rotated(2)), {"exif_rotated": "orientation 2"},
    ),
    "an orientation that is none": ("a.jpg", lambda p: photo(0).save(p, exif=rotated(99)), {}),
    "cmyk": ("a.jpg", lambda p: photo(0).convert("CMYK").save(p), {"cmyk": ""}),
    "cmyk tiff": ("a.tif", lambda p: photo(0).convert("CMYK").save(p), {"cmyk": ""}),
    "deep gray png": ("a.png", lambda p: deep_gray().save(p), {"16_bit": "", "grayscale": ""}),
    "deep gray tiff": ("a.tif", lambda p: deep_gray().save(p), {"16_bit": "", "grayscale": ""}),
    "deep gray ppm": ("a.ppm", lambda p: deep_gray().save(p), {"16_bit": "", "grayscale": ""}),
    "deep colour": ("a.png", lambda p: p.write_bytes(deep_png(2, 3)), {"16_bit": ""}),
    "deep with alpha": (
        "a.png", lambda p: p.write_bytes(deep_png(6, 4)), {"16_bit": "", "alpha": ""},
    ),
    "deep colour ppm": (
        "a.ppm", lambda p: p.write_bytes(b"P6 8 8 65535\n" + b"\x12\x34" * 192), {"16_bit": ""},
    ),
    "shallow colour ppm": (
        "a.ppm", lambda p: p.write_bytes(b"P6 8 8 200\n" + b"\x12" * 192), {},
    ),
    "palette": ("a.gif", lambda p: photo(0).quantize(16).save(p), {"palette": ""}),
    "palette with a transparent colour": (
        "a.png",
        lambda p: photo(0).quantize(16).save(p, transparency=3),
        {"palette": "", "alpha": ""},
    ),
    "alpha": ("a.png", lambda p: photo(0).convert("RGBA").save(p), {"alpha": ""}),
    "a transparent colour": (
        "a.png", lambda p: photo(0).save(p, transparency=(1, 2, 3)), {"alpha": ""},
    ),
    "gray": ("a.jpg", lambda p: photo(0).convert("L").save(p), {"grayscale": ""}),
    "gray with alpha": (
        "a.png", lambda p: photo(0).convert("LA").save(p), {"alpha": "", "grayscale": ""},
    ),
    "one bit": ("a.png", lambda p: photo(0).convert("1").save(p), {"grayscale": ""}),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRITTEN)
def test_every_trait_is_seen_on_a_real_file_and_on_no_other(kind: str, tmp_path: Path) -> None:
    name, write, traits = WRITTEN[kind]
    write(tmp_path / name)
    found = look(tmp_path / name)
    assert found.traits == traits
    assert found.digest == image_digest(tmp_path / name)
    assert len(found.thumbnail) == 72


def test_traits_become_findings_by_name(tmp_path: Path) -> None:
    for kind, (name, write, _) in WRITTEN.items():
        write(tmp_path / f"{kind} {name}")
    pictures = {path.name: look(path) for path in sorted(tmp_path.iterdir())}
    findings = {f.kind: f.about for f in trait_findings(pictures, channels=3)}
    for trait in ("exif_rotated", "cmyk", "16_bit", "palette", "alpha", "grayscale"):
        expected = {
            f"{kind} {name}": traits[trait]
            for kind, (name, _, traits) in WRITTEN.items()
            if trait in traits
        }
        assert findings[trait] == expected
        assert len(expected) >= 1
    gray = {f.kind for f in trait_findings(pictures, channels=1)}
    assert gray == set(findings) - {"grayscale"}
    plain = {name: p for name, p in pictures.items() if not p.traits}
    assert trait_findings(plain, channels=3) == []


def encoded(format_: str) -> bytes:
    buffer = io.BytesIO()
    photo(0).save(buffer, format_)
    return buffer.getvalue()


@pytest.mark.parametrize("format_", ["PNG", "JPEG", "GIF", "TIFF", "BMP"])
def test_files_cut_short_are_truncated(format_: str, tmp_path: Path) -> None:
    content = encoded(format_)
    path = tmp_path / f"a.{format_.lower()}"
    path.write_bytes(content[: len(content) * 2 // 3])
    found = examine(path)
    assert isinstance(found, Broken)
    assert found.kind == "truncated"
    path.write_bytes(content)
    assert isinstance(examine(path), Picture)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is empty"),
        (b"not an image", "no image format is recognised"),
        (encoded("PNG")[:10], "no image format is recognised"),
        (encoded("JPEG")[:200], "Truncated"),
    ],
)
def test_files_that_are_no_images_are_unreadable(
    content: bytes, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(content)
    found = examine(path)
    assert isinstance(found, Broken)
    assert found.kind == "unreadable"
    assert reason in found.reason


def test_floating_point_pixels_are_unreadable(tmp_path: Path) -> None:
    """Pillow turns values in [0, 1] into black pictures without a word."""
    path = tmp_path / "a.tif"
    Image.fromarray(np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8)).save(path)
    found = examine(path)
    assert isinstance(found, Broken)
    assert "floating-point" in found.reason


def test_what_may_not_be_read_or_is_gone_is_unreadable(tmp_path: Path, modes_bind: None) -> None:
    path = tmp_path / "a.png"
    assert examine(path) == Broken("unreadable", "No such file or directory")
    photo(0).save(path)
    path.chmod(0)
    assert examine(path) == Broken("unreadable", "Permission denied")


@pytest.mark.filterwarnings("ignore::UserWarning:PIL", "ignore::RuntimeWarning:PIL")
@given(data=st.data(), format_=st.sampled_from(["PNG", "JPEG", "GIF", "TIFF", "BMP", "WEBP"]))
def test_damaged_bytes_never_raise(
    data: st.DataObject, format_: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = bytearray(encoded(format_))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("damaged") / "a.png"
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    assert isinstance(examine(path), Picture | Broken)


def test_the_pixels_digest_is_of_what_is_seen(tmp_path: Path) -> None:
    photo(0).save(tmp_path / "a.png", compress_level=1)
    photo(0).save(tmp_path / "b.png", compress_level=9)
    photo(0).save(tmp_path / "c.bmp")
    photo(1).save(tmp_path / "d.png")
    a, b, c, d = (look(path) for path in sorted(tmp_path.iterdir()))
    assert len({p.digest for p in (a, b, c, d)}) == 4
    assert a.pixels_digest == b.pixels_digest == c.pixels_digest != d.pixels_digest


def thumbnails(images: list[Image.Image], folder: Path) -> list[bytes]:
    found = []
    for index, image in enumerate(images):
        image.save(folder / f"{index}.png")
        found.append(look(folder / f"{index}.png").thumbnail)
    return found


def recoded(image: Image.Image, quality: int) -> Image.Image:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return Image.open(buffer).convert("RGB")


def noisy(image: Image.Image) -> Image.Image:
    values = np.asarray(image) + np.random.default_rng(0).normal(0, 5, np.asarray(image).shape)
    return Image.fromarray(values.clip(0, 255).astype(np.uint8))


CHANGES: dict[str, tuple[Callable[[Image.Image], Image.Image], bool]] = {
    "saved again as JPEG": (lambda image: recoded(image, 60), True),
    "scaled to three quarters": (lambda image: image.resize((90, 60)), True),
    "with noise": (noisy, True),
    "mirrored": (lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT), False),
    "upside down": (lambda image: image.transpose(Image.Transpose.ROTATE_180), False),
    "half as bright": (lambda image: image.point(lambda value: value // 2), False),
}


@pytest.mark.parametrize("change", CHANGES)
def test_copies_that_were_changed_a_little_are_near(change: str, tmp_path: Path) -> None:
    alter, near = CHANGES[change]
    originals = [photo(seed, 120, 80) for seed in range(20)]
    pixels = thumbnails([*originals, *map(alter, originals)], tmp_path)
    expected = {20 + seed: seed for seed in range(20)} if near else {}
    assert near_duplicates(pixels) == expected


def test_plain_surfaces_are_told_apart_by_their_level(tmp_path: Path) -> None:
    """All their difference hashes are zero."""
    levels = [0, 2, 60, 120, 121, 250]
    surfaces = [Image.new("RGB", (40, 40), (level, level, level)) for level in levels]
    assert near_duplicates(thumbnails(surfaces, tmp_path)) == {1: 0, 4: 3}


def test_faint_pictures_are_told_apart_by_their_differences() -> None:
    """On a nearly even ground all levels are close, whatever is drawn in it."""
    generator = np.random.default_rng(0)
    faint = [generator.integers(100, 104, 72).astype(np.uint8).tobytes() for _ in range(10)]
    assert near_duplicates([*faint, faint[4]]) == {10: 4}


def test_many_alike_have_one_first(tmp_path: Path) -> None:
    frames = [photo(3), recoded(photo(3), 90), photo(8), recoded(photo(3), 80), photo(3)]
    assert near_duplicates(thumbnails(frames, tmp_path)) == {1: 0, 3: 0, 4: 0}
    assert near_duplicates([]) == {}


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 12), st.integers(-8, 8)),
        min_size=1,
        max_size=12,
    ),
    st.integers(0, 2**32 - 1),
)
def test_the_search_is_the_plain_one(picks: list[tuple[int, int, int]], seed: int) -> None:
    """Every pair compared bit by bit, on copies that are near, far and in between."""
    generator = np.random.default_rng(seed)
    bases = generator.integers(0, 256, (4, 72))
    bases[2:] = generator.integers(100, 108, (2, 72))
    made = []
    for base, changed, shift in picks:
        pixels = bases[base] + shift
        places = generator.choice(72, changed, replace=False)
        pixels[places] = generator.permutation(pixels[places])
        made.append(pixels.clip(0, 255).astype(np.uint8).tobytes())
    expected: dict[int, int] = {}
    for index, one in enumerate(made):
        for other in range(index):
            if other not in expected and alike(made[other], one):
                expected[index] = other
                break
    assert near_duplicates(made) == expected


def alike(one: bytes, other: bytes) -> bool:
    signs = sum(
        (one[9 * y + x + 1] > one[9 * y + x]) != (other[9 * y + x + 1] > other[9 * y + x])
        for y in range(8)
        for x in range(8)
    )
    return signs <= 8 and sum(abs(a - b) for a, b in zip(one, other, strict=True)) <= 3 * 72
