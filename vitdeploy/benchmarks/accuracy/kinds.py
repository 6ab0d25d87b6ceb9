"""Which comparison belongs to which model."""

from __future__ import annotations

from typing import Literal

from vitdeploy.artifacts.onnx_model import Output
from vitdeploy.artifacts.source import Task
from vitdeploy.errors import InputError

Kind = Literal["classes", "features", "multilabel", "regression"]
_KINDS: dict[Task, Kind] = {
    "classify": "classes",
    "multilabel": "multilabel",
    "regress": "regression",
    "features": "features",
}


def kind_of(task: Task, output: Output, *, asked: Task | None = None) -> Kind:
    """What a graph's answers are: features and tokens whatever the task, else by the task.

    `asked` overrules the model's own task. Raises InputError where it cannot:
    a graph that ends in features answers no classes.
    """
    ends_in_features = output in ("features", "tokens")
    if asked is None or asked == task:
        return "features" if ends_in_features else _KINDS[task]
    if ends_in_features and asked != "features":
        raise InputError(
            f"the engine answers {output}, which cannot be judged as --task {asked}",
            hint="leave --task out: features are judged by cosine and nearest neighbours",
        )
    return _KINDS[asked]
