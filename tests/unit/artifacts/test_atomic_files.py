"""Files on disk: whole or absent; what the system refuses is named."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from artifact_samples import listing

from vitdeploy.artifacts.files import (
    _as_output_error,
    atomic_path,
    file_digest,
    read_text,
    reading,
    require_file,
    require_writable,
    write_bytes,
    write_text,
)
from vitdeploy.errors import InputError, OutputError


def write_half(target: Path, error: BaseException) -> None:
    with atomic_path(target) as temporary:
        temporary.write_bytes(b"half of the ne")
        raise error


class TestAtomicPath:
    @pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
    def test_what_interrupts_leaves_the_old_content(
        self, tmp_path: Path, error: type[BaseException]
    ) -> None:
        target = tmp_path / "graph.onnx"
        target.write_bytes(b"old")
        with pytest.raises(error):
            write_half(target, error())
        assert target.read_bytes() == b"old"
        assert listing(tmp_path) == ["graph.onnx"]

    def test_the_content_appears_at_the_end(self, tmp_path: Path) -> None:
        target = tmp_path / "new" / "deep" / "graph.onnx"
        with atomic_path(target) as temporary:
            assert temporary.parent == target.parent
            assert temporary.suffix == ".onnx"
            temporary.write_bytes(b"new")
            assert not target.exists()
        assert target.read_bytes() == b"new"
        assert listing(target.parent) == ["graph.onnx"]

    def test_two_writers_never_share_a_temporary_file(self, tmp_path: Path) -> None:
        target = tmp_path / "a.json"
        with atomic_path(target) as first, atomic_path(target) as second:
            assert first != second
            first.write_bytes(b"1")
            second.write_bytes(b"2")
        assert target.read_bytes() == b"1"
        assert listing(tmp_path) == ["a.json"]

    @pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
    def test_a_full_disk_is_an_output_error(self, tmp_path: Path, number: int) -> None:
        target = tmp_path / "a.json"
        target.write_bytes(b"old")
        with pytest.raises(OutputError, match="no space left") as caught:
            write_half(target, OSError(number, os.strerror(number)))
        assert "free some space" in str(caught.value.hint)
        assert isinstance(caught.value.__cause__, OSError)
        assert target.read_bytes() == b"old"
        assert listing(tmp_path) == ["a.json"]

    def test_a_really_full_disk(self, small_disk: Callable[[int], Path]) -> None:
        disk = small_disk(1)
        target = disk / "big.onnx"
        write_bytes(target, b"old")
        with pytest.raises(OutputError, match="no space left"):
            write_bytes(target, bytes(2 << 20))
        assert target.read_bytes() == b"old"
        assert listing(disk) == ["big.onnx"]

    @pytest.mark.parametrize("below", ["a.json", "deeper/a.json"])
    def test_a_file_where_the_folder_should_be(self, tmp_path: Path, below: str) -> None:
        (tmp_path / "results").write_text("a file")
        with pytest.raises(OutputError, match="cannot write"):
            write_text(tmp_path / "results" / below, "text")
        assert (tmp_path / "results").read_text() == "a file"

    def test_a_folder_where_the_file_should_be(self, tmp_path: Path) -> None:
        (tmp_path / "a.json").mkdir()
        with pytest.raises(OutputError, match="cannot write"):
            write_text(tmp_path / "a.json", "text")
        assert listing(tmp_path) == ["a.json"]

    def test_a_name_too_long(self, tmp_path: Path) -> None:
        with pytest.raises(OutputError, match="its name of 305 bytes is too long") as caught:
            write_text(tmp_path / f"{'n' * 300}.json", "text")
        assert caught.value.hint == "give a shorter name"
        assert listing(tmp_path) == []

    def test_the_hint_names_the_callers_own_way_out(self, tmp_path: Path) -> None:
        (tmp_path / "results").write_text("a file")
        with pytest.raises(OutputError) as caught:
            write_text(tmp_path / "results" / "a.json", "text", remedy="copy it first")
        assert caught.value.hint == "copy it first"
        assert "free some space, or copy it first" in str(
            _as_output_error(OSError(errno.ENOSPC, "full"), tmp_path, "copy it first").hint
        )


class TestRequireWritable:
    @pytest.mark.parametrize("name", ["a.json", "old.json", "new/deep/a.json"])
    def test_a_place_that_can_be_written_stays_as_it_is(self, tmp_path: Path, name: str) -> None:
        (tmp_path / "old.json").write_text("old")
        require_writable(tmp_path / name)
        assert listing(tmp_path) == ["old.json"]
        assert (tmp_path / "old.json").read_text() == "old"

    @pytest.mark.parametrize("name", ["a.json", "new/deep/a.json"])
    def test_a_read_only_folder_is_found_out(
        self, tmp_path: Path, modes_bind: None, name: str
    ) -> None:
        tmp_path.chmod(0o500)
        try:
            with pytest.raises(OutputError, match=r"cannot write .*Permission denied") as caught:
                require_writable(tmp_path / name, remedy="copy it first")
        finally:
            tmp_path.chmod(0o700)
        assert caught.value.hint == "copy it first"

    @pytest.mark.parametrize("name", ["file/a.json", "file/new/a.json", "folder.json"])
    def test_files_and_folders_in_the_way_are_found_out(self, tmp_path: Path, name: str) -> None:
        (tmp_path / "file").touch()
        (tmp_path / "folder.json").mkdir()
        with pytest.raises(OutputError, match="cannot write"):
            require_writable(tmp_path / name)
        assert listing(tmp_path) == ["file", "folder.json"]


class TestNamedFiles:
    def test_near_names_are_suggested(self, tmp_path: Path) -> None:
        (tmp_path / "model_fp32.onnx").touch()
        with pytest.raises(InputError, match="does not exist") as caught:
            require_file(tmp_path / "model_fp23.onnx", what="graph")
        assert "model_fp32.onnx" in str(caught.value.hint)

    def test_a_near_name_stays_on_its_line(self, tmp_path: Path) -> None:
        (tmp_path / "mo\x1b[31m\ndel.onnx").touch()
        with pytest.raises(InputError) as caught:
            require_file(tmp_path / "model.onnx", what="graph")
        assert r"mo\x1b[31m\ndel.onnx" in str(caught.value.hint)
        assert str(caught.value.hint).isprintable()

    def test_a_folder_is_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="is a folder"):
            require_file(tmp_path, what="graph")

    def test_bytes_are_no_text(self, tmp_path: Path) -> None:
        (tmp_path / "a.json").write_bytes(b"\xff\xfe\x00")
        with pytest.raises(InputError, match="not text"):
            read_text(tmp_path / "a.json", what="manifest")

    def test_what_may_not_be_read_is_named(self, tmp_path: Path, modes_bind: None) -> None:
        path = tmp_path / "folder" / "a.json"
        path.parent.mkdir()
        path.touch()
        for closed in (path, path.parent):
            closed.chmod(0)
            for read in (lambda: read_text(path, what="manifest"), lambda: file_digest(path)):
                with pytest.raises(InputError, match=r"a\.json cannot be read: Perm") as caught:
                    read()
                assert "readable" in str(caught.value.hint)
            closed.chmod(0o700)
        assert read_text(path, what="manifest") == ""

    def test_only_the_systems_errors_are_translated(self, tmp_path: Path) -> None:
        with pytest.raises(ZeroDivisionError), reading(tmp_path, "folder"):
            raise ZeroDivisionError
        with pytest.raises(InputError, match="cannot be read") as caught, reading(tmp_path, "x"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        assert "disk" in str(caught.value.hint)

    def test_a_name_too_long_and_a_pipe_are_no_bugs(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="cannot be read: File name too long"):
            require_file(tmp_path / ("n" * 300), what="graph")
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(InputError, match="no regular file"):
            require_file(tmp_path / "pipe", what="graph")

    def test_digest_is_sha256(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"abc")
        known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        assert file_digest(tmp_path / "a") == known


def test_a_byte_order_mark_is_no_part_of_a_text(tmp_path: Path) -> None:
    (path := tmp_path / "a.json").write_bytes(b"\xef\xbb\xbf{}")
    assert read_text(path, what="text") == "{}"


def test_a_link_that_leads_to_no_file_is_called_that(tmp_path: Path) -> None:
    for name, goal in (("round", "round"), ("dangling", "gone")):
        (tmp_path / name).symlink_to(goal)
        with pytest.raises(InputError, match=f"{name} is a link that leads to no file .{goal}"):
            require_file(tmp_path / name, what="graph")
