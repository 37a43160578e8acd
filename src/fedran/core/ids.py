"""Names of clients, tasks and federations, which become keys, file names and table cells."""

from __future__ import annotations

import re

from fedran.core.errors import Refused

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


def check_id(value: object, what: str) -> str:
    """``value`` if it is an id: 1 to 64 of A-Z a-z 0-9 . _ -

    >>> check_id("site-3", "client")
    'site-3'
    """
    if not isinstance(value, str) or not _ID.fullmatch(value):
        expected = "text of 1 to 64 ASCII letters, digits, '.', '_' or '-'"
        raise Refused(what, expected, repr(value))
    return value
