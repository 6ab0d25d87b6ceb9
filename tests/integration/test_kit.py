"""A kit: packed here, run as a device runs it, without PyTorch or timm."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command_line import GRAPH, Outcome, environment, require_one_error

from vitdeploy.artifacts import reference as references
from vitdeploy.artifacts.files import file_digest
from vitdeploy.artifacts.onnx_model import OnnxModel, read_onnx_model
from vitdeploy.demo import assets
from vitdeploy.errors import InputError, OutputError
from vitdeploy.images import ImageItem, ImageSet, image_digest, scan
from vitdeploy.kit.contents import read_kit
from vitdeploy.kit.packing import KitContent, pack, subset
from vitdeploy.kit.running import run_kit

REFERENCE = str(assets.reference_path(assets.RESOLUTION))
BLOCKED = ("torch", "torchvision", "timm", "transformers")


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a machine where what PyTorch needs cannot be imported by anyone."""
    folder = tmp_path_factory.mktemp("blocked")
    for name in BLOCKED:
        (folder / f"{name}.py").write_text(f"raise ImportError('{name} is blocked here')\n")
    own = environment(tmp_path_factory.mktemp("cache"), OMP_NUM_THREADS="1")
    return {**own, "PYTHONPATH": os.pathsep.join((str(folder), own["PYTHONPATH"]))}


def python(arguments: list[str], folder: Path, variables: dict[str, str]) -> Outcome:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory, device: dict[str, str]) -> Path:
    folder = tmp_path_factory.mktemp("packed")
    arguments = [
        *("-m", "vitdeploy", "package", GRAPH, "--data", str(assets.images_folder("evaluation"))),
        *("--reference", REFERENCE, "--images", "200", "--max-drop", "5", "-o", "kit.zip"),
    ]
    done = python(arguments, folder, device)
    assert done.code == 0, done.errors
    assert "200 images" in done.output
    return folder / "kit.zip"


@pytest.fixture
def kit(packed: Path, tmp_path: Path) -> Path:
    with zipfile.ZipFile(packed) as archive:
        archive.extractall(tmp_path)
    return tmp_path / "kit"


def test_the_block_blocks(device: dict[str, str], tmp_path: Path) -> None:
    for name in BLOCKED:
        assert "is blocked here" in python(["-c", f"import {name}"], tmp_path, device).errors


def test_a_kit_runs_on_a_device_and_brings_a_report_back(kit: Path, device: dict[str, str]) -> None:
    arguments = [str(kit / "run_kit.py"), "--seconds", "1", "--batch", "1"]
    arguments += ["--backend", "onnxruntime", "--backend", "openvino"]
    done = python(arguments, kit.parent, device)
    with zipfile.ZipFile(kit / "results.zip") as archive:
        names = set(archive.namelist())
        report = json.loads(archive.read("results/report.json"))
        found = json.loads(archive.read("results/device.json"))
    settled = all(row["stable"] for row in report["rows"])  # a second is short
    assert done.code == (0 if settled else 7), done.errors + done.output
    assert {"results/report.html", "results/report.md"} < names
    assert not any(name.endswith(".engine") for name in names)
    rows = {row["backend"]: row for row in report["rows"]}
    assert set(rows) == {"onnxruntime", "openvino"}
    for row in rows.values():
        assert row["accuracy"]["verdict"] == "pass"
        assert row["accuracy"]["images"] == 200
        assert row["accuracy"]["agreement"] == 1.0
        assert row["accuracy"]["source_top1"] > 0.8  # the labels are those of the images
    assert any("PyTorch is not on this device" in note for note in report["notes"])
    assert {start["backend"] for start in found["cold_starts"]} == set(rows)
    assert all(start["first_run_seconds"] > 0 for start in found["cold_starts"])
    assert found["environment"]["cores"] >= 1


