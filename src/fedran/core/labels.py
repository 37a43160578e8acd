"""Labels are names, not positions: int or str, in a canonical order with ints first."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedran.core._linalg.arrays import Int64, to_numpy
from fedran.core.errors import printable, shortened

Label: TypeAlias = int | str

MISSING = -1
"""The code of a row without a label."""

MAX_LENGTH = 256
"""Most characters of a string label; every reader of a message accepts that many."""

MAX_NAMED = 5
"""Labels or pairs of labels that one sentence names."""

_INT64 = np.iinfo(np.int64)


def canonical(label: object) -> Label:
    """The canonical form of one label: ``int`` or ``str``.

    NumPy integers, booleans and integral floats become ``int``; ``"1"`` is not ``1``; other
    floats, bytes, None and NaN are refused.

    >>> canonical(np.float32(3.0)), canonical(True), canonical("3")
    (3, 1, '3')
    """
    if isinstance(label, str):
        text = str.__str__(label)
        if len(text) > MAX_LENGTH:
            raise ValueError(
                f"a label may have at most {MAX_LENGTH} characters, got {len(text)}; shorten it"
            )
        if "\0" in text:
            raise ValueError(f"label {printable(text)} holds a NUL character; rename it")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError(
                f"label {printable(label)} cannot be written as UTF-8; rename it"
            ) from None
        return text
    integral = isinstance(label, (float, np.floating)) and float(label).is_integer()
    if not integral and not isinstance(label, (bool, np.bool_, int, np.integer)):
        raise ValueError(
            f"a label must be an integer or a string, got {printable(label)} "
            f"of type {type(label).__name__}; use str(label), or None where there is no label"
        )
    value = int(label)  # type: ignore[call-overload]
    if not _INT64.min <= value <= _INT64.max:
        raise ValueError(f"integer label {value} does not fit in 64 bits; use a string instead")
    return value


def sort_key(label: Label) -> tuple[bool, int | str]:
    """Sorts ints before strs; ints by value, strs by code point."""
    return (isinstance(label, str), label)


def ordered(labels: Iterable[Label]) -> tuple[Label, ...]:
    """The distinct labels in canonical order.

    >>> ordered(["b", 2, "a", 10, 2])
    (2, 10, 'a', 'b')
    """
    return tuple(sorted(set(labels), key=sort_key))


def is_missing(label: object) -> bool:
    """None, NaN and pandas' NA stand for "no label"."""
    return (
        label is None
        or type(label).__name__ == "NAType"
        or (isinstance(label, (float, np.floating)) and bool(np.isnan(label)))
    )


def encode_labels(
    y: Any, n_rows: int
) -> tuple[tuple[Label, ...], Int64[NDArray[Any], " {n_rows}"]]:
    """Split labels into distinct classes (canonical order) and one code per row.

    ``y`` is any sequence or array of ``n_rows`` labels, with None or NaN where there is none.
    Row ``i`` has the label ``classes[codes[i]]``, or none where ``codes[i] == MISSING``.

    >>> encode_labels(["cat", None, "ant", "cat"], 4)
    (('ant', 'cat'), array([ 1, -1,  0,  1]))
    """
    values = _label_vector(y)
    if len(values) != n_rows:
        raise ValueError(f"y must hold one label per row: {n_rows} rows, {len(values)} labels")
    if values.dtype.kind == "O":
        names = [None if is_missing(v) else canonical(v) for v in values]
        classes = ordered(v for v in names if v is not None)
        position: dict[Label | None, int] = {c: i for i, c in enumerate(classes)}
        position[None] = MISSING
        return classes, np.fromiter((position[v] for v in names), np.int64, count=n_rows)
    missing = np.isnan(values) if values.dtype.kind == "f" else np.zeros(n_rows, dtype=bool)
    distinct, inverse = np.unique(values[~missing], return_inverse=True)
    codes = np.full(n_rows, MISSING, dtype=np.int64)
    codes[~missing] = inverse
    return tuple(canonical(v) for v in distinct), codes


