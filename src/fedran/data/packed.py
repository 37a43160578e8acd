"""Feature files (.npz) below the folder that the environment variable FEDRAN_DATA names."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.data.dataset import Dataset

VARIABLE = "FEDRAN_DATA"


def data_file(relative: str) -> Path:
    """The file below FEDRAN_DATA, or a FileNotFoundError that says what to do."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        raise FileNotFoundError(
            f"{VARIABLE} is not set; set it to the folder that holds {relative}, "
            f"for example {VARIABLE}=~/fedran-data"
        )
    path = Path(folder).expanduser() / relative
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; put {relative} below {VARIABLE}={folder}")
    return path


def packed_features(path: str | Path) -> Dataset:
    """Features from a file with ``train``, ``test`` (or 8-bit codes) and their labels.

    Arrays ``train`` (n, d) and ``test`` (m, d) hold float values; or ``train_codes``,
    ``test_codes`` uint8 and ``scale`` (d,) stand for (code / 255 * scale)^2. Besides
    ``train_labels`` and ``test_labels``.
    """
    path = Path(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (ValueError, zipfile.BadZipFile, EOFError) as reason:
        raise ValueError(f"{path}: expected an .npz file of plain arrays, got {reason}") from None
    parts = [_rows(arrays, part, path) for part in ("train", "test")]
    labels = [_require(arrays, f"{part}_labels", path) for part in ("train", "test")]
    return Dataset(path.stem, "features", parts[0], labels[0], parts[1], labels[1])


def _rows(arrays: dict[str, NDArray[Any]], part: str, path: Path) -> NDArray[np.float32]:
    if part in arrays:
        return arrays[part].astype(np.float32)
    codes = _require(arrays, f"{part}_codes", path)
    scale = _require(arrays, "scale", path).astype(np.float32)
    values = codes.astype(np.float32)
    values *= scale / np.float32(255)
    return np.square(values, out=values)


def _require(arrays: dict[str, NDArray[Any]], name: str, path: Path) -> NDArray[Any]:
    if name not in arrays:
        raise ValueError(f"{path}: expected an array {name!r}, found {sorted(arrays)}")
    return arrays[name]