def planted(kit: Path, logits: np.ndarray) -> None:
    """The kit as if the source had answered this."""
    stored = references.load(kit / "reference.npz")
    (kit / "reference.npz").unlink()
    references.save(replace(stored, logits=logits), kit / "reference.npz")


def accepted(kit: Path) -> None:
    """The kit's manifest takes its reference for what was packed."""
    manifest = json.loads((kit / "kit.json").read_text())
    manifest["files"]["reference.npz"] = file_digest(kit / "reference.npz")
    (kit / "kit.json").write_text(json.dumps(manifest))


def test_an_engine_that_lost_its_answers_fails(kit: Path, device: dict[str, str]) -> None:
    """The source is told to have answered something else on every third image."""
    logits = references.load(kit / "reference.npz").logits.copy()
    logits[::3] = np.roll(logits[::3], 1, axis=1)
    planted(kit, logits)
    arguments = [str(kit / "run_kit.py"), "--seconds", "1", "--batch", "1"]
    with pytest.raises(InputError, match=r"reference\.npz is not as it was packed"):
        read_kit(kit)
    accepted(kit)
    done = python([*arguments, "--backend", "onnxruntime"], kit.parent, device)
    report = json.loads((kit / "results" / "report.json").read_text())
    (row,) = report["rows"]
    assert row["accuracy"]["agreement"] == pytest.approx(2 / 3, abs=0.01)
    settled = 0 if row["stable"] else 7
    verdict = {"fail": 10, "inconclusive": 11, "pass": settled}[row["accuracy"]["verdict"]]
    assert done.code == verdict


def test_what_cannot_be_built_is_said_and_fails(kit: Path, device: dict[str, str]) -> None:
    arguments = [str(kit / "run_kit.py"), "--seconds", "1", "--batch", "1"]
    arguments += ["--backend", "tensorrt"]
    none = python(arguments, kit.parent, device)
    require_one_error(none, 6, "no engine of the plan could be built and judged", "doctor")
    done = python([*arguments, "--backend", "onnxruntime"], kit.parent, device)
    require_one_error(done, 6, "1 of 2 engines failed here: FP32 on TensorRT", "doctor")
    with zipfile.ZipFile(kit / "results.zip") as archive:
        report = json.loads(archive.read("results/report.json"))
    assert {row["backend"]: row["status"] == "failed" for row in report["rows"]} == {
        "tensorrt": True,
        "onnxruntime": False,
    }


def test_speeds_that_are_not_known_are_no_success(kit: Path, device: dict[str, str]) -> None:
    """No round of a timing fits into so little time that it could settle."""
    arguments = [str(kit / "run_kit.py"), "--seconds", "1", "--batch", "64"]
    done = python([*arguments, "--backend", "onnxruntime"], kit.parent, device)
    require_one_error(done, 7, "timings did not settle: FP32 on ONNX Runtime", "--seconds")
    assert "ship" not in done.output.replace("Do not ship", "").lower()
    assert (kit / "results.zip").is_file()


def test_a_kit_is_named_by_its_folder(packed: Path, kit: Path) -> None:
    with pytest.raises(InputError, match=r"kit\.zip is an archive") as caught:
        read_kit(packed)
    assert f"python -m zipfile -e {packed}" in str(caught.value.hint)
    with pytest.raises(InputError, match="no kit, it holds kit") as caught:
        read_kit(kit.parent)
    assert str(caught.value.hint).endswith(f"run-kit {kit}")
    with pytest.raises(InputError, match="imagse does not exist") as caught:
        read_kit(kit / "imagse")
    assert caught.value.hint == f"did you mean {kit / 'images'}?"
    for other in (kit / "images", kit / "run.sh"):
        with pytest.raises(InputError, match=f"{other.name} is no kit: it holds no kit.json"):
            read_kit(other)


