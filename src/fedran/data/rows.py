"""Rows in a file (.npz, .csv, .parquet): a dataset, a site's task, a validation set, new rows."""

from __future__ import annotations

import csv
import logging
import re
import zipfile
import zlib
from array import array
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core.errors import MissingExtra, Refused, nearest, printable, shortened
from fedran.core.labels import encode_labels

log = logging.getLogger(__name__)
TABLES = (".csv", ".parquet")
"""Suffixes of files with named columns."""
LABEL = "label"
"""Name of the column of labels in a table, unless the user names another."""
ARRAYS = {"features": "labels", "images": "labels", "X": "y"}
"""Names of the arrays of rows and of labels in an .npz file."""
UNLABELLED = ""
"""Stands for a missing label in files whose arrays cannot hold None."""
NAME_LABEL = 'name the column of labels with --label "{}"'
"""What a command says to a table without the column of labels. {} is a likely column."""
IMPUTE = "impute missing values, at all sites in the same way, or leave such rows out"
"""What to do about rows with missing values."""
UNREADABLE = (ValueError, OSError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error)
"""Exceptions that NumPy raises for a foreign or damaged file."""
INDEXES = ("", "Unnamed: 0", "__index_level_0__")
"""Names of the column that pandas writes for the index. The number of a row is no feature."""


@dataclass(frozen=True)
class Rows:
    """Features (n, d), or images (n, height, width, 3) in uint8, with one label per row."""

    X: NDArray[Any]
    y: list[Any]
    """None where a label is missing."""
    columns: tuple[str, ...] = ()
    """Names of the columns of X; empty where they have none."""
    source: Mapping[str, str] = field(default_factory=dict)
    """How the features were made, as their file says."""
    nonnegative: bool | None = None
    """Whether the file declares features that are never negative."""
    names: tuple[str, ...] = ()
    """What each row was made of, such as the name of an image file; may be empty."""

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

    def in_order(self, columns: Sequence[str], where: str) -> Rows:
        """The rows with the columns of the federation. Rows without names are taken as they are."""
        order = column_order(self.columns, columns, where, "the federation")
        if order is None:
            return self
        return replace(self, X=self.X[:, order], columns=tuple(columns))


@dataclass(frozen=True)
class Table:
    """A CSV or Parquet file."""

    X: NDArray[np.float64]
    """Features (n, d)."""
    columns: tuple[str, ...]
    """Their names; empty for a CSV file without a header."""
    others: dict[str, list[Any]]
    """The columns that are no features."""


def is_table(path: Path) -> bool:
    """Whether a file has named columns, by its suffix."""
    return path.suffix.lower() in TABLES


def read_rows(
    path: Path, label: str = LABEL, hint: str = NAME_LABEL, arrays: Mapping[str, str] = ARRAYS
) -> Rows:
    """Read a file with rows and labels.

    A table has a column ``label``, and all its other columns are features, in their order. In a CSV
    file, labels are integers if all of them are written as integers, or as 1.0, which is what
    pandas writes for integers where some are missing. An ``.npz`` file has one of the pairs of
    ``arrays``. ``hint`` says how to name another column of labels.
    """
    if is_table(path):
        rows = read_labelled_table(path, label, hint)
        with np.errstate(over="ignore"):  # infinity is refused where the rows are used
            return replace(rows, X=rows.X.astype(np.float32))
    pairs = " or ".join(f"{rows} and {labels}" for rows, labels in arrays.items())
    with open_arrays(path, f"an .npz file with {pairs}") as file:
        held = [] if isinstance(file, np.ndarray) else file.files
        found = [pair for pair in arrays.items() if set(pair) <= set(held)]
        if len(found) != 1:
            raise Refused(path.name, f"arrays {pairs}", ", ".join(held) or "no named array")
        X, labels = (file[name] for name in found[0])
    return Rows(X, none_if_missing(np.atleast_1d(labels).tolist()))


