"""Image processors of transformers: pixels as theirs, and what cannot be expressed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers as hf
from lively import lively
from PIL import Image

from vitdeploy.errors import InputError
from vitdeploy.models.load import ModelRequest, load_source
from vitdeploy.preprocessing import Preprocessing, Size

NATIVE: Size = (64, 64)
HALF: tuple[float, ...] = (0.5, 0.5, 0.5)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder without an image processor."""
    config = hf.ViTConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64,
        image_size=64, patch_size=8, num_labels=5,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("model")
    lively(hf.ViTForImageClassification(config)).save_pretrained(folder)
    return folder


def photograph() -> Image.Image:
    # 3 to 2: the crop cuts even numbers of pixels. Of odd ones the library's own two kinds of
    # processor (Pillow's, torchvision's) leave the larger half on different sides.
    rows, columns = np.mgrid[:90, :135]
    waves = np.stack([np.sin(rows / 9), np.cos(columns / 7), np.sin((rows + columns) / 11)], -1)
    return Image.fromarray(((waves + 1) * 127).astype(np.uint8))


PROCESSORS: dict[str, Callable[[], Any]] = {
    "vit": lambda: hf.ViTImageProcessorPil(size={"height": 64, "width": 64}),
    "deit": lambda: hf.DeiTImageProcessorPil(
        size={"height": 73, "width": 73}, crop_size={"height": 64, "width": 64}
    ),
    "beit": lambda: hf.BeitImageProcessorPil(
        size={"height": 64, "width": 64}, image_mean=[0.485, 0.456, 0.406], resample=2
    ),
    "clip": lambda: hf.CLIPImageProcessorPil(size={"shortest_edge": 64}, crop_size=64),
    "clip-share": lambda: hf.CLIPImageProcessorPil(size={"shortest_edge": 73}, crop_size=64),
    "siglip": lambda: hf.SiglipImageProcessorPil(size={"height": 64, "width": 64}),
    "raw": lambda: hf.ViTImageProcessorPil(size={"height": 64, "width": 64}, do_normalize=False),
}


class TestImageProcessors:
    @pytest.mark.parametrize("name", PROCESSORS)
    def test_pixels_are_those_of_the_processor(
        self, model: Path, tmp_path: Path, name: str
    ) -> None:
        folder = with_processor(model, tmp_path)
        processor = PROCESSORS[name]()
        processor.save_pretrained(folder)
        found = load_source(ModelRequest(name=str(folder))).description.preprocessing
        expected = processor(photograph(), return_tensors="np")["pixel_values"][0]
        answer = found.apply(photograph(), NATIVE)
        assert answer.shape == expected.shape
        np.testing.assert_allclose(answer, expected, atol=1e-5)

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"do_rescale": False}, "does not scale"),
            ({"rescale_factor": 1 / 127.5}, "not by 1/255"),
            ({"do_resize": False}, "does not resize"),
            ({"resample": 4}, "method 4"),
            ({"size": {"height": 80, "width": 80}}, "80x80, not 64x64"),
            (
                {"image_processor_type": "M", "auto_map": {"AutoImageProcessor": "mine.M"}},
                "cannot be used",
            ),
        ],
        ids=str,
    )
    def test_what_cannot_be_expressed_is_said(
        self,
        model: Path,
        tmp_path: Path,
        change: dict[str, Any],
        words: str,
    ) -> None:
        folder = with_processor(model, tmp_path)
        PROCESSORS["vit"]().save_pretrained(folder)
        (folder / "mine.py").write_text("raise SystemExit('this code ran')")
        path = folder / "preprocessor_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
        with pytest.raises(InputError, match=words) as caught:
            load_source(ModelRequest(name=str(folder)))
        assert "--crop-pct" in str(caught.value.hint)
        flags: dict[str, Any] = {"interpolation": "bilinear", "crop_pct": 1.0}
        request = ModelRequest(name=str(folder), mean=HALF, std=HALF, crop_mode="squash", **flags)
        assert load_source(request).description.preprocessing == Preprocessing(
            HALF, HALF, "bilinear", 1.0, "squash"
        )

    def test_flags_replace_parts_of_it(self, model: Path, tmp_path: Path) -> None:
        folder = with_processor(model, tmp_path)
        PROCESSORS["vit"]().save_pretrained(folder)
        request = ModelRequest(name=str(folder), interpolation="lanczos", crop_pct=0.9)
        assert load_source(request).description.preprocessing == Preprocessing(
            HALF, HALF, "lanczos", 0.9, "squash"
        )


def with_processor(model: Path, folder: Path) -> Path:
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_bytes((model / name).read_bytes())
    return folder