def test_graphs_that_are_left_out_are_named(
    packed: Path, tmp_path: Path, device: dict[str, str]
) -> None:
    """Of a folder's graphs only the newest is packed where none is named."""
    artifacts = tmp_path / "artifacts"
    artifacts.mkdir()
    for name in ("older", "newer"):
        shutil.copyfile(GRAPH, artifacts / f"{name}.onnx")
    os.utime(artifacts / "older.onnx", (1, 1))
    arguments = [
        *("-m", "vitdeploy", "package", "--data", str(assets.images_folder("evaluation"))),
        *("--reference", REFERENCE, "--images", "20", "--json", "-o"),
    ]
    done = python([*arguments, "a"], tmp_path, device)
    assert "not in the kit: older.onnx" in done.errors
    written = json.loads(done.output)
    assert (written["graphs"], written["not_packed"]) == (["graphs/newer.onnx"], ["older.onnx"])
    named = ["artifacts/older.onnx", "artifacts/newer.onnx"]
    done = python([*arguments[:3], *named, *arguments[3:], "b"], tmp_path, device)
    assert "not in the kit" not in done.errors
    assert len(json.loads(done.output)["graphs"]) == 2


def test_a_kit_is_whole_or_refused(kit: Path) -> None:
    assert read_kit(kit).model == read_onnx_model(assets.GRAPH).description.source.name
    image = sorted((kit / "images").iterdir())[3]
    content = image.read_bytes()
    image.write_bytes(content + b"x")
    with pytest.raises(InputError, match=f"{image.name} is not as it was packed"):
        read_kit(kit)
    image.unlink()
    with pytest.raises(InputError, match="the kit lacks") as caught:
        read_kit(kit)
    assert caught.value.hint


def images_of(count: int) -> ImageSet:
    folder = assets.images_folder("evaluation")
    labels = read_onnx_model(assets.GRAPH).description.source.labels
    return subset(scan(folder, labels=labels), count, 0)


def test_a_subset_is_even_and_seeded() -> None:
    chosen = images_of(30)
    per_class = [item.label for item in chosen.items]
    assert {per_class.count(label) for label in per_class} == {3}
    assert images_of(30) == chosen
    everything = scan(assets.images_folder("evaluation"))
    assert subset(everything, 30, 1).items != subset(everything, 30, 0).items
    few = ImageSet(Path(), (ImageItem(Path("a"), 0), ImageItem(Path("b"), 1)), ("x", "y"))
    assert subset(few, 10, 0) == few


@pytest.fixture
def content() -> KitContent:
    return KitContent(
        graphs=[read_onnx_model(assets.GRAPH)],
        reference=references.load(Path(REFERENCE)),
        images=images_of(5),
    )


def test_what_does_not_belong_together_is_not_packed(content: KitContent, tmp_path: Path) -> None:
    graph: OnnxModel = content.graphs[0]
    other = replace(graph, description=replace(graph.description, resolution=(224, 224)))
    native = references.load(assets.reference_path(assets.NATIVE))
    fewer = replace(content.reference, logits=native.logits[:1], image_digests=("0" * 64,))
    wrong = {
        "other resolution": replace(content, graphs=[graph, other]),
        "made with other": replace(content, reference=native),
        "lack 5 of 5 images": replace(content, reference=fewer),
        "needs a graph": replace(content, graphs=[]),
        f"same name, {graph.path.name}": replace(content, graphs=[graph, graph]),
        "same name, a.whl": replace(content, wheels=[Path("a.whl"), Path("b/a.whl")]),
    }
    for said, mixture in wrong.items():
        with pytest.raises(InputError, match=said) as caught:
            pack(mixture, tmp_path / "kit")
        assert caught.value.hint
    (tmp_path / "there").mkdir()
    with pytest.raises(InputError, match="exists"):
        pack(content, tmp_path / "there")
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_a_folder_holds_what_the_device_cannot_download(
    content: KitContent, tmp_path: Path
) -> None:
    wheel = tmp_path / "vitdeploy-0.1.0-py3-none-any.whl"
    wheel.write_bytes(b"a wheel")
    versions = tmp_path / "versions.txt"
    versions.write_text("numpy==2.2.6\n")
    written = pack(replace(content, wheels=[wheel], constraints=versions), tmp_path / "kit")
    folder = tmp_path / "kit"
    assert (folder / "wheels" / wheel.name).read_bytes() == b"a wheel"
    assert (folder / "constraints.txt").read_text() == "numpy==2.2.6\n"
    assert read_kit(folder) == written
    stored = references.load(folder / "reference.npz")
    assert stored.image_digests == tuple(image_digest(item.path) for item in content.images.items)
    assert (folder / "requirements.txt").read_text().strip() == written.requirement
    if shutil.which("sh"):
        subprocess.run(["sh", "-n", str(folder / "run.sh")], check=True)