def require_labels(y: Any) -> None:
    """ValueError where a label is missing, or where some are numbers and others strings.

    For scikit-learn, which would turn [0, "b"] into two strings and None into a regression target.
    An empty string is a class there, so it is only warned about.
    """
    values = y if isinstance(y, (list, tuple)) else np.asarray(y)
    if isinstance(values, np.ndarray) and (values.dtype.kind not in "OU" or values.ndim != 1):
        return
    missing = [i for i, label in enumerate(values) if is_missing(label)]
    if missing:
        raise ValueError(
            f"y has no label in {len(missing)} of {len(values)} rows, first in row {missing[0]}; "
            "leave such rows out, or estimate their labels with fedran.margin_labels"
        )
    if 0 < sum(isinstance(label, str) for label in values) < len(values):
        raise ValueError("labels must be all numbers or all strings in one call; use str(label)")
    empty = sum(isinstance(label, str) and label == "" for label in values)
    if empty:
        warnings.warn(
            f"the label of {empty} of {len(values)} rows is an empty string, which is a class like "
            "any other here; leave these rows out if their labels are missing",
            stacklevel=6,  # the caller of FedRANClassifier.fit
        )


def spelling(label: Label) -> str:
    """What labels have in common that differ in type, case or spaces, or as 1 and "1.0" do.

    >>> spelling("Basal  cell ") == spelling("basal cell"), spelling(1) == spelling("1.0")
    (True, True)
    """
    text = " ".join(str(label).casefold().split())
    return re.sub(r"^(-?[0-9]+)\.0+$", r"\1", text)


def similar_labels(labels: Iterable[Label], known: Iterable[Label] = ()) -> str:
    """One sentence about labels that are spelled like known ones, or like each other; or "".

    >>> similar_labels(["1", "Cat", "dog"], known=[1, "cat"])
    "1 and '1', 'cat' and 'Cat' may be meant as one class"
    """
    held = set(known)
    new = ordered(set(labels) - held)
    first = {spelling(label): label for label in ordered(held)} if new else {}
    pairs = [(first.setdefault(spelling(label), label), label) for label in new]
    found = [f"{printable(repr(a))} and {printable(repr(b))}" for a, b in pairs if a != b]
    return f"{shortened(found, MAX_NAMED)} may be meant as one class" if found else ""


def warn_of_similar(
    known: Iterable[Label], new: Iterable[Label], origin: str, stacklevel: int = 3
) -> None:
    """Warn where new labels may be meant as known ones."""
    if text := similar_labels(new, known):
        warnings.warn(f"{text} ({origin})", stacklevel=stacklevel)


def named(labels: Iterable[Label]) -> str:
    """The first labels, for a message.

    >>> named(["1", 2])
    "'1', 2"
    """
    return shortened([printable(repr(label)) for label in labels], MAX_NAMED)


def recode(
    codes: Int64[NDArray[Any], " n"], classes: tuple[Label, ...], known: tuple[Label, ...]
) -> Int64[NDArray[Any], " n"]:
    """Positions in ``known`` instead of ``classes``; MISSING where a label is not known.

    >>> recode(np.array([1, 0, -1]), ("ant", "cat"), ("cat", "dog"))
    array([ 0, -1, -1])
    """
    position = {c: i for i, c in enumerate(known)}
    table = np.array([position.get(c, MISSING) for c in classes] + [MISSING], dtype=np.int64)
    return table[np.where(codes == MISSING, len(classes), codes)]


def _label_vector(y: Any) -> NDArray[Any]:
    """``y`` as a vector whose dtype is bool, int, float, str or object."""
    if isinstance(y, Sequence) and not isinstance(y, (str, bytes)):
        # np.asarray would turn [1, "a"] into ["1", "a"]: the label 1 would become "1".
        values = np.empty(len(y), dtype=object)
        values[:] = list(y)
    else:
        values = to_numpy(y)
    if values.ndim != 1:
        raise ValueError(f"y must be a vector with one label per row, got shape {values.shape}")
    return values if values.dtype.kind in "biufU" else values.astype(object)


def label_array(classes: Sequence[Label]) -> NDArray[Any]:
    """The classes as an array: int64, str, or object when both kinds occur."""
    kinds = {type(c) for c in classes}
    if kinds == {int}:
        return np.array(classes, dtype=np.int64)
    if kinds == {str}:
        return np.array(classes, dtype=np.str_)
    mixed = np.empty(len(classes), dtype=object)
    mixed[:] = list(classes)
    return mixed
