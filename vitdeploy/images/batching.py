"""Preprocessed batches, decoded while the engine works on earlier ones."""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from vitdeploy import environment
from vitdeploy.errors import InputError
from vitdeploy.images.decoding import decode
from vitdeploy.images.image_set import ImageItem, ImageSet
from vitdeploy.preprocessing import Preprocessing, Size

_AHEAD = 4
"""Batches being decoded or waiting; the caller holds one more."""

_NICENESS = 10


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

    Images are decoded ahead of use, straight into their place in the batch, by
    as many threads as there are cores: Pillow and the runtimes let go of the
    interpreter while they work, so neither waits for the other as long as
    there is work for both. At most four batches are held in memory.

    Raises InputError naming the first image that cannot be read.
    """
    height, width = size
    channels = preprocessing.channels
    shape = (height, width, channels) if as_bytes else (channels, height, width)
    prepare = preprocessing.apply_bytes if as_bytes else preprocessing.apply

    def load(item: ImageItem, place: NDArray) -> None:
        image = decode(item.path)
        try:
            place[...] = prepare(image, size)
        except InputError as error:
            raise InputError(f"image {item.path}: {error}", hint=error.hint) from error

    workers = environment.available_cores()
    with ThreadPoolExecutor(workers, initializer=_give_way) as pool:
        pending: deque[tuple[NDArray, list[Future[None]]]] = deque()
        starts = iter(range(0, len(images), batch_size))
        try:
            while True:
                while len(pending) < _AHEAD and (start := next(starts, None)) is not None:
                    chunk = images.items[start : start + batch_size]
                    batch = np.empty((len(chunk), *shape), np.uint8 if as_bytes else np.float32)
                    futures = [pool.submit(load, item, batch[i]) for i, item in enumerate(chunk)]
                    pending.append((batch, futures))
                if not pending:
                    return
                batch, futures = pending.popleft()
                for future in futures:
                    future.result()
                yield batch
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _give_way() -> None:
    """This thread works when no other does: where the system has threads with a priority (Linux).

    A runtime's threads wait for one another at every operator; were one of
    them stopped for a decoder, the others would stand still with it.
    """
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
