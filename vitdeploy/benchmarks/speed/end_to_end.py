"""From image files to answers: where the time of a whole run goes, stage by stage."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from vitdeploy.artifacts.engine import Engine
from vitdeploy.backends.base import Session
from vitdeploy.benchmarks.naming import engine_names
from vitdeploy.benchmarks.speed.timing_guards import Clock, settle
from vitdeploy.errors import InputError
from vitdeploy.images import ImageSet, batches, decode


@dataclass(frozen=True)
class EndToEnd:
    """One engine on files. Stages are medians in ms per image, one after the other on one thread.

    `decode_ms` reads and decodes, `prepare_ms` resizes, crops and normalizes,
    `engine_ms` is the session alone (with what it copies to a GPU and back).
    `images_per_second` is of the pipeline, which decodes ahead on other
    threads: at best, what the slowest stage allows. All of it is of one pass, so
    no figure has an interval.
    """

    engine_digest: str
    name: str
    batch: int
    images: int
    decode_ms: float
    prepare_ms: float
    engine_ms: float
    images_per_second: float

    def in_words(self) -> str:
        stages = {
            "decoding": self.decode_ms,
            "resizing and normalizing": self.prepare_ms,
            "the engine": self.engine_ms,
        }
        told = ", ".join(f"{name} {ms:.3g} ms" for name, ms in stages.items())
        slowest = max(stages, key=lambda name: stages[name])
        return (
            f"{self.name} from files at batch {self.batch}: {self.images_per_second:.3g} images/s "
            f"(one pass over {self.images:,} images, no interval); per image "
            f"{told}: {slowest} takes most"
        )


def require_a_batch(images: ImageSet, batch: int) -> None:
    """Raise InputError for fewer images than one batch."""
    if len(images) < batch:
        raise InputError(
            f"{len(images)} images do not fill a batch of {batch}", hint="give more images"
        )


def measure_end_to_end(
    engine: Engine,
    session: Session,
    images: ImageSet,
    batch: int,
    *,
    clock: Clock = time.perf_counter,
) -> EndToEnd:
    """Run all `images` through `session` from their files, once in stages and once as a pipeline.

    Raises InputError for fewer images than one batch, or one that cannot be read.
    """
    require_a_batch(images, batch)
    model = engine.manifest.model
    as_bytes = model.input_format == "uint8-nhwc"
    preprocessing, size = model.source.preprocessing, model.resolution
    prepare = preprocessing.apply_bytes if as_bytes else preprocessing.apply
    decoding, preparing, answering = [], [], []
    waiting = []
    for item in images.items:
        start = clock()
        image = decode(item.path)
        decoded = clock()
        waiting.append(prepare(image, size))
        preparing.append(clock() - decoded)
        decoding.append(decoded - start)
        if len(waiting) == batch:
            stacked = np.stack(waiting)
            waiting = []
            start = clock()
            session.run(stacked)
            settle(session)
            answering.append((clock() - start) / batch)
    start = clock()
    for stacked in batches(images, preprocessing, size, batch, as_bytes=as_bytes):
        session.run(stacked)
    settle(session)
    took = clock() - start
    decode_ms, prepare_ms, engine_ms = (
        1000 * float(np.median(times)) for times in (decoding, preparing, answering)
    )
    speed = len(images) / took
    return EndToEnd(
        engine.manifest.engine_digest,
        engine_names([engine])[0],
        batch,
        len(images),
        decode_ms,
        prepare_ms,
        engine_ms,
        speed,
    )
