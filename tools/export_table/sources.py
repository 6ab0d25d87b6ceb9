"""From a row to its source model, with weights under which a mistake is seen."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tools.export_table.rows import Row
from tools.export_table.weights import CLASSES, enliven, fit_heads, settle_batch_norms
from vitdeploy import api
from vitdeploy.demo import assets
from vitdeploy.images import ImageSet, batches, scan
from vitdeploy.models.load import ModelRequest, load_source, seeded_random_source
from vitdeploy.models.source import SourceModel

IMAGES = 32
_HALF = (0.5, 0.5, 0.5)


def images() -> ImageSet:
    """`IMAGES` of the demo's evaluation images, of all classes."""
    chosen = scan(assets.images_folder("evaluation"))
    return chosen.take(np.linspace(0, len(chosen) - 1, IMAGES).round().astype(int).tolist())


def lively_source(row: Row) -> SourceModel:
    """The row's model with lively weights, images squashed to the size as a whole.

    Raises VitDeployError where the source refuses.
    """
    source = _from_folder(row) if row.model.startswith("transformers:") else _by_name(row)
    preprocessing = replace(source.description.preprocessing, crop_pct=1.0)
    source = replace(source, description=replace(source.description, preprocessing=preprocessing))
    enliven(source.module)
    chosen = images()
    inputs = torch.from_numpy(
        np.concatenate(list(batches(chosen, preprocessing, source.resolution, 4)))
    )
    settle_batch_norms(source.module, inputs)
    if row.task != "features":
        labels = torch.tensor([item.label for item in chosen.items])
        fit_heads(source.module, inputs, labels)
    return source


def _by_name(row: Row) -> SourceModel:
    of_a_factory = row.model.startswith("vit_pytorch")
    request = ModelRequest(
        name=row.model,
        random_weights=True,
        task=row.task,  # type: ignore[arg-type]
        num_classes=None if row.task == "features" else CLASSES,
        model_kwargs=row.model_kwargs or None,
        mean=_HALF if of_a_factory else None,
        std=_HALF if of_a_factory else None,
    )
    return seeded_random_source(request, 0)


def _from_folder(row: Row) -> SourceModel:
    """transformers' class with `model_kwargs` as its configuration, saved and loaded again."""
    import transformers

    name = row.model.partition(":")[2]
    known: Any = getattr(transformers, name)
    classes = {} if row.task == "features" else {"num_labels": CLASSES}
    with torch.random.fork_rng(), tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        known(known.config_class(**row.model_kwargs, **classes)).save_pretrained(folder)
        request = ModelRequest(
            name=str(Path(folder)),
            task=row.task,  # type: ignore[arg-type]
            mean=_HALF,
            std=_HALF,
        )
        return api.relabelled(load_source(request), name)
