"""Features on disk, in chunks that are whole or not there.

A chunk holds the features of some images, each under the SHA-256 of the image's encoded bytes. A
file's name is the SHA-256 of its contents: a damaged file is recognised by its name, and two
processes that share a folder never write into each other's files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from fedran.core.errors import Refused
from fedran.wire.files import write_atomically

SUFFIX = ".safetensors"


@dataclass(frozen=True, eq=False)
class Chunk:
    """Features of some images and the seconds that computing them took."""

    images: list[bytes]
    """SHA-256 of each image's encoded bytes."""
    features: NDArray[np.float32]
    seconds: float


def chunk_folder(store: str | Path, source: Mapping[str, str]) -> Path:
    """The folder for features of this source, made where it is missing.

    Named by a hash over backbone, weights and preprocessing, which lie beside in source.json.
    """
    text = json.dumps(dict(source), sort_keys=True, indent=1)
    folder = Path(store) / hashlib.sha256(text.encode()).hexdigest()[:32]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not (folder / "source.json").is_file():
        write_atomically(folder / "source.json", text.encode())
    return folder


def write_chunk(folder: Path, chunk: Chunk) -> None:
    """Add a chunk; after a crash it is there as a whole or not at all."""
    data = save(
        {
            "images": np.frombuffer(b"".join(chunk.images), np.uint8).reshape(-1, 32),
            "features": np.ascontiguousarray(chunk.features, dtype=np.float32),
            "seconds": np.array([chunk.seconds]),
        }
    )
    write_atomically(folder / f"{hashlib.sha256(data).hexdigest()}{SUFFIX}", data)


def read_chunks(folder: Path, width: int, notice: Callable[[str], None]) -> Iterator[Chunk]:
    """All whole chunks. A damaged one is removed, to be computed again, and that is said."""
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            yield _read(path, width)
        except Refused as reason:
            path.unlink(missing_ok=True)
            notice(f"{reason}; removed, and its images are computed again")


def _read(path: Path, width: int) -> Chunk:
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != path.stem:
        raise Refused(str(path), "the contents that its name is the hash of", "others")
    try:
        found = load(data)
        images, features, seconds = (found[k] for k in ("images", "features", "seconds"))
    except (SafetensorError, KeyError) as reason:
        raise Refused(str(path), "a chunk of features", f"{reason}") from None
    if images.shape != (len(features), 32) or features.shape != (len(features), width):
        raise Refused(str(path), f"rows of {width} features", f"{features.shape}")
    return Chunk([row.tobytes() for row in images], features, float(seconds[0]))
