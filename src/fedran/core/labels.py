"""Labels are names, not positions: int or str, in a canonical order with ints first."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias
from unicodedata import category

import numpy as np
from numpy.typing import NDArray

from fedran.core._linalg.arrays import Int64, to_numpy
from fedran.core.errors import printable

Label: TypeAlias = int | str

MISSING = -1
"""The code of a row without a label."""

MAX_LENGTH = 256
"""Most characters of a string label; every reader of a message accepts that many."""

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
            stacklevel=5,  # the caller of FedRANClassifier.fit
        )


def spelling(label: Label) -> str:
    """What labels have in common that differ in type, case, spaces or punctuation.

    Mathematical signs are no punctuation, and what separates two digits counts.

    >>> spelling("Digit 1") == spelling("digit_1"), spelling(1) == spelling("1.0")
    (True, True)
    >>> spelling("<=50K") == spelling(">50K"), spelling("1.0") == spelling("10")
    (False, False)
    """
    text = re.sub(r"^(-?[0-9]+)\.0+$", r"\1", str(label).strip())
    words = "".join(c if c.isalnum() or category(c) == "Sm" else " " for c in text.casefold())
    letters = re.sub(r"(?<!\d) | (?!\d)", "", " ".join(words.split()))
    return f"-{letters}" if text.startswith("-") else letters or text


def number_in(label: Label) -> str | None:
    """The number at the end of a word, as in "digit 1"; None for other labels.

    >>> number_in("digit 01"), number_in(1), number_in("-1")
    ('1', None, None)
    """
    found = re.fullmatch(r"[^\W\d_]+([0-9]{1,9})", spelling(label))
    return str(int(found[1])) if found else None


def variants(labels: Iterable[Label]) -> list[tuple[Label, ...]]:
    """Groups of different labels that may be meant as one, in the given order.

    >>> variants([1, "1", "Cat", "cat ", "dog", "digit 1"])
    [(1, '1', 'digit 1'), ('Cat', 'cat ')]
    """
    spelled = {label: spelling(label) for label in labels}
    known, groups = set(spelled.values()), dict[str, list[Label]]()
    for label, form in spelled.items():
        number = number_in(label)
        groups.setdefault(number if number in known else form, []).append(label)
    return [tuple(group) for group in groups.values() if len(group) > 1]


def meant_as_one(group: Sequence[Label], rarest: Label, origin: str) -> str:
    """What people are told about one group of ``variants``.

    >>> meant_as_one([1, "1"], "1", "site-3")
    "1 and '1' may be meant as one class; '1' comes from site-3."
    """
    *first, last = (printable(repr(label)) for label in group)
    names, rare = f"{', '.join(first)} and {last}", printable(repr(rarest))
    return f"{names} may be meant as one class; {rare} comes from {origin}."


def warn_of_variants(
    known: Iterable[Label], new: Iterable[Label], origin: str, stacklevel: int = 3
) -> None:
    """Warn where new labels may be meant as others, with a sentence for the first five groups."""
    held = set(known)
    added = set(new) - held
    found = []
    for group in variants(ordered(held | added)) if added else ():
        rarest = next((label for label in reversed(group) if label in added), None)
        if rarest is not None:
            found.append(meant_as_one(group, rarest, origin))
    if found:
        warnings.warn(" ".join(found[:5]), stacklevel=stacklevel)


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
