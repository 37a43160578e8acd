"""Arrays in .npy and .npz files from anywhere. Nothing in a file is executed."""

from __future__ import annotations

import logging
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedran.core.errors import Refused

log = logging.getLogger(__name__)
UNREADABLE = (ValueError, OSError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error)
"""Exceptions that NumPy raises for a foreign or damaged file."""


@contextmanager
def open_arrays(path: Path, expected: str) -> Iterator[Any]:
    """The array in an .npy file, or the open archive of an .npz file with ``files`` and ``[name]``.

    Whatever NumPy cannot read inside the block is refused, with ``expected`` in the sentence. The
    sentence names no folder and repeats nothing of the file. An array of an archive is read when it
    is asked for.
    """
    try:
        with path.open("rb") as raw:
            yield np.load(raw, allow_pickle=False)
    except Refused:
        raise
    except MemoryError:
        raise Refused(path.name, expected, "a size that does not fit into memory") from None
    except UNREADABLE as reason:
        log.info("%s: %s", path, reason)
        objects = object_arrays(path)
        if objects:
            got = f"an array of Python objects ({', '.join(objects)})"
            hint = 'save features as numbers, and labels as text ("": missing) or as integers'
            raise Refused(path.name, expected, got, hint) from None
        raise Refused(path.name, expected, "a damaged or other file") from None


def object_arrays(path: Path) -> list[str]:
    """Arrays that NumPy would have to unpickle, by their headers alone; [] for other files."""
    try:
        if not zipfile.is_zipfile(path):
            with path.open("rb") as file:
                return [path.name] if b"'|O'" in file.read(256) else []
        with zipfile.ZipFile(path) as archive:
            heads = {name: archive.open(name).read(256) for name in archive.namelist()}
    except UNREADABLE:
        return []
    return [name.removesuffix(".npy") for name, head in heads.items() if b"'|O'" in head]