def read_labelled_table(path: Path, label: str = LABEL, hint: str = NAME_LABEL) -> Rows:
    """The rows of a table in float64, with the labels in the column ``label``."""
    table = read_table(path, [label], hint)
    y = table.others[label]
    return Rows(
        table.X,
        as_labels(y) if path.suffix.lower() == ".csv" else none_if_missing(y),
        table.columns,
    )


def as_labels(texts: list[str]) -> list[Any]:
    """Labels from the texts of a CSV file.

    >>> as_labels(["1", "2.0", " "]), as_labels(["1", "2.5"])
    ([1, 2, None], ['1', '2.5'])
    """
    texts = [text.strip() for text in texts]
    known = [text for text in texts if text != UNLABELLED]
    if all(re.fullmatch(r"(0|-?[1-9][0-9]{0,17})(\.0+)?", text) for text in known):
        return [int(text.partition(".")[0]) if text != UNLABELLED else None for text in texts]
    return none_if_missing(texts)


def read_table(
    path: Path,
    apart: Collection[str],
    hint: str = "",
    optional: str | None = None,
    *,
    features: bool = True,
) -> Table:
    """Read a CSV or Parquet file, or with ``features=False`` only the named columns of it.

    No features are the columns ``apart``, which must exist, and ``optional`` where it exists. All
    other columns must hold numbers. A refusal names columns and lines but no value, because a site
    tells it to the server.
    """
    read = _read_csv if path.suffix.lower() == ".csv" else _read_parquet
    return read(path, apart, hint, optional, features)


def column_order(
    columns: Sequence[str], wanted: Sequence[str], where: str, whose: str
) -> list[int] | None:
    """Positions that put ``columns`` in the order ``wanted``.

    None if they are in this order already, or if either has no names. Missing and unknown columns
    are refused by name.

    >>> column_order(["b", "a"], ["a", "b"], "rows.csv", "the scaler")
    [1, 0]
    >>> column_order(["b", "c"], ["a", "b"], "rows.csv", "the scaler")
    Traceback (most recent call last):
    ...
    fedran.core.errors.Refused: rows.csv: expected the 2 columns of the scaler, got no 'a' and \
the unknown 'c'; rename columns, and leave out those that are no features
    """
    if not columns or not wanted or list(columns) == list(wanted):
        return None
    have, want = Counter(columns), Counter(wanted)
    groups = {
        "no": list(want - have),
        "the unknown": list(have - want),
        "several": [name for name, n in have.items() if n > 1],
    }
    wrong = [
        f"{what} {shortened([repr(printable(name, 60)) for name in names], 6)}"
        for what, names in groups.items()
        if names
    ]
    if wrong:
        raise Refused(
            where,
            f"the {len(wanted)} columns of {whose}",
            " and ".join(wrong),
            "rename columns, and leave out those that are no features",
        )
    position = {name: j for j, name in enumerate(columns)}
    return [position[name] for name in wanted]


def _read_csv(
    path: Path, apart: Collection[str], hint: str, optional: str | None, features: bool
) -> Table:
    """Columns have no names where the first line holds numbers only; ``apart`` calls them 0, 1, ...

    So it is with the header 0, 1, 2, ..., which pandas writes for columns without names. Only one
    line at a time is held as text.
    """
    values = array("d")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            lines: Iterator[list[str]] = filter(None, reader)
            first = [name.strip() for name in next(lines, [])]
            if not first:
                raise Refused(path.name, "a header and rows", "an empty file")
            for name, sign in (("semicolons", ";"), ("tabs", "\t")):
                if len(first) == 1 and sign in first[0]:
                    advice = "write the table with commas, and decimal points in numbers"
                    raise Refused(path.name, "columns separated by commas", name, hint=advice)
            numbers = names = [str(i) for i in range(len(first))]
            if (first == names and len(names) > 2) or not all(map(is_number, first)):
                names, first = first, next(lines, [])
            kept, others = _split_columns(path, names, first, apart, hint, optional, features)
            columns: dict[str, list[Any]] = {name: [] for name in others}
            for cells in chain([first] if first else [], lines):
                line = f"{path.name}, line {reader.line_num}"
                if len(cells) != len(names):
                    raise Refused(line, f"{len(names)} columns", len(cells))
                try:
                    values.extend([float(cells[j]) for j in kept])
                except ValueError:
                    j = next(j for j in kept if not is_number(cells[j]))
                    got = "text" if cells[j].strip() else "an empty value"
                    raise _no_number(line, names[j], got) from None
                for name, j in others.items():
                    columns[name].append(cells[j])
    except (UnicodeDecodeError, csv.Error):
        raise Refused(path.name, "a CSV file in UTF-8", "other bytes") from None
    X = np.frombuffer(values).reshape(-1, len(kept)) if kept else np.empty((0, 0))
    return Table(X, () if names == numbers else tuple(names[j] for j in kept), columns)


