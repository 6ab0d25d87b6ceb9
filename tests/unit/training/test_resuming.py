"""A resumed run equals an uninterrupted one, and nothing else is taken for its state."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from training_shapes import SHORT, Interrupt, listing, start, train

from vitdeploy.errors import InputError, OutputError
from vitdeploy.images import ImageSet
from vitdeploy.models import checkpoint
from vitdeploy.models.source import weights_digest
from vitdeploy.training.initialize import widen_positions


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("after", [9, 14])
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(
    tmp_path: Path, images: ImageSet, after: int, workers: int
) -> None:
    """A step is a batch of 16 of 144 images, so 9 is the end of an epoch and 14 its middle."""
    recipe = replace(SHORT, resolutions=(32, 48))
    whole, _ = train(start(), images, None, recipe, tmp_path / "whole.safetensors")
    output = tmp_path / "parts.safetensors"
    recipe = replace(recipe, workers=workers)
    with pytest.raises(KeyboardInterrupt):
        train(start(), images, None, recipe, output, progress=Interrupt(steps=after + 1))
    assert listing(tmp_path) == ["parts.safetensors.resume", "whole.safetensors"]
    sink = Interrupt()
    resumed, history = train(start(), images, None, recipe, output, resume=True, progress=sink)
    ran = [text.split(":")[0] for text in sink.heard if text.startswith("epoch")]
    assert ran == ["epoch 2/3", "epoch 3/3"]  # the first was not run again
    assert "going on after epoch 1" in sink.heard
    assert len(history) == SHORT.epochs
    assert resumed.description.weights_digest == whole.description.weights_digest
    assert listing(tmp_path) == ["parts.safetensors", "whole.safetensors"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"recipe": replace(SHORT, learning_rate=1e-3)}, "recipe"),
        ({"recipe": replace(SHORT, epochs=4)}, "recipe"),
        ({"seed": 1}, "weights"),
        ({"fewer": True}, "images"),
    ],
    ids=["rate", "epochs", "weights", "images"],
)
def test_a_state_of_another_run_is_refused(
    tmp_path: Path, images: ImageSet, change: dict[str, Any], named: str
) -> None:
    output = tmp_path / "a.safetensors"
    with pytest.raises(KeyboardInterrupt):
        train(start(), images, None, SHORT, output, progress=Interrupt(steps=10))
    source = start()
    if "seed" in change:
        widen_positions(source.module, seed=9)
        digest = weights_digest(source.module.state_dict())
        source = replace(source, description=replace(source.description, weights_digest=digest))
    chosen = images.take(range(0, 144, 3)) if "fewer" in change else images
    with pytest.raises(InputError, match=named) as caught:
        train(source, chosen, None, change.get("recipe", SHORT), output, resume=True)
    assert "--resume" in str(caught.value.hint)


def test_other_images_of_the_same_number_are_refused(
    tmp_path: Path, images: ImageSet, held_out: ImageSet
) -> None:
    output = tmp_path / "a.safetensors"
    with pytest.raises(KeyboardInterrupt):
        train(start(), held_out, None, SHORT, output, progress=Interrupt(steps=5))
    with pytest.raises(InputError, match="images"):
        train(start(), images.take(range(0, 144, 2)), None, SHORT, output, resume=True)


@pytest.mark.parametrize(
    "content", [None, b"", b"nothing of ours", "list"], ids=["none", "empty", "text", "list"]
)
def test_a_state_that_cannot_be_read(tmp_path: Path, images: ImageSet, content: Any) -> None:
    state = tmp_path / "a.safetensors.resume"
    if content == "list":
        torch.save([1, 2], state)
    elif content is not None:
        state.write_bytes(content)
    with pytest.raises(InputError, match="resume") as caught:
        train(start(), images, None, SHORT, tmp_path / "a.safetensors", resume=True)
    assert "without --resume" in str(caught.value.hint)


def kept_state(tmp_path: Path, images: ImageSet) -> tuple[Path, dict[str, Any]]:
    """A state after the second of three epochs, and its content."""
    output = tmp_path / "a.safetensors"
    with pytest.raises(KeyboardInterrupt):
        train(start(), images, None, SHORT, output, progress=Interrupt(steps=20))
    return output, torch.load(tmp_path / "a.safetensors.resume", weights_only=True)


def _moments(state: dict[str, Any]) -> dict[int, dict[str, torch.Tensor]]:
    return state["optimizers"][0]["state"]


FORGERIES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no model": lambda state: state.pop("model"),
    "empty model": lambda state: state["model"].clear(),
    "list for a model": lambda state: state.update(model=[1]),
    "no ema": lambda state: state.pop("ema"),
    "half an ema": lambda state: state["ema"].popitem(),
    "no optimizers": lambda state: state["optimizers"].clear(),
    "odd optimizers": lambda state: state.update(optimizers=5),
    "no groups": lambda state: state["optimizers"][0].update(param_groups=[]),
    "no moments": lambda state: _moments(state).clear(),
    "moments of another shape": lambda state: _moments(state)[0].update(exp_avg=torch.zeros(7)),
    "odd schedulers": lambda state: state.update(schedulers=[{}]),
    "late scheduler": lambda state: state["schedulers"][0].update(last_epoch=1),
    "no history": lambda state: state.update(history=[]),
    "text for a history": lambda state: state.update(history="abc"),
    "odd history": lambda state: state.update(history=[{"epoch": 1}]),
    "history with a gap": lambda state: state["history"][1].update(epoch=3),
    "history that is too long": lambda state: state.update(
        history=[{"epoch": n, "loss": 1.0, "top1": None} for n in range(1, 5)], updates=36
    ),
    "loss that is not finite": lambda state: state["history"][0].update(loss=float("nan")),
    "text for a loss": lambda state: state["history"][0].update(loss="a"),
    "other updates": lambda state: state.update(updates=5),
    "list for updates": lambda state: state.update(updates=[18]),
    "list for an identity": lambda state: state.update(identity=["weights"]),
    "no identity": lambda state: state.pop("identity"),
    "another version": lambda state: state.update(schema_version=99),
}


def test_a_state_that_makes_no_sense_is_refused(tmp_path: Path, images: ImageSet) -> None:
    output, state = kept_state(tmp_path, images)
    path = output.with_name(output.name + ".resume")
    for name, forge in FORGERIES.items():
        forged = copy.deepcopy(state)
        forge(forged)
        torch.save(forged, path)
        with pytest.raises(InputError, match="resume") as caught:
            train(start(), images, None, SHORT, output, resume=True)
        assert "without --resume" in str(caught.value.hint), name
        assert "\n" not in str(caught.value), name
    torch.save(state, path)
    _, history = train(start(), images, None, SHORT, output, resume=True)
    assert len(history) == SHORT.epochs


def test_a_run_that_only_failed_to_be_written_is_finished(
    tmp_path: Path, images: ImageSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, _ = train(start(), images, None, SHORT, tmp_path / "whole.safetensors")
    output = tmp_path / "a.safetensors"

    def full(*_: Any) -> None:
        raise OutputError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", full)
        with pytest.raises(OutputError):
            train(start(), images, None, SHORT, output)
    sink = Interrupt()
    finished, _ = train(start(), images, None, SHORT, output, resume=True, progress=sink)
    assert sink.steps == 0
    assert finished.description.weights_digest == whole.description.weights_digest
    assert listing(tmp_path) == ["a.safetensors", "whole.safetensors"]


@pytest.mark.skipif(sys.platform == "win32", reason="posix: limits of a process")
def test_why_a_state_cannot_be_written_is_said(tmp_path: Path, images: ImageSet) -> None:
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, before[1]))
    try:
        with pytest.raises(OutputError, match="File too large") as caught:
            train(start(), images, None, SHORT, tmp_path / "a.safetensors")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "a.safetensors.resume" in str(caught.value)
    assert listing(tmp_path) == []
