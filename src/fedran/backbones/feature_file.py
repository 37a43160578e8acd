"""A file of features and labels, with what made them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.wire.files import atomic_writer


def require_writable(path: str | Path) -> Path:
    """The path, checked before hours of computing: an .npz file in a folder we may write to."""
    path = Path(path).expanduser()
    if path.suffix != ".npz":
        raise ValueError(f"expected a file name that ends in .npz, got {path.name!r}")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: the folder {path.parent} does not exist")
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise PermissionError(
            f"cannot write {path}: it is a folder or lies in one we cannot change"
        )
    return path


def write_features(
    path: Path,
    arrays: Mapping[str, NDArray[Any]],
    source: Mapping[str, str],
    seconds_per_row: float,
) -> Path:
    """Write ``train``, ``test``, their labels, the source's fields and the seconds as one .npz.

    Written aside and renamed: the path holds the old file or all of the new one. The file can be
    read by its owner only, because features are records of single images.
    """
    everything: dict[str, Any] = {**arrays, **{k: np.array(text) for k, text in source.items()}}
    everything["seconds_per_row"] = np.array(seconds_per_row)
    with atomic_writer(path) as file:
        np.savez(file, **everything)
    return path


def halved(features: NDArray[np.float32]) -> NDArray[np.float16]:
    """Features as float16; a ValueError where they do not fit into its range."""
    if np.abs(features).max(initial=0) > np.finfo(np.float16).max:
        raise ValueError("features above 65504 do not fit into float16; write float32")
    return features.astype(np.float16)
