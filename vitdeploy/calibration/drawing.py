"""Drawing calibration images: balanced over classes, seeded, and reading no more than it takes."""

from __future__ import annotations

import random
import warnings
from collections import defaultdict, deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from vitdeploy.calibration.examination import Broken, Picture, examine
from vitdeploy.images import ImageSet
from vitdeploy.progress import SILENT, Progress

_AHEAD = 8
_THREADS = 4
"""Images in memory, and threads that decode them."""


@dataclass
class Drawn:
    """What a draw has come to, by indices of the images.

    `chosen` are in the order of the draw and differ in their bytes; `broken`
    and `copies` (with the chosen one each repeats) were passed over.
    """

    chosen: dict[int, Picture] = field(default_factory=dict)
    broken: dict[int, Broken] = field(default_factory=dict)
    copies: dict[int, int] = field(default_factory=dict)
    _first_with: dict[str, int] = field(default_factory=dict)

    def add(self, index: int, found: Picture | Broken) -> bool:
        """Whether the image is one more of the chosen."""
        if isinstance(found, Broken):
            self.broken[index] = found
            return False
        first = self._first_with.setdefault(found.digest, index)
        if first != index:
            self.copies[index] = first
            return False
        self.chosen[index] = found
        return True


def draw(images: ImageSet, count: int, seed: int, *, progress: Progress = SILENT) -> Drawn:
    """Examine images in balanced order until `count` are chosen or none is left.

    Never more are under way than are still wanted, so no file is read for nothing.
    """
    order = _BalancedOrder(images, random.Random(seed))
    drawn = Drawn()
    pending: deque[tuple[int, Future[Picture | Broken]]] = deque()
    with (
        _no_warnings_of_decoders(),
        ThreadPoolExecutor(_THREADS) as pool,
        progress.task("examining calibration images", count) as task,
    ):
        while True:
            wanted = min(_AHEAD, count - len(drawn.chosen))
            while len(pending) < wanted and (index := order.take()) is not None:
                pending.append((index, pool.submit(examine, images.items[index].path)))
            if not pending:
                return drawn
            index, future = pending.popleft()
            if drawn.add(index, future.result()):
                task.advance()
            else:
                order.pass_over(index)


@contextmanager
def _no_warnings_of_decoders() -> Iterator[None]:
    """What Pillow warns of is damage that is found anyhow, or data we do not use."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\.")
        yield


class _BalancedOrder:
    """Shuffled indices, each of a class of which the fewest were taken so far."""

    _EXHAUSTED = np.iinfo(np.int64).max

    def __init__(self, images: ImageSet, generator: random.Random) -> None:
        by_class: defaultdict[int | None, list[int]] = defaultdict(list)
        for index, item in enumerate(images.items):
            by_class[item.label].append(index)
        for members in by_class.values():
            generator.shuffle(members)
        # With fewer images than classes, the same first classes would always be the ones drawn.
        classes = list(by_class)
        generator.shuffle(classes)
        self._members = [by_class[label] for label in classes]
        self._place = {index: i for i, members in enumerate(self._members) for index in members}
        self._taken = np.zeros(len(classes), np.int64)

    def take(self) -> int | None:
        """The next index; None where none is left."""
        if not self._members:
            return None
        place = int(self._taken.argmin())
        if self._taken[place] == self._EXHAUSTED:
            return None
        index = self._members[place].pop()
        self._taken[place] = self._taken[place] + 1 if self._members[place] else self._EXHAUSTED
        return index

    def pass_over(self, index: int) -> None:
        """`index` was taken and cannot be used: its class is due another."""
        place = self._place[index]
        if self._members[place]:
            self._taken[place] -= 1
