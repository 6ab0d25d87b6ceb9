"""Pretrained weights through a hub on this machine: fetched, cached, and missed within seconds."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import huggingface_hub.constants as constants
import pytest
import timm
import torch
import transformers
from click.testing import CliRunner
from hub_server import Hub, serving
from safetensors.torch import save_file

from vitdeploy import api
from vitdeploy.artifacts.source import SourceDescription
from vitdeploy.cli.export import command
from vitdeploy.errors import MissingDependencyError
from vitdeploy.models.hub import fetched_by_torch, is_answered
from vitdeploy.models.load import load_source
from vitdeploy.models.request import ModelRequest
from vitdeploy.models.source import SourceModel, weights_digest

OF_TIMM = "test_vit"
OF_TRANSFORMERS = "transformers:tiny/vit@main"


def timm_repository(root: Path) -> str:
    """The digest of the weights that timm's own 'test_vit' finds on the hub."""
    torch.manual_seed(0)
    module = timm.create_model(OF_TIMM)
    repository = root / "timm" / "test_vit.r160_in1k"
    repository.mkdir(parents=True)
    save_file(module.state_dict(), repository / "model.safetensors")
    return weights_digest(module.state_dict())


def transformers_repository(root: Path) -> str:
    torch.manual_seed(1)
    config = transformers.ViTConfig(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        image_size=32,
        patch_size=8,
        num_labels=3,
    )
    module = transformers.ViTForImageClassification(config)
    module.save_pretrained(repository := root / "tiny" / "vit")
    transformers.ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(repository)
    (repository / "README.md").write_text("not fetched")
    return load_source(ModelRequest(name=str(repository))).description.weights_digest


def hub_is_at(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", url)
    template = url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Empty, in the place of huggingface.co; with an empty cache and working folder."""
    with serving(tmp_path / "hub") as running:
        hub_is_at(running.url, monkeypatch)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        (tmp_path / "work").mkdir()
        monkeypatch.chdir(tmp_path / "work")
        yield running


def test_export_of_pretrained_weights(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = timm_repository(hub.root)
    sources: list[SourceDescription] = []

    def export(source: SourceModel, *_: object, **__: object) -> None:
        sources.append(source.description)
        raise SystemExit(0)

    monkeypatch.setattr(api, "export", export)
    done = CliRunner().invoke(command, [OF_TIMM, "--pretrained"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    (source,) = sources
    assert (source.weights_digest, source.origin) == (digest, "pretrained weights")
    assert any(path.endswith("model.safetensors") for path in hub.asked)


def test_what_torch_fetches_is_cached_and_said_on_standard_error(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    (hub.root / "an" / "owner").mkdir(parents=True)
    torch.save({"weight": torch.ones(2)}, hub.root / "an" / "owner" / "vit.pth")
    url = f"{hub.url}/an/owner/resolve/main/vit.pth"

    def fetch() -> list[float]:
        with fetched_by_torch(url):
            return torch.hub.load_state_dict_from_url(url, progress=False)["weight"].tolist()

    assert fetch() == [1.0, 1.0]
    assert (said := capsys.readouterr()).out == ""
    assert said.err.startswith("Downloading: ")
    monkeypatch.setattr("vitdeploy.models.hub.is_answered", lambda url: False)
    assert fetch() == [1.0, 1.0]
    (tmp_path / "torch" / "hub" / "checkpoints" / "vit.pth").unlink()
    asked = len(hub.asked)
    with pytest.raises(ConnectionError, match=f"{hub.url} does not answer"):
        fetch()
    assert len(hub.asked) == asked


def test_a_repository_of_the_hub(hub: Hub) -> None:
    digest = transformers_repository(hub.root)
    source = load_source(ModelRequest(name=OF_TRANSFORMERS, pretrained=True)).description
    assert (source.weights_digest, source.labels) == (digest, ("LABEL_0", "LABEL_1", "LABEL_2"))
    assert source.origin == "tiny/vit@main/model.safetensors"
    assert not any("README" in path for path in hub.asked)


@pytest.mark.parametrize("name", [OF_TIMM, OF_TRANSFORMERS])
def test_what_is_cached_needs_no_hub(name: str, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    made = timm_repository if name == OF_TIMM else transformers_repository
    digest = made(hub.root)
    load_source(ModelRequest(name=name, pretrained=True))
    asked = len(hub.asked)
    monkeypatch.setattr("vitdeploy.models.hub.is_answered", lambda url: False)
    found = load_source(ModelRequest(name=name, pretrained=True))
    assert found.description.weights_digest == digest
    assert len(hub.asked) == asked
    assert constants.HF_HUB_OFFLINE is False


@pytest.mark.parametrize("name", [OF_TIMM, OF_TRANSFORMERS])
def test_a_hub_out_of_reach_is_not_tried_again_and_again(
    name: str, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        hub_is_at(f"http://127.0.0.1:{gone.getsockname()[1]}", monkeypatch)
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    with pytest.raises(MissingDependencyError, match="cannot be fetched") as caught:
        load_source(ModelRequest(name=name, pretrained=True))
    assert "does not answer, and its cache" in str(caught.value)
    assert "go online once" in str(caught.value.hint)
    assert waits == []


def test_who_asked_to_stay_offline_is_not_connected(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    tried: list[str] = []
    monkeypatch.setattr("vitdeploy.models.hub.is_answered", tried.append)
    with pytest.raises(MissingDependencyError, match="cannot be fetched"):
        load_source(ModelRequest(name=OF_TIMM, pretrained=True))
    assert tried == hub.asked == []
    assert constants.HF_HUB_OFFLINE is True


def test_a_proxy_is_asked_in_the_hubs_place(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_PROXY")
    monkeypatch.setenv("http_proxy", hub.url)
    assert is_answered("http://nowhere.invalid")
    monkeypatch.setenv("no_proxy", "nowhere.invalid")
    assert not is_answered("http://nowhere.invalid")


def test_a_name_that_is_looked_up_for_ever_costs_its_patience(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = Event()

    def connect(*_: object) -> None:
        never.wait(60)
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", connect)
    assert not is_answered(hub.url, patience_seconds=0.1)
    never.set()
