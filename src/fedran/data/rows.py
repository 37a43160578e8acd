"""Rows with labels in a file (.npz, .csv, .parquet): a dataset, a site's task, a validation set."""

from __future__ import annotations

import csv
import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core.errors import MissingExtra, Refused, shortened
from fedran.core.labels import encode_labels
from fedran.data.arrays import AS_TEXT, UNREADABLE, object_arrays

log = logging.getLogger(__name__)
LABEL = "label"
"""Name of the column of labels in a table."""
UNLABELLED = ""
"""Stands for a missing label in files whose arrays cannot hold None."""


@dataclass(frozen=True)
class Rows:
    """Features (n, d), or images (n, height, width, 3) in uint8, with one label per row."""

    X: NDArray[Any]
    y: list[Any]
    """None where a label is missing."""

    def __post_init__(self) -> None:
        images = self.X.ndim == 4 and self.X.dtype == np.uint8 and self.X.shape[3] == 3
        if self.X.ndim != 2 and not images:
            raise Refused(
                "rows",
                "features (n, d) or images (n, height, width, 3) in uint8",
                f"{self.X.dtype} {self.X.shape}",
            )
        if len(self.y) != len(self.X):
            raise Refused("labels", f"{len(self.X)}, one per row", len(self.y))
        encode_labels(self.y, len(self.X))  # refuses values that cannot be labels

    @property
    def is_images(self) -> bool:
        """Whether a backbone has to extract features first."""
        return self.X.ndim == 4


def read_rows(path: Path) -> Rows:
    """Read a file with rows and labels.

    ``.npz``: arrays ``labels`` and one of ``features``, ``images``. ``.csv`` and ``.parquet``: a
    column ``label``, and all other columns are features, in their order.
    """
    match path.suffix.lower():
        case ".csv":
            return _read_csv(path)
        case ".parquet":
            return _read_parquet(path)
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            names = [n for n in ("features", "images") if n in file.files]
            if len(names) != 1 or "labels" not in file.files:
                expected = "arrays labels and one of features, images"
                raise Refused(path.name, expected, ", ".join(file.files))
            X, y = file[names[0]], file["labels"]
    except Refused:
        raise
    except UNREADABLE as reason:
        log.info("%s: %s", path, reason)
        objects = object_arrays(path)
        if objects:
            hint = f'{AS_TEXT}; "" means missing'
            got = f"an array of Python objects ({', '.join(objects)})"
            raise Refused(path.name, "arrays of numbers or text", got, hint) from None
        raise Refused(path.name, "an .npz file", type(reason).__name__) from None
    return Rows(X, none_if_missing(np.atleast_1d(y).tolist()))


def _read_csv(path: Path) -> Rows:
    """A header, then one row per line. An empty label is a missing one.

    Labels are integers if all of them are written as integers, text otherwise.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = csv.reader(file)
            names = [name.strip() for name in next(lines, [])]
            at = _label_column(path, names, [] if LABEL in names else next(lines, []))
            X, y = [], []
            for number, cells in enumerate(lines, start=2):
                if not cells:
                    continue
                if len(cells) != len(names):
                    raise Refused(
                        f"{path.name}, line {number}", f"{len(names)} columns", len(cells)
                    )
                y.append(cells.pop(at).strip())
                try:
                    X.append(np.array(cells, dtype=np.float32))
                except ValueError:
                    raise Refused(
                        f"{path.name}, line {number}", "numbers as features", "other text"
                    ) from None
    except (UnicodeDecodeError, csv.Error) as reason:
        raise Refused(path.name, "a CSV file in UTF-8", type(reason).__name__) from None
    known = [label for label in y if label != UNLABELLED]
    labels: list[Any] = list(y)
    if known and all(re.fullmatch("0|-?[1-9][0-9]{0,17}", label) for label in known):
        labels = [int(label) if label != UNLABELLED else None for label in y]
    return Rows(np.array(X).reshape(len(X), len(names) - 1), none_if_missing(labels))


def _read_parquet(path: Path) -> Rows:
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError:
        raise MissingExtra("Parquet files need pyarrow", "parquet") from None
    try:
        table = parquet.read_table(path)
        names = table.column_names
        first = [column[0].as_py() for column in table.columns] if len(table) else []
        y = table.column(_label_column(path, names, first)).to_pylist()
        rest = [name for name in names if name != LABEL]
        X = np.column_stack([np.asarray(table.column(n), dtype=np.float32) for n in rest])
    except Refused:
        raise
    except (arrow.ArrowException, OSError, TypeError, ValueError) as reason:
        log.info("%s: %s", path, reason)
        expected = "a Parquet file of numbers with a column label"
        raise Refused(path.name, expected, type(reason).__name__) from None
    return Rows(X, none_if_missing(y))


def _label_column(path: Path, names: list[str], first: list[Any]) -> int:
    """The position of the column of labels. ``first`` is a row, to name the columns of text."""
    if names.count(LABEL) == 1 and len(names) > 1:
        return names.index(LABEL)
    found, hint = shortened(names, 6) or "nothing", ""
    if names and LABEL not in names:
        cells = zip(names, first, strict=False)  # a first line of other length is no label either
        text = [n for n, v in cells if isinstance(v, str) and v.strip() and not is_number(v)]
        found = f"none; text is in {shortened(text, 6)}" if text else found
        hint = "rename the column of labels to label"
    raise Refused(path.name, "one column label beside columns of features", found, hint)


def is_number(value: object) -> bool:
    """Whether ``float`` accepts a value.

    >>> is_number("1e-3"), is_number("benign"), is_number(None)
    (True, False, False)
    """
    try:
        float(value)  # type: ignore[arg-type]
    except (ValueError, TypeError):
        return False
    return True


def none_if_missing(labels: list[Any]) -> list[Any]:
    """Replace NaN and ``UNLABELLED`` by None.

    >>> none_if_missing(["cat", "", float("nan"), 3])
    ['cat', None, None, 3]
    """
    return [
        None if (isinstance(v, float) and v != v) or (isinstance(v, str) and v == UNLABELLED) else v
        for v in labels
    ]
