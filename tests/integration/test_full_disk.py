"""A full disk is named, and nothing half-written stays on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import (
    DEMO_TOML,
    GRAPH,
    SMALL,
    TINY,
    listing,
    require_one_error,
    run,
)

from vitdeploy.demo import assets


@pytest.fixture
def full_disk(engine: Path, small_disk: Callable[[int], Path]) -> Path:
    """A file system of 12 MB that holds the engine and is full otherwise."""
    folder = small_disk(12)
    for path in (engine, engine.with_suffix(".json")):
        (folder / path.name).write_bytes(path.read_bytes())
    with pytest.raises(OSError, match="No space"), (folder / "ballast").open("wb") as ballast:
        ballast.write(bytes(12 << 20))
    return folder


WRITES = {
    "export": ["export", "demo", "-o", "DISK"],
    "int8": ["build-engine", GRAPH, "--int8", "--calib-images", "16", "-o", "DISK",
             "--backend", "onnxruntime"],
    "onnxruntime": ["build-engine", GRAPH, "--backend", "onnxruntime", "-o", "DISK"],
    "openvino": ["build-engine", GRAPH, "--backend", "openvino", "-o", "DISK"],
    "reference": ["evaluate", "ENGINE", "--data", "FEW", "--reference", "REFERENCE",
                  "--save-reference", "DISK/again.npz"],
    "evaluate": ["evaluate", "ENGINE", "--data", "FEW", "--reference", "REFERENCE"],
    "package": ["package", GRAPH, "--data", "FEW", "--reference", "REFERENCE", "--images", "8",
                "-o", "DISK/kit.zip"],
    "report": ["report", "ENGINE", "-o", "DISK/report"],
    "train": ["train", *TINY, "--model-kwargs", SMALL, "--data", "IMAGES", "-b", "8",
              "--epochs", "1", "-o", "DISK/a.safetensors"],
}  # fmt: skip


@pytest.mark.parametrize("stage", WRITES)
def test_a_full_disk_is_named_and_nothing_half_written_stays(
    tmp_path: Path,
    cache: Path,
    engine: Path,
    training_images: Path,
    full_disk: Path,
    few: Path,
    stage: str,
) -> None:
    if stage == "openvino":
        pytest.importorskip("openvino", reason="openvino: not installed")
    before = listing(full_disk)
    places = {
        "ENGINE": str(full_disk / engine.name),
        "REFERENCE": str(assets.reference_path(assets.RESOLUTION)),
        "IMAGES": str(training_images),
        "FEW": str(few),
    }
    arguments = [
        places.get(argument, argument.replace("DISK", str(full_disk))) for argument in WRITES[stage]
    ]
    (tmp_path / "vitdeploy.toml").write_text(DEMO_TOML)
    outcome = run(arguments, tmp_path, cache)
    require_one_error(outcome, 2, "no space left", "free some space")
    folders = {"report", "statistics"}  # made, and left empty
    assert set(listing(full_disk)) - set(before) <= folders