def _read_parquet(
    path: Path, apart: Collection[str], hint: str, optional: str | None, features: bool
) -> Table:
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError:
        raise MissingExtra("Parquet files need pyarrow", "parquet") from None
    try:
        table = parquet.read_table(path)
    except (arrow.ArrowException, OSError) as reason:
        log.info("%s: %s", path, reason)
        raise Refused(path.name, "a Parquet file", "a damaged or other file") from None
    names = table.column_names
    first = [column[0].as_py() for column in table.columns] if len(table) else []
    kept, others = _split_columns(path, names, first, apart, hint, optional, features)
    X = np.empty((len(table) if kept else 0, len(kept)))
    for k, j in enumerate(kept):
        try:
            column = np.asarray(table.column(j))
            if column.dtype.kind not in "fiubO":  # NumPy would turn dates into numbers
                raise TypeError
            X[:, k] = column
        except (arrow.ArrowException, TypeError, ValueError):
            raise _no_number(path.name, names[j], "other values") from None
    apart_from_X = {name: table.column(j).to_pylist() for name, j in others.items()}
    return Table(X, tuple(names[j] for j in kept), apart_from_X)


def _split_columns(
    path: Path,
    names: list[str],
    first: list[Any],
    apart: Collection[str],
    hint: str,
    optional: str | None,
    features: bool,
) -> tuple[list[int], dict[str, int]]:
    """The positions of the features and of the other columns. ``first`` is the first row."""
    others = {name: names.index(name) for name in (*apart, optional) if name in names}
    for name in (*apart, *others):
        if names.count(name) != 1:
            numbers = [n for n in names if is_number(n)]
            if numbers not in ([str(i + k) for i in range(len(numbers))] for k in (0, 1)):
                # Its text and numbers are values, which the refusal must not repeat.
                expected = f"a header with one column {printable(name, 60)}"
                hint = "write the names of the columns into the first line"
                raise Refused(path.name, expected, "a first line like those of rows", hint)
            cells = zip(names, first, strict=False)  # the first row may be too short
            text = [n for n, v in cells if isinstance(v, str) and v.strip() and not is_number(v)]
            raise Refused(
                path.name,
                f"one column {printable(name, 60)}{nearest(name, set(text or names) - {name})}",
                f"the columns {shortened(names, 12)}",
                hint.format(printable(text[0] if text else "COLUMN", 60)),
            )
    if not features:
        return [], others
    kept = [j for j in range(len(names)) if j not in others.values()]
    if not kept:
        raise Refused(path.name, "at least one column of features", "none")
    for name in INDEXES:
        if name in names and name not in others:
            raise Refused(
                path.name,
                "a name for every column of features",
                f"a column {name!r}, as pandas writes for the numbers of rows",
                "write the table with index=False, or rename the column if it is a feature",
            )
    return kept, others


def _no_number(where: str, column: str, got: str) -> Refused:
    hint = "leave the column out if it is no feature, or name it with --label or --id"
    if got != "text":
        hint = IMPUTE
    return Refused(where, f"numbers in column {printable(column, 60)}", got, hint)


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
