"""The feature store: features of images and texts are computed once and kept on disk.

The store is keyed by the backbone's source (network, weights, preprocessing) and by the SHA-256 of
each image's encoded bytes. An image that occurs in another dataset, in another order or twice is
not computed again.

Features are kept in chunks. The name of a chunk's file is the SHA-256 of its contents: a damaged
file is recognised by its name, and processes that share a store never overwrite each other.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import joblib
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from fedran.backbones.backbone import Backbone
from fedran.core.errors import Refused
from fedran.data.images import ItemSet
from fedran.wire.files import atomic_writer, write_atomically

CHUNK = 256
"""Images per chunk, for every batch size. An interruption loses at most one chunk."""
SUFFIX = ".safetensors"
MEMORY = 2 * 2**30
"""Bytes for images that are decoded and resized at the same time, about."""
WORKING_BYTES = 5
"""Bytes of memory per byte of pixels while an image is decoded and resized (measured)."""
Progress = Callable[[int, int], None]
"""Called with the number of images done and the total."""


def extract(
    items: ItemSet[Any],
    backbone: Backbone,
    folder: str | Path,
    out: str | Path,
    *,
    where: str | None = None,
    **options: Any,
) -> Path:
    """Write the features of all images or texts to the .npz file ``out`` and return its path.

    See ``compute`` for the other arguments. ``fedran.data.feature_file.read_feature_file`` reads
    the file. ``where``, the name or folder of the images, is stored in it, so that a dataset can
    offer features and images.
    """
    path = _writable(out)
    features, seconds = compute(items, backbone, folder, **options)
    arrays: dict[str, Any] = {
        **{name: np.array(text) for name, text in source_of(items, backbone).items()},
        "nonnegative": np.array(backbone.nonnegative),
        "seconds_per_row": np.array(seconds),
    }
    n, whole = len(items.train), not len(items.test)
    for part, rows, labels, ours in (
        ("train", features[:n], items.y_train, items.train),
        ("test", features[n:], items.y_test, items.test),
    ):
        if part == "train" or not whole:
            arrays["features" if whole else part] = rows
            arrays["labels" if whole else f"{part}_labels"] = labels
            if hasattr(ours, "names"):
                arrays["names" if whole else f"{part}_names"] = np.array(ours.names, dtype=str)
    if where is not None:
        arrays["images"] = np.array(where)
    with atomic_writer(path) as file:  # readable by its owner only: features describe images
        np.savez(file, **arrays)
    return path


def compute(
    items: ItemSet[Any],
    backbone: Backbone,
    folder: str | Path,
    *,
    batch_size: int | None = None,
    progress: Progress = lambda *_: None,
    notice: Callable[[str], None] = warnings.warn,
) -> tuple[NDArray[np.float32], float]:
    """Features of the training and then of the test items, and seconds per item.

    Features in the store ``folder`` are read, the others are computed and added chunk by chunk.
    After an interruption call the function again. ``progress(done, total)`` counts distinct
    items. ``notice`` receives a sentence when a damaged chunk was found.
    """
    batch_size = backbone.batch_size if batch_size is None else batch_size
    chunks = _chunk_folder(folder, source_of(items, backbone))
    table = _Table(items, backbone)
    for chunk in _read_chunks(chunks, backbone.out_features, notice):
        table.fill(chunk)
    progress(table.done, table.total)
    for chunk in _compute_chunks(table, batch_size, progress):
        _write_chunk(chunks, chunk)
        table.fill(chunk)
    backbone.check_sign(table.features)
    return table.features, table.seconds / max(table.total, 1)


def source_of(items: ItemSet[Any], backbone: Backbone) -> dict[str, str]:
    """What all parties must have in common: the backbone, and the range of deep images."""
    source = dict(backbone.source)
    if items.values is not None:
        source["range"] = "{:g},{:g}".format(*items.values)
    return source


def _writable(path: str | Path) -> Path:
    """The path of an .npz file in a writable folder, checked before hours of computing."""
    path = Path(path).expanduser()
    if path.suffix != ".npz":
        raise ValueError(f"expected a file name that ends in .npz, got {path.name!r}")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: the folder {path.parent} does not exist")
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise PermissionError(f"cannot write {path}: it is a folder, or its folder is not writable")
    return path


@dataclass(frozen=True, eq=False)
class _Chunk:
    """Features of some images and the seconds that computing them took."""

    images: list[bytes]
    """SHA-256 of each image's encoded bytes."""
    features: NDArray[np.float32]
    seconds: float


