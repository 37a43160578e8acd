"""The feature store: features of images, computed once.

Keyed by the backbone's source (network, weights, preprocessing) and by each image's own hash, so
that the same image in another dataset, in another order or twice in one is not computed again.
"""

from __future__ import annotations

import hashlib
import re
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedran.backbones.backbone import Backbone
from fedran.backbones.chunks import Chunk, chunk_folder, read_chunks, write_chunk
from fedran.backbones.feature_file import halved, require_writable, write_features

CHUNK = 256
"""Images a chunk, whatever the batch: what an interruption can cost at most."""
WORKERS = 2
"""Threads that decode and resize ahead of the network."""

Progress = Callable[[int, int], None]


class Images(Protocol):
    """Images row by row."""

    def __len__(self) -> int: ...

    def encoded(self, i: int) -> bytes:
        """The bytes that identify image i."""
        ...

    def pixels(self, i: int) -> NDArray[np.uint8]:
        """Image i as (height, width, 3)."""
        ...


class LabelledImages(Protocol):
    """Training and test images with their labels, for example a ``fedran.data`` ImageSet."""

    @property
    def name(self) -> str:
        """A short name."""
        ...

    @property
    def train(self) -> Images:
        """Training images."""
        ...

    @property
    def y_train(self) -> NDArray[Any]:
        """Their labels."""
        ...

    @property
    def test(self) -> Images:
        """Test images."""
        ...

    @property
    def y_test(self) -> NDArray[Any]:
        """Their labels."""
        ...


def extract(
    images: LabelledImages,
    backbone: Backbone,
    folder: str | Path,
    batch_size: int | None = None,
    progress: Progress | None = None,
    *,
    out: str | Path | None = None,
    where: str | None = None,
    half: bool = False,
    notice: Callable[[str], None] = warnings.warn,
) -> Path:
    """Write the features of all images to one .npz file and return its path.

    What the store in ``folder`` has is read, the rest is computed and added chunk by chunk: after
    an interruption call it again. ``progress(done, total)`` counts distinct images, ``notice``
    gets a sentence when a damaged chunk was found, ``half`` writes float16. The file is ``out``,
    or lies in ``folder``; ``fedran.data.feature_file.read_feature_file`` reads it. ``where`` is
    noted in it: the name or folder of the images, for those who want both.
    """
    batch_size = backbone.batch_size if batch_size is None else batch_size
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    chunks = chunk_folder(folder, backbone.source)
    if out is None:
        slug = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{images.name}-{backbone.kind}")
        out = Path(folder) / f"{slug}-{chunks.name[:8]}.npz"
    path = require_writable(out)
    table = _Table(images, backbone.out_features)
    report = progress or (lambda *_: None)
    for chunk in read_chunks(chunks, backbone.out_features, notice):
        table.fill(chunk)
    report(table.done, table.total)
    for chunk in _computed(table, backbone, batch_size, report):
        write_chunk(chunks, chunk)
        table.fill(chunk)
    train, test = table.parts()
    arrays: dict[str, NDArray[Any]] = {"train": train, "test": test}
    if half:
        arrays = {name: halved(array) for name, array in arrays.items()}
    labels = {"train_labels": images.y_train, "test_labels": images.y_test}
    if where is not None:
        labels["images"] = np.array(where)
    seconds = table.seconds / max(table.total, 1)
    return write_features(path, {**arrays, **labels}, backbone.source, seconds)


class _Table:
    """The features of all rows, filled in as they are found or computed."""

    def __init__(self, images: LabelledImages, width: int) -> None:
        self.images = images
        self.missing: dict[bytes, list[int]] = {}
        rows = len(images.train) + len(images.test)
        for i in range(rows):
            self.missing.setdefault(hashlib.sha256(self._at(i, "encoded")).digest(), []).append(i)
        self.features = np.empty((rows, width), np.float32)
        self.total = len(self.missing)
        self.seconds = 0.0

    @property
    def done(self) -> int:
        return self.total - len(self.missing)

    def pixels(self, row: int) -> NDArray[np.uint8]:
        return self._at(row, "pixels")

    def fill(self, chunk: Chunk) -> None:
        used = 0
        for image, features in zip(chunk.images, chunk.features, strict=True):
            rows = self.missing.pop(image, None)
            if rows is not None:
                self.features[rows] = features
                used += 1
        self.seconds += chunk.seconds * used / max(len(chunk.images), 1)

    def parts(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        n = len(self.images.train)
        return self.features[:n], self.features[n:]

    def _at(self, row: int, what: str) -> Any:
        n = len(self.images.train)
        part, i = (self.images.train, row) if row < n else (self.images.test, row - n)
        return getattr(part, what)(i)


def _computed(
    table: _Table, backbone: Backbone, batch_size: int, report: Progress
) -> Iterator[Chunk]:
    """Chunks of the images that are missing."""
    todo = [(image, rows[0]) for image, rows in table.missing.items()]
    done = table.done
    with ThreadPoolExecutor(WORKERS) as pool:

        def prepare(row: int) -> NDArray[np.float32]:
            return backbone.preprocess(table.pixels(row))

        for part in _pieces(todo, CHUNK):
            start = time.perf_counter()
            features = []
            batches = _pieces([row for _, row in part], batch_size)
            for batch in _ahead(pool, prepare, batches):
                features.append(backbone(batch))
                done += len(batch)
                report(done, table.total)
            seconds = time.perf_counter() - start
            yield Chunk([image for image, _ in part], np.concatenate(features), seconds)


def _ahead(
    pool: ThreadPoolExecutor,
    prepare: Callable[[int], NDArray[np.float32]],
    batches: list[list[int]],
) -> Iterator[NDArray[np.float32]]:
    """Prepared batches; while one is in use the next is prepared."""
    waiting: list[Future[NDArray[np.float32]]] = []
    for batch in [*batches, []]:
        ready, waiting = waiting, [pool.submit(prepare, row) for row in batch]
        if ready:
            yield np.stack([future.result() for future in ready])


def _pieces(items: list[Any], size: int) -> list[list[Any]]:
    return [items[i : i + size] for i in range(0, len(items), size)]
