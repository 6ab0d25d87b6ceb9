"""Tables of images, class maps and datasets: labels go with their images, whatever the form."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitdeploy.calibration.guard import judging_images
from vitdeploy.calibration.image_set import (
    choose,
    load_calibration_set,
    save_calibration_set,
)
from vitdeploy.errors import InputError, MissingDependencyError
from vitdeploy.images import decode, image_digest, scan, unreadable
from vitdeploy.images.class_map import read_class_map

NAMES = ["val/a.png", "val/b.png", "val/deep/c.png", "val/d.png"]


def png(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (9, 7, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def fill(folder: Path, names: list[str]) -> None:
    for seed, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(png(seed))


def table(folder: Path, text: str, name: str = "labels.csv") -> Path:
    fill(folder, NAMES)
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


ROWS = "val/b.png,cat\nval/a.png,dog\nval/deep/c.png,cat\n"
LABEL_FIRST = "label,image\ncat,val/b.png\ndog,val/a.png\ncat,val/deep/c.png\n"


class TestTables:
    @pytest.mark.parametrize(
        ("text", "name"),
        [
            (ROWS, "x.csv"),
            ("file_name,class\n" + ROWS, "x.csv"),
            ("\ufeffpath,label\r\n" + ROWS.replace("\n", "\r\n"), "x.csv"),
            (LABEL_FIRST, "x.csv"),
            (ROWS.replace(",", "\t"), "x.tsv"),
            (ROWS.replace(",", ";"), "x.csv"),
        ],
        ids=["bare", "header", "windows", "label first", "tabs", "semicolons"],
    )
    def test_rows_keep_their_order_and_labels(self, tmp_path: Path, text: str, name: str) -> None:
        found = scan(table(tmp_path, text, name))
        assert [item.path.name for item in found.items] == ["b.png", "a.png", "c.png"]
        assert found.labels == ("cat", "dog")
        assert found.label_indices().tolist() == [0, 1, 0]
        assert found.name(2) == "deep/c.png"

    def test_absolute_paths_and_a_table_elsewhere(self, tmp_path: Path) -> None:
        fill(tmp_path / "images", NAMES)
        listed = tmp_path / "lists" / "val.csv"
        listed.parent.mkdir()
        listed.write_text(f"{tmp_path}/images/val/a.png,x\n../images/val/b.png,y\n")
        found = scan(listed)
        assert found.root == tmp_path / "images" / "val"
        assert [item.path.is_file() for item in found.items] == [True, True]

    def test_labels_are_the_models_own_or_their_numbers(self, tmp_path: Path) -> None:
        names = ("eel", "dog", "cat")
        assert scan(table(tmp_path, ROWS), labels=names).label_indices().tolist() == [2, 1, 2]
        numbers = "val/a.png,2\nval/b.png,0\n"
        assert scan(table(tmp_path, numbers), labels=names).label_indices().tolist() == [2, 0]
        # A number that is a label's name is that label.
        assert scan(table(tmp_path, numbers), labels=("2", "1", "0")).label_indices().tolist() == [
            0,
            2,
        ]
        for wrong in ("val/a.png,3\nval/b.png,0\n", "val/a.png,cow\nval/b.png,cat\n"):
            with pytest.raises(InputError, match="none of the model"):
                scan(table(tmp_path, wrong), labels=names)

    def test_order_of_class_names(self, tmp_path: Path) -> None:
        text = "val/a.png,10\nval/b.png,2\nval/d.png,1\n"
        assert scan(table(tmp_path, text)).labels == ("1", "2", "10")
        found = scan(table(tmp_path, text), order="string")
        assert found.labels == ("1", "10", "2")
        assert found.label_indices().tolist() == [1, 2, 0]
        fill(tmp_path / "folders", ["1/a.png", "2/b.png", "10/c.png"])
        assert scan(tmp_path / "folders", order="string").labels == ("1", "10", "2")

    def test_several_labels_and_none(self, tmp_path: Path) -> None:
        found = scan(table(tmp_path, "val/a.png,cat|dog\nval/b.png,\nval/d.png,dog\n"))
        assert found.truth(2).tolist() == [[True, True], [False, False], [False, True]]
        with pytest.raises(InputError, match="2 images have no label or several"):
            found.label_indices()
        with pytest.raises(InputError, match="the model has 1 classes"):
            found.truth(1)

    def test_without_labels(self, tmp_path: Path) -> None:
        assert not scan(table(tmp_path, "path\nval/a.png\nval/b.png\n")).is_labelled

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("", "is empty"),
            ("path,label\n", "lists no images"),
            (
                "val/a.png,x\nval/gone.png,y\n",
                r"lists 1 image of which there is no file .*val/gone\.png",
            ),
            ("val/a.png,x\n./val/a.png,y\n", "lists 1 image more than once"),
            ("path,label\n,x\n", "row without a path"),
            ("val/a.png,x\nval/b.png,x\n", "one class only"),
        ],
    )
    def test_what_cannot_be_used(self, tmp_path: Path, text: str, said: str) -> None:
        with pytest.raises(InputError, match=said) as caught:
            scan(table(tmp_path, text))
        assert caught.value.hint


SYNSETS = {"ILSVRC2012_val_00000001": "n02", "ILSVRC2012_val_00000002": "n01"}


class TestClassMaps:
    FORMS = {  # noqa: RUF012
        "kaggle": "ImageId,PredictionString\n"
        + "".join(f"{k},{v} 85 1 499 272 {v} 5 6 7 8 \n" for k, v in SYNSETS.items()),
        "blanks": "".join(f"{k}.JPEG {v}\n" for k, v in SYNSETS.items()),
        "commas": "".join(f"val/{k}.JPEG,{v}\n" for k, v in SYNSETS.items()),
    }

    def flat(self, folder: Path) -> Path:
        fill(folder / "val", [f"{name}.JPEG" for name in SYNSETS])
        return folder / "val"

    @pytest.mark.parametrize("form", FORMS)
    def test_flat_folders_take_their_labels_from_a_map(self, tmp_path: Path, form: str) -> None:
        class_map = tmp_path / "map.txt"
        class_map.write_text(self.FORMS[form] + "another.JPEG n03\n" * (form == "blanks"))
        found = scan(self.flat(tmp_path), class_map=class_map)
        assert found.labels == ("n01", "n02")
        assert found.label_indices().tolist() == [1, 0]
        own = scan(self.flat(tmp_path), labels=("n00", "n01", "n02"), class_map=class_map)
        assert own.label_indices().tolist() == [2, 1]

    def test_images_that_the_map_lacks_are_told(self, tmp_path: Path) -> None:
        class_map = tmp_path / "map.txt"
        class_map.write_text(self.FORMS["blanks"].splitlines()[0])
        with pytest.raises(InputError, match=r"lacks 1 of 2 images .*00000002"):
            scan(self.flat(tmp_path), class_map=class_map)

    def test_class_folders_are_not_labelled_anew(self, tmp_path: Path) -> None:
        fill(tmp_path, ["x/a.png", "y/b.png"])
        (tmp_path / "map.txt").write_text("a n01\n")
        with pytest.raises(InputError, match="would label its images anew"):
            scan(tmp_path, class_map=tmp_path / "map.txt")

    @pytest.mark.parametrize(
        ("text", "said"),
        [("", "is empty"), ("65\n", "no file and label"), ("a n01\na n02\n", "two labels")],
    )
    def test_other_files(self, tmp_path: Path, text: str, said: str) -> None:
        (tmp_path / "map.txt").write_text(text)
        with pytest.raises(InputError, match=said):
            read_class_map(tmp_path / "map.txt")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "vitdeploy"


FEATURES = {
    "image": {"_type": "Image"},
    "label": {"names": ["tench", "eel", "cat"], "_type": "ClassLabel"},
}


def dataset(folder: Path, form: str, labels: list[int], contents: list[bytes]) -> Path:
    """As `datasets` writes it: bytes and path of each image, class names in the schema."""
    import pyarrow as pa
    import pyarrow.parquet

    images = [{"bytes": content, "path": f"{i}.png"} for i, content in enumerate(contents)]
    told = {"huggingface": json.dumps({"info": {"features": FEATURES}})}
    content = pa.table({"image": images, "label": labels}).replace_schema_metadata(told)
    folder.mkdir()
    if form == "parquet":
        pyarrow.parquet.write_table(content, folder / "0000.parquet")
        return folder
    name = "data-00000-of-00001.arrow"
    with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_stream(sink, content.schema) as w:
        w.write_table(content)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
    return folder


@pytest.mark.parametrize("form", ["parquet", "save_to_disk"])
class TestDatasets:
    def test_images_and_class_names(self, tmp_path: Path, cache: Path, form: str) -> None:
        contents = [png(i) for i in range(4)]
        place = dataset(tmp_path / "set", form, [2, 0, 2, 0], contents)
        found = scan(place)
        assert found.labels == ("tench", "eel", "cat")
        assert found.label_indices().tolist() == [2, 0, 2, 0]
        assert [item.path.read_bytes() for item in found.items] == contents
        assert found.root.is_relative_to(cache)
        own = scan(place, labels=("cat", "dog", "tench"))
        assert own.label_indices().tolist() == [0, 2, 0, 2]

    def test_it_is_unpacked_once_and_anew_when_it_changes(
        self, tmp_path: Path, cache: Path, form: str
    ) -> None:
        first = scan(dataset(tmp_path / "a", form, [0, 1], [png(0), png(1)]))
        stamp = first.items[0].path.stat().st_mtime_ns
        again = scan(tmp_path / "a")
        assert again == first
        assert again.items[0].path.stat().st_mtime_ns == stamp
        other = scan(dataset(tmp_path / "b", form, [0, 1], [png(0), png(2)]))
        assert other.root != first.root
        assert image_digest(other.items[0].path) == image_digest(first.items[0].path)
        assert len(list(cache.iterdir())) == 2

    def test_broken_and_missing_images_stay_in_their_place(
        self, tmp_path: Path, cache: Path, form: str
    ) -> None:
        found = scan(dataset(tmp_path / "set", form, [0, 1, 2], [png(0), b"", png(1)[:30]]))
        assert unreadable(found) == [1, 2]
        assert decode(found.items[0].path).size == (7, 9)

    def test_labels_of_minus_one_are_none(self, tmp_path: Path, cache: Path, form: str) -> None:
        place = dataset(tmp_path / "set", form, [-1, -1], [png(0), png(1)])
        assert not scan(place).is_labelled

    def test_without_pyarrow_the_error_names_it(
        self, tmp_path: Path, cache: Path, form: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        place = dataset(tmp_path / "set", form, [0, 1], [png(0), png(1)])
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(MissingDependencyError, match="pyarrow is not installed") as caught:
            scan(place)
        assert "vitdeploy[data]" in str(caught.value.hint)


def test_damaged_datasets_are_named(tmp_path: Path, cache: Path) -> None:
    place = dataset(tmp_path / "set", "parquet", [0, 1], [png(0), png(1)])
    whole = (place / "0000.parquet").read_bytes()
    (place / "0000.parquet").write_bytes(whole[:-20])
    with pytest.raises(InputError, match="cannot be read as a dataset"):
        scan(place)


def test_a_dictionary_of_splits_asks_for_one(tmp_path: Path, cache: Path) -> None:
    dataset(tmp_path / "test", "save_to_disk", [0, 1], [png(0), png(1)])
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["test"]}')
    with pytest.raises(InputError, match="several splits: test") as caught:
        scan(tmp_path)
    assert str(tmp_path / "test") in str(caught.value.hint)


@pytest.mark.parametrize("form", ["table", "parquet"])
def test_calibration_images_come_from_the_same_places(
    tmp_path: Path, cache: Path, form: str
) -> None:
    """Drawn evenly over the classes, written down and read back, with others to judge on."""
    contents = [png(i) for i in range(100)]
    if form == "table":
        names = [f"pictures/{i}.png" for i in range(100)]
        fill(tmp_path, names)
        text = "".join(f"{name},{'ab'[i % 2]}\n" for i, name in enumerate(names))
        (tmp_path / "train.csv").write_text(text)
        place = tmp_path / "train.csv"
    else:
        place = dataset(tmp_path / "set", form, [i % 2 for i in range(100)], contents)
    drawn = choose(scan(place), count=16, seed=1)
    assert sorted(drawn.counts().values()) == [8, 8]
    save_calibration_set(drawn, tmp_path / "drawn.json")
    loaded = load_calibration_set(tmp_path / "drawn.json")
    assert loaded.digests == drawn.digests
    held_out = judging_images(loaded)
    assert held_out is not None
    assert not {image_digest(item.path) for item in held_out.items} & set(drawn.digests)
