"""`vitdeploy doctor`: what it shows of machines of several kinds, and its exit code."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from vitdeploy import api, environment
from vitdeploy.accelerators import Accelerators, Gpu, Jetson
from vitdeploy.backends.base import Availability
from vitdeploy.cli import doctor
from vitdeploy.errors import MissingDependencyError

ORIN = Jetson("NVIDIA Jetson AGX Orin", "36.4.3", "MAXN", 306_000_000, 1_300_000_000, False)


@pytest.fixture
def here() -> api.Diagnosis:
    backends = {
        "onnxruntime": Availability(True, "1.23.2", devices=("CPUExecutionProvider",)),
        "tensorrt": Availability(False, reason="no module; pip install tensorrt"),
    }
    return api.Diagnosis(environment.describe(), Accelerators(), backends, [])


def shown(
    found: api.Diagnosis, monkeypatch: pytest.MonkeyPatch, *arguments: str
) -> tuple[str, BaseException | None]:
    monkeypatch.setattr(api, "doctor", lambda: found)
    done = CliRunner().invoke(doctor.command, arguments)
    return done.output, done.exception


def test_a_machine_without_a_gpu(here: api.Diagnosis, monkeypatch: pytest.MonkeyPatch) -> None:
    text, error = shown(here, monkeypatch)
    assert error is None
    assert "NVIDIA GPU: none" in text
    assert "CPUExecutionProvider" in text
    assert "pip install tensorrt" in text


def test_no_row_sends_to_itself() -> None:
    """What is missing is said by `doctor` itself: 'see `vitdeploy doctor`' helps nobody there."""
    reasons = {name: backend.reason for name, backend in api.doctor().backends.items()}
    assert "onnxruntime-gpu" in reasons["onnxruntime-cuda"]
    assert not [name for name, reason in reasons.items() if "doctor" in reason]


def test_a_server(here: api.Diagnosis, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = (Gpu("NVIDIA L4", "8.9", 24 << 30),)
    found = replace(here, accelerators=Accelerators("570.86", "12.8", "12.6", gpus))
    text, _ = shown(found, monkeypatch)
    assert "  NVIDIA L4, 24 GiB, --target sm89" in text
    for line in ("driver: 570.86", "CUDA of the driver: 12.8", "CUDA toolkit: 12.6"):
        assert line in text


def test_a_jetson(here: api.Diagnosis, monkeypatch: pytest.MonkeyPatch) -> None:
    found = replace(here, accelerators=Accelerators(gpus=(Gpu(ORIN.model),), jetson=ORIN))
    text, _ = shown(found, monkeypatch)
    assert "L4T 36.4.3" in text
    assert "power mode MAXN, GPU clock up to 1300 MHz, not pinned: run jetson_clocks" in text
    record = json.loads(shown(found, monkeypatch, "--json")[0])
    assert record["accelerators"]["jetson"]["power_mode"] == "MAXN"
    assert record["backends"]["onnxruntime"]["devices"] == ["CPUExecutionProvider"]


def test_two_onnxruntimes_are_a_problem(
    here: api.Diagnosis, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = environment.conflicts({"onnxruntime": "1.23", "onnxruntime-gpu": "1.23"})
    for arguments in ([], ["--json"]):
        text, error = shown(replace(here, problems=both), monkeypatch, *arguments)
        assert "pip uninstall both" in text
        assert isinstance(error, MissingDependencyError)


def test_the_real_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    done = CliRunner().invoke(doctor.command, ["--json"])
    assert done.exception is None
    record = json.loads(done.output)
    assert record["backends"]["onnxruntime"]["available"]
    assert record["environment"]["cores"] >= 1