@pytest.mark.slow
def test_typed_graphs_are_made_for_the_device(tmp_path: Path, device: dict[str, str]) -> None:
    """From the float32 graph, without PyTorch: what Orin computes in, attention too."""
    arguments = [
        *("-m", "vitdeploy", "package", GRAPH, "--fp16", "--int8", "--images", "20"),
        *("--calib-images", "16"),
        *("--calib", str(assets.images_folder("calibration")), "--reference", REFERENCE),
        *("--data", str(assets.images_folder("evaluation")), "-o", "kit"),
    ]
    done = python(arguments, tmp_path, device)
    assert done.code == 0, done.errors
    kit = read_kit(tmp_path / "kit")
    models = [read_onnx_model(tmp_path / "kit" / name).description for name in kit.graphs]
    assert [model.precision for model in models] == ["fp32", "fp16", "int8-fp16"]
    quantization = models[2].quantization
    assert quantization is not None
    assert any("attn/MatMul" in name for name in quantization.quantized)
    refused = python([*arguments[:-1], "other", "--fp8"], tmp_path, device)
    require_one_error(refused, 2, "jetson-orin has no FP8", "jetson-thor")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"graphs": []}, "names no graph"),
        ({"images": []}, "names no graph, or no image"),
        ({"graphs": ["../outside.onnx"]}, "outside the kit"),
        ({"graphs": ["/outside.onnx"]}, "outside the kit"),
        ({"files": {}}, "does not say what its files hold"),
        ({"labels": []}, "labels an image with a class that it does not name"),
        ({"files": {"": "0"}}, "outside the kit"),
        ({"max_drop_points": -1}, "allows a drop that is not from 0.01 to 100"),
        ({"max_drop_points": 1e9}, "allows a drop that is not from 0.01 to 100"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(
    change: dict[str, object], said: str, kit: Path
) -> None:
    manifest = json.loads((kit / "kit.json").read_text())
    (kit / "kit.json").write_text(json.dumps({**manifest, **change}))
    with pytest.raises(InputError, match=said):
        read_kit(kit)


def test_an_image_counts_once(kit: Path) -> None:
    manifest = json.loads((kit / "kit.json").read_text())
    manifest["images"].append(manifest["images"][0])
    (kit / "kit.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match="names a file twice"):
        read_kit(kit)


@pytest.mark.parametrize("place", ["results", "results/engines"])
def test_findings_stay_in_the_kit(place: str, kit: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (kit / place).parent.mkdir(exist_ok=True)
    (kit / place).symlink_to(elsewhere)
    with pytest.raises(InputError, match="not a run's own"):
        run_kit(kit)
    assert not list(elsewhere.iterdir())


def test_an_archive_that_cannot_be_finished_leaves_nothing(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    pictures = scan(assets.images_folder("evaluation"), labels=())
    few = subset(pictures, 20, 0)
    content = KitContent(
        graphs=[read_onnx_model(Path(GRAPH))],
        reference=references.load(Path(REFERENCE)),
        images=few,
    )
    monkeypatch.setattr(zipfile.ZipFile, "write", full)
    with pytest.raises(OutputError, match=r"no space left while writing .*full\.zip"):
        pack(content, tmp_path / "full.zip")
    assert not list(tmp_path.iterdir())
