"""The wheel holds what git holds, and runs without PyTorch."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    sources = folder / "sources"
    sources.mkdir()
    # A copy of what git tracks: files of this checkout's own builds must not slip in.
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_symlink() or not (ROOT / name).is_file():
            continue
        (sources / name).parent.mkdir(parents=True, exist_ok=True)
        (sources / name).write_bytes((ROOT / name).read_bytes())
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "-q", "-w", folder, sources, cwd=folder)
    return next(folder.glob("vitdeploy-*.whl"))


def test_the_wheel_holds_every_file_of_the_package_and_no_other(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    tracked = run(
        "git", "ls-files", "--cached", "--others", "--exclude-standard", "vitdeploy", cwd=ROOT
    )
    assert packed == set(tracked.split())


def test_the_installed_demo_runs_without_torch_and_says_so(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", "--upgrade", "pip", cwd=tmp_path)
    run(python, "-m", "pip", "install", "-q", f"{wheel}[cpu]", cwd=tmp_path)
    empty = tmp_path / "empty"
    empty.mkdir()
    command = tmp_path / "venv" / "bin" / "vitdeploy"
    said = run(command, "demo", "--images", "1000", "--seconds", "5", cwd=empty)
    assert "torch is not installed: the stored graph" in said
    # Not in what was printed: there a narrow column may break the line.
    written = (empty / "report" / "report.md").read_text(encoding="utf-8")
    assert "PyTorch eager fp32 (stored outputs)" in written
    assert (empty / "report" / "report.html").is_file()
    listed = run(python, "-m", "pip", "list", cwd=empty)
    assert "torch" not in listed
    assert "timm" not in listed
