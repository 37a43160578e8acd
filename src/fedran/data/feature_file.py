"""Feature files: .npz archives of features and labels, with a note on how they were made; tables.

``fedran.backbones.store.extract`` writes the archives. A table has a column of labels.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core.errors import Refused
from fedran.core.prepare import kind_for
from fedran.core.sums.scale import unequal_scales
from fedran.data.dataset import Dataset
from fedran.data.rows import (
    IMPUTE,
    LABEL,
    Rows,
    is_table,
    none_if_missing,
    open_arrays,
    read_labelled_table,
)

ARCHIVE = "an .npz file of plain arrays"
EXPECTED = "arrays X and y, features and labels, or train, train_labels, test and test_labels"
SOURCE = ("backbone", "weights", "preprocessing", "range")
"""Texts that say how features were made: two rows mean the same only if all are equal."""
TEST_SHARE, TEST_SEED = 0.3, 0
"""The share of each class that becomes test rows where a file or dataset has none of its own."""
_USUAL_NAMES = {
    "X_train": "train",
    "y_train": "train_labels",
    "X_test": "test",
    "y_test": "test_labels",
    "features": "X",
    "labels": "y",
}
"""Names that scikit-learn users and sites of a federation give to the arrays, and ours."""


def read_feature_file(
    path: str | Path, nonnegative: bool | None = None, label: str = LABEL
) -> Dataset:
    """The dataset in a feature file.

    Required arrays: ``train`` (n, d) and ``test`` (m, d) with numbers, or ``train_codes`` and
    ``test_codes`` in uint8 with ``scale`` (d,), which stand for (code / 255 * scale)^2; and
    ``train_labels`` and ``test_labels``. The names ``X_train``, ``y_train``, ``X_test`` and
    ``y_test`` mean the same. A file with only ``X`` and ``y``, or ``features`` and ``labels``, has
    no test rows: three in ten rows of each class, drawn with a fixed seed, become test rows. So it
    is for a table (.csv, .parquet) with a column ``label``. Rows whose label is missing (empty text
    or NaN) are left out, and ``note`` says how many. It also names columns that hide the others.
    All rows must be finite, as at a site, which may give such a row a label.

    Optional: ``train_groups`` (natural clients; ``groups`` beside ``X``), ``backbone``,
    ``weights``, ``preprocessing``, ``seconds_per_row`` and ``nonnegative`` (whether the backbone
    declares features that are never negative). ``nonnegative`` declares this for a file without
    such an array. A file that contradicts the declaration is refused.
    """
    path = Path(path)
    arrays, columns = _read(path, label)
    names: list[tuple[str, str, str]] = [("X", "y", "groups")]
    if "X" not in arrays:
        names = [(part, f"{part}_labels", f"{part}_groups") for part in ("train", "test")]
    parts, missing, n = [], 0, 0
    for rows, labels, owners in names:
        X = _features(arrays, rows, path).astype(np.float32, copy=False)
        y, groups = require(arrays, labels, path), arrays.get(owners)
        if rows == "X":
            for name, array in ((labels, y), (owners, groups)):
                if array is not None and array.shape != X.shape[:1]:
                    expected = f"shape {X.shape[:1]}"
                    raise Refused(f"{path}: {name}", expected, f"shape {array.shape}")
        known = np.array([label is not None for label in none_if_missing(y.tolist())], dtype=bool)
        if y.shape == X.shape[:1]:  # others are refused with the dataset
            missing, n = missing + int(np.sum(~known)), n + len(known)
            if groups is not None and groups.shape == y.shape:
                groups = groups[known]
            X, y = X if known.all() else X[known], y[known]
        parts.append((X, np.array(y.tolist()) if y.dtype == object else y, groups))
    note = f"{path.name}: {missing:,} of {n:,} rows have no label and are left out"
    note = note if missing else ""
    train, y_train, groups = parts[0]
    if len(parts) == 1:
        held = held_out(y_train)
        if not held.any():
            raise Refused(f"{path}: y", "four rows or more of some class, to test on", "fewer rows")
        parts.append((train[held], y_train[held], None))
        train, y_train = train[~held], y_train[~held]
        groups = None if groups is None else groups[~held]
    test, y_test, _ = parts[1]
    seconds = arrays.get("seconds_per_row", np.array(np.nan))
    if seconds.shape != () or seconds.dtype.kind != "f" or seconds < 0:
        raise Refused(f"{path}: seconds_per_row", "one number, at least 0", seconds)
    stored = _declared(arrays, path)
    if stored is not None:
        if nonnegative not in (None, stored):
            raise Refused(f"{path}: nonnegative", f"{nonnegative}, as for this dataset", stored)
        nonnegative = stored
    if text := unequal_scales(train, columns, kind_for(nonnegative)):
        scales = f"{path.name}: {text}; scale them, for example with StandardScaler"
        note = "; ".join(filter(None, (note, scales)))
    return Dataset(
        path.stem,
        "features",
        train,
        y_train,
        test,
        y_test,
        groups=groups,
        source=_source(arrays),
        seconds_per_row=None if np.isnan(seconds) else float(seconds),
        nonnegative=nonnegative,
        note=note,
        columns=columns,
    )


def read_parts(path: Path, label: str = LABEL) -> dict[str, Rows]:
    """The rows of a file with the labels that they have: ``train``, and ``test`` if it has them.

    A file without such a division has only ``train``. It may be any that ``read_feature_file``
    takes, or one without labels, such as an .npy file.
    """
    arrays, columns = _read(path, label)
    found = {}
    for part, labels in (("train", "train_labels"), ("X", "y"), ("test", "test_labels")):
        if part not in arrays and f"{part}_codes" not in arrays:
            continue
        X = _features(arrays, part, path)
        y = none_if_missing(arrays[labels].tolist()) if labels in arrays else [None] * len(X)
        names = arrays.get("names" if part == "X" else f"{part}_names")
        found["train" if part == "X" else part] = Rows(
            X,
            y,
            columns,
            source=_source(arrays),
            nonnegative=_declared(arrays, path),
            names=() if names is None else tuple(str(name) for name in names.tolist()),
        )
    return found


def _read(path: Path, label: str) -> tuple[dict[str, NDArray[Any]], tuple[str, ...]]:
    """The arrays of a file under our names, its rows as finite numbers; the names of columns."""
    if is_table(path):
        rows = read_labelled_table(path, label)
        y = np.array(rows.y, dtype=object)
        return {"X": _numbers(rows.X, f"{path}"), "y": y}, rows.columns
    arrays = load_arrays(path)
    given = {name: name for name in arrays if name not in _USUAL_NAMES}
    for theirs, ours in _USUAL_NAMES.items():
        if theirs in arrays:
            given.setdefault(ours, theirs)
    if given.keys() & {"train", "train_codes"}:
        given = {name: theirs for name, theirs in given.items() if name not in ("X", "y")}
    if not given.keys() & {"X", "train", "train_codes", "test", "test_codes"}:
        raise Refused(f"{path}", EXPECTED, ", ".join(sorted(arrays)) or "no array")
    arrays = {name: arrays[theirs] for name, theirs in given.items()}
    for name in {"X", "train", "test"} & arrays.keys():
        arrays[name] = _numbers(arrays[name], f"{path}: {given[name]}")
    return arrays, ()


def _source(arrays: dict[str, NDArray[Any]]) -> dict[str, str]:
    return {name: str(arrays[name]) for name in SOURCE if name in arrays}


def _declared(arrays: dict[str, NDArray[Any]], path: Path) -> bool | None:
    """Whether the file declares features that are never negative."""
    stored = arrays.get("nonnegative")
    if stored is None:
        return None
    if stored.shape != () or stored.dtype.kind != "b":
        raise Refused(f"{path}: nonnegative", "true or false", stored)
    return bool(stored)


def held_out(y: NDArray[Any]) -> NDArray[np.bool_]:
    """Three in ten rows of each class, rounded down, drawn with a fixed seed: True for a test row.

    >>> held_out(np.array([0, 0, 0, 0, 1, 1])).sum()
    np.int64(1)
    """
    test = np.zeros(len(y), dtype=bool)
    rng = np.random.default_rng(TEST_SEED)
    for c in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == c))
        test[rows[: int(TEST_SHARE * len(rows))]] = True
    return test


def images_of(path: Path) -> str | None:
    """The name or folder of the images that a feature file was made from, where it names them."""
    if is_table(path):
        return None
    with open_arrays(path, ARCHIVE) as file:
        return str(file["images"]) if "images" in file.files else None


def load_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of an .npz file. Nothing in the file is executed."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; expected an .npz file of features")
    with open_arrays(path, ARCHIVE) as file:
        if isinstance(file, np.ndarray):
            return {"X": file}
        return {name: file[name] for name in file.files}


def require(arrays: dict[str, NDArray[Any]], name: str, path: Path) -> NDArray[Any]:
    """The array with this name. A missing array is refused, with a list of those found."""
    if name not in arrays:
        found = ", ".join(sorted(arrays)) or "no array"
        raise Refused(f"{path}", f"an array {name!r}", found)
    return arrays[name]


def _features(arrays: dict[str, NDArray[Any]], part: str, path: Path) -> NDArray[Any]:
    """The rows of ``train`` or ``test``, decoded where they are stored as 8-bit codes."""
    if part in arrays:
        return arrays[part]
    codes = require(arrays, f"{part}_codes", path)
    scale = require(arrays, "scale", path).astype(np.float32)
    if scale.shape != codes.shape[1:]:
        raise Refused(f"{path}: scale", f"shape {codes.shape[1:]}", f"shape {scale.shape}")
    values = codes.astype(np.float32)
    values *= scale / np.float32(255)
    return _numbers(np.square(values, out=values), f"{path}: {part}_codes")


def _numbers(array: NDArray[Any], field: str) -> NDArray[Any]:
    """Finite rows of features, float32 or float64. A refusal names the first bad row."""
    if array.dtype.kind not in "fiub":
        raise Refused(field, "numbers", f"the dtype {array.dtype}")
    if array.ndim != 2:
        raise Refused(field, "an array (rows, features)", f"shape {array.shape}")
    with np.errstate(over="ignore"):  # too large for float32: refused as infinity
        values = array.astype(np.float32, copy=False)
    finite = np.isfinite(values).all(axis=1)
    if not finite.all():
        got = f"NaN or infinity in row {np.argmin(finite)}, counted from 0"
        raise Refused(field, "finite values", got, IMPUTE)
    return array if array.dtype == np.float64 else values
