"""Stored outputs of the source: refused where they are of something else, or damaged."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from artifact_samples import listing
from numpy.typing import NDArray

from vitdeploy.artifacts import reference
from vitdeploy.artifacts.reference import ReferenceOutputs
from vitdeploy.errors import InputError


def outputs() -> ReferenceOutputs:
    logits = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    return ReferenceOutputs(logits, ("x", "y", "z"), "weights", "preprocessing", (32, 48))


def rewritten(
    path: Path,
    change: Callable[[dict[str, object]], object],
    logits: NDArray[Any] | None = None,
) -> None:
    with np.load(path) as content:
        header, own = json.loads(str(content["header"])), content["logits"]
    changed = change(header)
    np.savez(path, logits=own if logits is None else logits, header=np.array(json.dumps(changed)))


class TestReferenceOutputs:
    def test_round_trip(self, tmp_path: Path) -> None:
        reference.save(outputs(), tmp_path / "r.npz")
        loaded = reference.load(tmp_path / "r.npz")
        np.testing.assert_array_equal(loaded.logits, outputs().logits)
        own, read = asdict(outputs()), asdict(loaded)
        assert all(own[key] == read[key] for key in own if key != "logits")
        assert listing(tmp_path) == ["r.npz"]

    def test_rows_follow_the_images_asked_for(self) -> None:
        np.testing.assert_array_equal(outputs().for_images(["z", "x"]), outputs().logits[[2, 0]])
        with pytest.raises(InputError, match="lack 1 of 2"):
            outputs().for_images(["x", "other"])

    @pytest.mark.parametrize(
        ("asked", "named"),
        [
            (("other", "preprocessing", (32, 48)), "weights"),
            (("weights", "other", (32, 48)), "preprocessing"),
            (("weights", "preprocessing", (48, 32)), "resolution"),
            (("other", "other", (32, 48)), "weights and preprocessing"),
        ],
    )
    def test_another_source_is_refused(
        self, asked: tuple[str, str, tuple[int, int]], named: str
    ) -> None:
        outputs().require_source("weights", "preprocessing", (32, 48))
        with pytest.raises(InputError, match=f"other {named}$"):
            outputs().require_source(*asked)

    @pytest.mark.parametrize(
        "change",
        [
            lambda header: header | {"schema_version": 2},
            lambda header: header | {"surprise": 1},
            lambda header: header | {"image_digests": ["x", "y"]},
            lambda header: header | {"resolution": [32]},
            lambda header: {k: v for k, v in header.items() if k != "weights_digest"},
            lambda header: {k: v for k, v in header.items() if k != "image_digests"},
            lambda header: list(header),
        ],
        ids=["version", "unknown", "count", "resolution", "no weights", "no images", "list"],
    )
    def test_another_header_is_refused(
        self, tmp_path: Path, change: Callable[[dict[str, object]], object]
    ) -> None:
        path = tmp_path / "r.npz"
        reference.save(outputs(), path)
        rewritten(path, change)
        with pytest.raises(InputError, match=r"r\.npz") as caught:
            reference.load(path)
        assert caught.value.hint

    @pytest.mark.parametrize(
        "logits",
        [
            outputs().logits.astype(str),
            outputs().logits.astype(complex),
            outputs().logits.astype(np.int8),
            outputs().logits.astype(np.float64),
            outputs().logits.astype("datetime64[s]"),
            outputs().logits[:, :0],
            outputs().logits[0],
        ],
        ids=lambda logits: f"{logits.dtype} {logits.shape}",
    )
    def test_only_float32_rows_are_logits(self, tmp_path: Path, logits: NDArray[Any]) -> None:
        path = tmp_path / "r.npz"
        reference.save(outputs(), path)
        rewritten(path, lambda header: header, logits)
        with pytest.raises(InputError, match=r"r\.npz is inconsistent"):
            reference.load(path)

    @pytest.mark.parametrize(
        ("central", "local", "value"), [(8, 6, 1), (10, 8, 99)], ids=["encrypted", "method"]
    )
    def test_archives_that_cannot_be_opened_are_refused(
        self, tmp_path: Path, central: int, local: int, value: int
    ) -> None:
        path = tmp_path / "r.npz"
        reference.save(outputs(), path)
        content = bytearray(path.read_bytes())
        content[local] = value
        content[content.index(b"PK\x01\x02") + central] = value
        path.write_bytes(content)
        with pytest.raises(InputError, match="does not hold reference outputs"):
            reference.load(path)

    def test_bytes_changed_anywhere_are_refused_or_harmless(self, tmp_path: Path) -> None:
        path = tmp_path / "r.npz"
        reference.save(outputs(), path)
        whole = path.read_bytes()
        generator = np.random.default_rng(0)
        refused = 0
        for place in range(0, len(whole), 3):
            content = bytearray(whole)
            content[place] ^= int(generator.integers(1, 256))
            path.write_bytes(content)
            try:
                assert reference.load(path).logits.dtype == np.float32
            except InputError:
                refused += 1
        assert refused > 100

    def test_only_reference_outputs_are_replaced(self, tmp_path: Path) -> None:
        manifest, other = tmp_path / "a.json", tmp_path / "other.npz"
        manifest.write_text("{}")
        np.savez(other, mine=np.zeros(3))
        kept = other.read_bytes()
        for path, said in ((manifest, "no .npz file"), (other, "holds something else")):
            with pytest.raises(InputError, match=said) as caught:
                reference.save(outputs(), path)
            assert caught.value.hint
        assert manifest.read_text() == "{}"
        assert other.read_bytes() == kept
        again = replace(outputs(), weights_digest="newer")
        for written in (outputs(), again):
            reference.save(written, tmp_path / "r.npz")
        assert reference.load(tmp_path / "r.npz").weights_digest == "newer"

    def test_other_files_are_refused(self, tmp_path: Path) -> None:
        good, path = tmp_path / "good.npz", tmp_path / "bad.npz"
        reference.save(outputs(), good)
        whole = good.read_bytes()
        array = tmp_path / "array.npy"
        np.save(array, np.zeros(3))
        np.savez(tmp_path / "other.npz", logits=np.zeros(3))
        contents = [b"", b"text", array.read_bytes(), (tmp_path / "other.npz").read_bytes()]
        contents += [whole[:length] for length in range(1, len(whole), 41)]
        damaged = bytearray(whole)
        damaged[60:80] = bytes(20)
        for content in [*contents, bytes(damaged)]:
            path.write_bytes(content)
            with pytest.raises(InputError, match=r"bad\.npz"):
                reference.load(path)
