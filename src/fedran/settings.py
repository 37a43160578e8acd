"""Whether a plain value is what a type hint says."""

from __future__ import annotations

from types import UnionType
from typing import Any, Literal, get_args, get_origin


def fits(value: object, hint: Any) -> bool:
    """Whether a value suits ``int``, ``float``, ``str``, ``bool``, a Literal or a union of those.

    An integer is a number too, a truth value is not.

    >>> fits(3, float), fits(True, int), fits(None, str | None), fits("b", Literal["a"])
    (True, False, True, False)
    """
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if isinstance(hint, UnionType):
        return any(fits(value, kind) for kind in get_args(hint))
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, (int, float) if hint is float else hint)
