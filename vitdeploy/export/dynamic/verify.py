"""Proof that one graph computes at every size what PyTorch computes there."""

from __future__ import annotations

from itertools import cycle

import numpy as np

from vitdeploy.artifacts.onnx_model import ResolutionRange, Verification
from vitdeploy.errors import ExportError
from vitdeploy.export import samples
from vitdeploy.export.dynamic.sizes import tried_sizes
from vitdeploy.export.verify import BATCH_SIZES, sample_images, verify
from vitdeploy.graph.files import RunnableGraph
from vitdeploy.images import ImageSet
from vitdeploy.models.source import SourceModel

_BATCHES = ((1, 2), (5,))
"""By turns, so that five sizes cost 17 images and see each of `BATCH_SIZES`."""


def verify_dynamic(
    graph: bytes | RunnableGraph,
    source: SourceModel,
    sizes: ResolutionRange,
    images: ImageSet | None = None,
    *,
    as_bytes: bool = False,
) -> Verification:
    """Compare the graph with `source.at(size)` at the sizes that show mistakes.

    The lowest, the native (where inside), the highest, the widest and the
    tallest; the figures are the worst error, and agreement over all images.

    Raises ExportError naming the size at which the graph differs, or does not run.
    """
    found: list[Verification] = []
    for size, batches in zip(tried_sizes(source, sizes), cycle(_BATCHES), strict=False):
        sized = source.at(size)
        inputs, real = sample_images(sized, images)
        if as_bytes:
            inputs = samples.as_bytes(inputs, source.description.preprocessing)
        try:
            found.append(
                verify(
                    graph,
                    sized,
                    inputs[: sum(batches)],
                    real_images=real,
                    batch_sizes=batches,
                )
            )
        except ExportError as error:
            raise ExportError(f"at {size[0]}x{size[1]} {error}", hint=error.hint) from error
    counts = [each.images for each in found]
    return Verification(
        images=sum(counts),
        batch_sizes=BATCH_SIZES,
        max_error=max(each.max_error for each in found),
        agreement=float(np.average([each.agreement for each in found], weights=counts)),
        real_images=all(each.real_images for each in found),
        runtime_error=max((e for each in found if (e := each.runtime_error)), default=None),
    )
