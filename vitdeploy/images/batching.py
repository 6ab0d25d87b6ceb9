"""Preprocessed batches, decoded while the engine works on earlier ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from vitdeploy.errors import InputError
from vitdeploy.images.decoding import decode
from vitdeploy.images.image_set import ImageItem, ImageSet
from vitdeploy.preprocessing import Preprocessing, Size


def batches(
    images: ImageSet,
    preprocessing: Preprocessing,
    size: Size,
    batch_size: int,
    *,
    as_bytes: bool = False,
) -> Iterator[NDArray]:
    """Preprocessed batches, (n, channels, height, width) float32; the last may be smaller.

    `as_bytes` leaves the normalization to the graph: (n, height, width, channels) uint8.

    Images are decoded ahead of use by a few threads; at most four batches are
    held in memory.

    Raises InputError naming the first image that cannot be read.
    """

    prepare = preprocessing.apply_bytes if as_bytes else preprocessing.apply

    def load(item: ImageItem) -> NDArray:
        image = decode(item.path)
        try:
            return prepare(image, size)
        except InputError as error:
            raise InputError(f"image {item.path}: {error}", hint=error.hint) from error

    with ThreadPoolExecutor(max_workers=2) as pool:
        pending: deque[list[Future[NDArray]]] = deque()
        starts = iter(range(0, len(images), batch_size))
        try:
            while True:
                while len(pending) < 4 and (start := next(starts, None)) is not None:
                    chunk = images.items[start : start + batch_size]
                    pending.append([pool.submit(load, item) for item in chunk])
                if not pending:
                    return
                yield np.stack([future.result() for future in pending.popleft()])
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