class _Table:
    """The features of all training and test rows, filled as they are found or computed."""

    def __init__(self, items: ItemSet[Any], backbone: Backbone) -> None:
        self.backbone = backbone
        self.missing: dict[bytes, list[int]] = {}
        """Rows without features, by the hash of their item."""
        self.places = [(part, i) for part in (items.train, items.test) for i in range(len(part))]
        for row, (part, i) in enumerate(self.places):
            self.missing.setdefault(hashlib.sha256(part.encoded(i)).digest(), []).append(row)
        self.features = np.empty((len(self.places), backbone.out_features), np.float32)
        self.total = len(self.missing)
        self.seconds = 0.0

    @property
    def done(self) -> int:
        return self.total - len(self.missing)

    def item(self, row: int) -> Any:
        """The pixels or the text of a row."""
        part, i = self.places[row]
        return getattr(part, self.backbone.takes)(i)

    def fill(self, chunk: _Chunk) -> None:
        used = 0
        for image, features in zip(chunk.images, chunk.features, strict=True):
            rows = self.missing.pop(image, None)
            if rows is not None:
                self.features[rows] = features
                used += 1
        self.seconds += chunk.seconds * used / max(len(chunk.images), 1)


def _compute_chunks(table: _Table, batch_size: int, report: Progress) -> Iterator[_Chunk]:
    """Chunks of the missing images.

    While the network computes, all cores decode and resize the images of the next batch: a GPU
    would otherwise wait for them. Of large images fewer are in memory at the same time.
    """
    backbone = table.backbone
    missing = [(image, rows[0]) for image, rows in table.missing.items()]
    done = table.done
    some = missing[:: max(1, len(missing) // 4)]
    largest = max((getattr(table.item(row), "nbytes", 1) for _, row in some), default=1)
    fit = max(2, MEMORY // (WORKING_BYTES * largest))
    with ThreadPoolExecutor(min(joblib.cpu_count(), fit)) as pool:

        def prepare(row: int) -> Any:
            return backbone.preprocess(table.item(row))

        for part in _pieces(missing, CHUNK):
            start = time.perf_counter()
            features = []
            waiting: list[Future[Any]] = []
            for batch in [*_pieces([row for _, row in part], batch_size), []]:
                ready, waiting = waiting, [pool.submit(prepare, row) for row in batch]
                if ready:
                    features.append(backbone([future.result() for future in ready]))
                    done += len(ready)
                    report(done, table.total)
            seconds = time.perf_counter() - start
            yield _Chunk([image for image, _ in part], np.concatenate(features), seconds)


def _pieces(items: list[Any], size: int) -> list[list[Any]]:
    return [items[i : i + size] for i in range(0, len(items), size)]


def _chunk_folder(store: str | Path, source: Mapping[str, str]) -> Path:
    """The folder for features of this source, named by its hash. It is created if missing."""
    text = json.dumps(dict(source), sort_keys=True, indent=1).encode()
    folder = Path(store) / hashlib.sha256(text).hexdigest()[:32]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not (folder / "source.json").is_file():
        write_atomically(folder / "source.json", text)
    return folder


def _write_chunk(folder: Path, chunk: _Chunk) -> None:
    """Add a chunk. After a crash it is complete or absent."""
    data = save(
        {
            "images": np.frombuffer(b"".join(chunk.images), np.uint8).reshape(-1, 32),
            "features": np.ascontiguousarray(chunk.features, dtype=np.float32),
            "seconds": np.array([chunk.seconds]),
        }
    )
    write_atomically(folder / f"{hashlib.sha256(data).hexdigest()}{SUFFIX}", data)


def _read_chunks(folder: Path, width: int, notice: Callable[[str], None]) -> Iterator[_Chunk]:
    """All intact chunks. A damaged chunk is reported and removed, and is computed again."""
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            yield _read_chunk(path, width)
        except Refused as reason:
            path.unlink(missing_ok=True)
            notice(f"{reason}; removed, and its images are computed again")


def _read_chunk(path: Path, width: int) -> _Chunk:
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != path.stem:
        raise Refused(str(path), "a file whose name is the hash of its contents", "other contents")
    try:
        found = load(data)
        images, features, seconds = (found[k] for k in ("images", "features", "seconds"))
    except (SafetensorError, KeyError) as reason:
        raise Refused(str(path), "a chunk of features", f"{reason}") from None
    if images.shape != (len(features), 32) or features.shape != (len(features), width):
        raise Refused(str(path), f"rows of {width} features", f"{features.shape}")
    return _Chunk([row.tobytes() for row in images], features, float(seconds[0]))
