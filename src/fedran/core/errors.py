"""Exceptions for refused data and missing extras; helpers for checks and their messages."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from numbers import Integral, Real

_ID = re.compile(r"(?=.{1,64}\Z)(?=[A-Za-z0-9])[A-Za-z0-9._-]+(?: [A-Za-z0-9._-]+)*")
"""Names of clients, tasks and federations, which become keys, file names, table cells and names of
tensors (``__metadata__`` is not one)."""


class Refused(ValueError):
    """Data from outside was not accepted, and none of it was kept.

    The message is one sentence: the field, what was expected, what was received, and sometimes
    a hint.

    >>> raise Refused("rank", "at most 8192", 9000, hint="send fewer columns")
    Traceback (most recent call last):
    ...
    fedran.core.errors.Refused: rank: expected at most 8192, got 9000; send fewer columns
    """

    def __init__(self, field: str, expected: str, got: object, hint: str = "") -> None:
        self.field = printable(field, 300)
        self.expected = expected
        self.got = printable(got)
        self.hint = hint
        super().__init__(
            f"{self.field}: expected {expected}, got {self.got}" + (f"; {hint}" if hint else "")
        )

    def __reduce__(self) -> tuple[type[Refused], tuple[str, str, str, str]]:
        return Refused, (self.field, self.expected, self.got, self.hint)


class MissingExtra(ImportError):
    """An optional library is not installed.

    >>> raise MissingExtra("ONNX files need onnxruntime", "onnx")
    Traceback (most recent call last):
    ...
    fedran.core.errors.MissingExtra: ONNX files need onnxruntime: install fedran's extra 'onnx', \
for example with pip install -e '.[onnx]' in a clone of its repository
    """

    def __init__(self, need: str, extra: str) -> None:
        self.need, self.extra = need, extra
        super().__init__(
            f"{need}: install fedran's extra {extra!r}, for example with "
            f"pip install -e '.[{extra}]' in a clone of its repository"
        )

    def __reduce__(self) -> tuple[type[MissingExtra], tuple[str, str]]:
        return MissingExtra, (self.need, self.extra)


def printable(value: object, limit: int = 600) -> str:
    r"""Any value as one short line that is safe in a terminal or a log.

    >>> print(printable("a" + chr(27) + "[31m" + chr(10)))
    a\x1b[31m\n
    """
    try:
        text = value if isinstance(value, str) else repr(value)
    except RecursionError:
        text = f"a deeply nested {type(value).__name__}"
    safe = "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text[:limit]
    )
    return safe if len(safe) <= limit and len(text) <= limit else safe[: limit - 3] + "..."


def shortened(names: Sequence[str], most: int) -> str:
    """The first ``most`` names, and how many more there are.

    >>> shortened(["a", "b", "c", "d"], 2)
    'a, b and 2 more'
    """
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def positive_integer(value: object, name: str, or_none: str = "") -> int:
    """``value`` as an int; ValueError unless it is a positive integer.

    >>> positive_integer(3, "rank")
    3
    >>> positive_integer(0, "rank")
    Traceback (most recent call last):
    ...
    ValueError: rank must be a positive integer, got 0
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        got = printable(repr(value), 80)
        raise ValueError(f"{name} must be a positive integer{or_none}, got {got}")
    return int(value)


def real_number(value: object, name: str) -> float:
    """``value`` as a float; TypeError unless it is a real number.

    >>> real_number([0.1, 0.2], "alpha")
    Traceback (most recent call last):
    ...
    TypeError: alpha must be a number, got list
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    return float(value)


def check_id(value: object, what: str) -> str:
    """``value`` if it is an id: 1 to 64 of A-Z a-z 0-9 . _ - with single spaces inside, of which
    the first is a letter or a digit.

    >>> check_id("hospital a", "client")
    'hospital a'
    """
    if not isinstance(value, str) or not _ID.fullmatch(value):
        expected = (
            "text of 1 to 64 ASCII letters, digits, '.', '_' or '-', and single spaces inside, "
            "that begins with a letter or digit"
        )
        raise Refused(what, expected, repr(value))
    return value


def nearest(name: str, choices: Iterable[str]) -> str:
    """`` (did you mean 'x'?)`` for the closest choice, or the empty string when none is close.

    >>> nearest("fedrun", ["fedran", "exact"])
    " (did you mean 'fedran'?)"
    """
    close = difflib.get_close_matches(str(name)[:100], list(choices), n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""
