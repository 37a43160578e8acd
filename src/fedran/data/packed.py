"""Feature files (.npz), anywhere or below the folder that FEDRAN_DATA names."""

from __future__ import annotations

import os
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.data.dataset import Dataset

VARIABLE = "FEDRAN_DATA"
SOURCE = ("backbone", "weights", "preprocessing")


def data_file(relative: str, what: str = "") -> Path:
    """The file below FEDRAN_DATA, or a FileNotFoundError that says what to do."""
    folder = os.environ.get(VARIABLE)
    where = f" ({what})" if what else ""
    if not folder:
        raise FileNotFoundError(
            f"{VARIABLE} is not set; set it to the folder that holds {relative}{where}, "
            f"for example {VARIABLE}=~/fedran-data"
        )
    path = Path(folder).expanduser() / relative
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} does not exist; put {relative}{where} below {VARIABLE}={folder}"
        )
    return path


def packed_features(path: str | Path, name: str | None = None) -> Dataset:
    """Features from a file with ``train``, ``test`` (or 8-bit codes) and their labels.

    Arrays ``train`` (n, d) and ``test`` (m, d) hold float values; or ``train_codes``,
    ``test_codes`` uint8 and ``scale`` (d,) stand for (code / 255 * scale)^2. Besides
    ``train_labels`` and ``test_labels``; and, where known, ``train_groups`` (natural clients),
    ``backbone``, ``weights``, ``preprocessing`` and ``seconds_per_row``, as ``fedran features``
    writes them.
    """
    path = Path(path)
    arrays = load_arrays(path)
    parts = [_rows(arrays, part, path) for part in ("train", "test")]
    labels = [require(arrays, f"{part}_labels", path) for part in ("train", "test")]
    return Dataset(
        name or path.stem,
        "features",
        parts[0],
        labels[0],
        parts[1],
        labels[1],
        groups=arrays.get("train_groups"),
        source={k: str(arrays[k]) for k in SOURCE if k in arrays},
        seconds_per_row=_seconds(arrays, path),
    )


def _seconds(arrays: dict[str, NDArray[Any]], path: Path) -> float | None:
    found = arrays.get("seconds_per_row", np.array(np.nan))
    if found.shape != () or found.dtype.kind != "f" or found < 0:
        raise ValueError(f"{path}: seconds_per_row must be one number, at least 0, got {found}")
    return None if np.isnan(found) else float(found)


def load_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of an .npz file; nothing in it is executed."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; expected an .npz file of features")
    try:
        with path.open("rb") as raw:
            file = np.load(raw, allow_pickle=False)
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise ValueError("a single array")
            return {name: file[name] for name in file.files}
    except (ValueError, zipfile.BadZipFile, zlib.error, EOFError) as reason:
        raise ValueError(f"{path}: expected an .npz file of plain arrays, got {reason}") from None


def require(arrays: dict[str, NDArray[Any]], name: str, path: Path) -> NDArray[Any]:
    """The array of that name, or a ValueError that lists what there is."""
    if name not in arrays:
        raise ValueError(f"{path}: expected an array {name!r}, found {sorted(arrays)}")
    return arrays[name]


def _rows(arrays: dict[str, NDArray[Any]], part: str, path: Path) -> NDArray[np.float32]:
    if part in arrays:
        if arrays[part].dtype.kind not in "fiub":
            raise ValueError(f"{path}: {part} must hold numbers, got {arrays[part].dtype}")
        values = arrays[part].astype(np.float32)
    else:
        codes = require(arrays, f"{part}_codes", path)
        scale = require(arrays, "scale", path).astype(np.float32)
        if scale.shape != codes.shape[1:]:
            raise ValueError(f"{path}: scale must have {codes.shape[1:]} values, got {scale.shape}")
        values = codes.astype(np.float32)
        values *= scale / np.float32(255)
        values = np.square(values, out=values)
    if values.ndim != 2:
        raise ValueError(f"{path}: {part} must be (rows, features), got shape {values.shape}")
    if not np.all(np.isfinite(values)):
        raise ValueError(f"{path}: {part} holds NaN or infinite values; remove or repair such rows")
    return values
