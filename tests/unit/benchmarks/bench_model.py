"""A model that means something, its labelled images, and what it answers on them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from patterned import SIZE

from vitdeploy.artifacts.onnx_model import OnnxModel
from vitdeploy.backends.onnxruntime_ import GraphSession
from vitdeploy.benchmarks.accuracy.evaluation import logits_of
from vitdeploy.images import ImageSet
from vitdeploy.preprocessing import Preprocessing


@dataclass(frozen=True)
class Bench:
    """`answers` are the float graph's, which stands for the source."""

    model: OnnxModel
    images: ImageSet
    answers: NDArray[np.float32]

    @property
    def preprocessing(self) -> Preprocessing:
        return self.model.description.source.preprocessing

    def answered(self, model: OnnxModel, preprocessing: Preprocessing | None = None) -> NDArray:
        session = GraphSession(model.path, threads=1)
        return logits_of(session, self.images, preprocessing or self.preprocessing, SIZE)
