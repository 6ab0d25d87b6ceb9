"""Make vitdeploy/demo/data from a trained checkpoint. How the demo model came about:

    vitdeploy train --data fashion-mnist --name demo -o demo.safetensors \
        --model vit_tiny_patch16_224 --random-weights --optimizer muon --epochs 8 --batch-size 64 \
        --model-kwargs '{"img_size": 128, "embed_dim": 128, "depth": 5, "num_heads": 4,
                         "global_pool": "avg", "weight_init": "jax"}' \
        --mean 0.286,0.286,0.286 --std 0.353,0.353,0.353 --crop-pct 1 \
        --mixed-res 96,128,160,192 --mixed-odds 0.55,0.3,0.08,0.07
    python tools/make_demo_data.py demo.safetensors /usr/share/datasets/fashion-mnist

Fashion-MNIST's files come from Debian's package dataset-fashion-mnist.
"""

from __future__ import annotations

import io
import random
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

from PIL import Image

from vitdeploy import api
from vitdeploy.artifacts import reference
from vitdeploy.artifacts.onnx_model import with_description
from vitdeploy.benchmarks.accuracy.evaluation import reference_outputs
from vitdeploy.demo import assets, fashion_mnist
from vitdeploy.export.export import ExportOptions
from vitdeploy.images import scan
from vitdeploy.models.load import ModelRequest

COUNTS = {"calibration": ("train", 512), "evaluation": ("test", 2000)}


def write_images(idx_folder: Path) -> None:
    """Draw class-balanced images with a fixed seed into one zip archive of PNG files."""
    with zipfile.ZipFile(assets.IMAGES, "w", zipfile.ZIP_DEFLATED) as archive:
        for part, (split, count) in COUNTS.items():
            pixels, labels = fashion_mnist.read_split(idx_folder, split)
            for index in _balanced(labels.tolist(), count):
                buffer = io.BytesIO()
                Image.fromarray(pixels[index]).save(buffer, "PNG", optimize=True)
                name = f"{part}/{fashion_mnist.LABELS[labels[index]]}/{index:05d}.png"
                # A fixed date keeps the archive the same from run to run.
                archive.writestr(zipfile.ZipInfo(name, (2017, 8, 25, 0, 0, 0)), buffer.getvalue())


def _balanced(labels: list[int], count: int) -> list[int]:
    generator = random.Random(0)
    by_class = [[i for i, label in enumerate(labels) if label == c] for c in range(10)]
    for members in by_class:
        generator.shuffle(members)
    turns = [members[turn] for turn in range(len(labels) // 10) for members in by_class]
    return sorted(turns[:count])


def main(checkpoint: Path, idx_folder: Path) -> None:
    shutil.rmtree(assets.DATA, ignore_errors=True)
    assets.DATA.mkdir(parents=True)
    shutil.copyfile(checkpoint, assets.CHECKPOINT)
    write_images(idx_folder)
    source = api.load_model(ModelRequest(name=str(assets.CHECKPOINT)))
    labels = source.description.labels
    images = scan(assets.images_folder("evaluation"), labels=labels)
    calibration = scan(assets.images_folder("calibration"), labels=labels)
    with tempfile.TemporaryDirectory() as folder:
        options = ExportOptions(resolution=assets.RESOLUTION)
        graph = api.export(source, options, Path(folder), images=calibration)
        shutil.copyfile(graph.path, assets.GRAPH)
    for size in (assets.NATIVE, assets.RESOLUTION):
        baseline = api.baseline_from_source(source, size, images)
        print(f"top-1 at {size[0]}: {baseline.top1:.2%}")
        description = with_description(graph, resolution=size)
        outputs = reference_outputs(baseline.logits, images, description)
        reference.save(outputs, assets.reference_path(size))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
