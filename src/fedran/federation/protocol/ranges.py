"""Ranges of columns that the owner of the server declares: a site warns of rows that do not fit.

Rows that one site prepares in another way (z-scored among raw values, cents among dollars) have a
valid form, and spoil the classifier unnoticed. The ranges are settings of the server. Every site
compares its own rows with them and warns its own people: nothing about the rows is sent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core.errors import Refused, printable, shortened
from fedran.federation.protocol.limits import MAX_COLUMNS

Ranges = tuple[tuple[str, float, float], ...]
"""Name of a column, and the range of its usual values."""
EVERY = "*"
"""Stands for all columns that are not named."""
TAILS = 0.01, 0.99
"""Quantiles between which the usual values of a column lie."""
OUTSIDE, NARROW = 0.2, 0.1
"""More values outside the range, or a spread of a smaller part of it, are not usual: a fifth covers
sites that have some classes only, and of z-scored rows among positive ones half are outside."""


def check_ranges(given: object) -> Ranges:
    """Ranges of a table of settings or of an offer.

    >>> check_ranges({"age": [0, 120]})
    (('age', 0.0, 120.0),)
    """
    lines = given
    if isinstance(given, Mapping):
        lines = [(k, *v) if isinstance(v, (list, tuple)) else (k, v) for k, v in given.items()]
    if not isinstance(lines, (list, tuple)) or len(lines) > MAX_COLUMNS:
        raise Refused("ranges", f"a range for each of at most {MAX_COLUMNS:,} columns", "others")
    for line in lines:
        good = isinstance(line, (list, tuple)) and len(line) == 3 and isinstance(line[0], str)
        numbers = line[1:] if good else ()
        if not numbers or any(type(x) not in (int, float) or not math.isfinite(x) for x in numbers):
            raise Refused("ranges", "a column with its lowest and highest usual value", line)
        if numbers[0] >= numbers[1]:
            raise Refused(f"ranges of {line[0]}", "a lower value, then a higher one", numbers)
    return tuple((name, float(low), float(high)) for name, low, high in lines)


def unusual_columns(X: NDArray[Any], names: Sequence[str], ranges: Ranges) -> str:
    """A clause if columns of X (n, d) do not fit the declared ranges, else empty.

    >>> X = np.random.default_rng(0).uniform(0, 16, size=(100, 2))
    >>> unusual_columns(X, ["a", "b"], (("a", 0, 16), ("b", 0, 16)))
    ''
    >>> unusual_columns(X / 255, ["a", "b"], (("*", 0, 16),))
    'every column has 0.000622 to 0.0624 instead of 0 to 16'
    """
    listed, found = [name for name, _, _ in ranges], []
    others = [j for j in range(X.shape[1]) if not len(names) or names[j] not in listed]
    for name, low, high in ranges:
        values = X[:, others if name == EVERY else [j for j, n in enumerate(names) if n == name]]
        if not values.size or X.dtype.kind not in "fiub" or not np.isfinite(values).all():
            continue  # refused elsewhere
        least, most = np.quantile(values, TAILS)
        outside = np.mean((values < low) | (values > high))
        if outside > OUTSIDE or 0 < most - least < NARROW * (high - low):
            what = "every column" if name == EVERY else repr(printable(name, 60))
            found.append(f"{what} has {least:.3g} to {most:.3g} instead of {low:g} to {high:g}")
    return shortened(found, 5) if found else ""


def proposed_ranges(X: NDArray[Any], names: Sequence[str]) -> dict[str, list[float]]:
    """Ranges for the columns of a table of the owner; one for all columns without names.

    They are between quantiles of many rows, and show no value of a single row.
    """
    parts = {name: X[:, j] for j, name in enumerate(names)} or {EVERY: X}
    found = {name: np.quantile(values, TAILS).tolist() for name, values in parts.items()}
    return {k: [float(f"{x:.2g}") for x in v] for k, v in found.items() if v[0] < v[1]}
