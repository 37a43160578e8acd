"""Checks that the configurations of server and site share."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from fedran.core.errors import Refused, nearest, printable
from fedran.settings import has_type as fits
from fedran.wire.files import read_toml

T = TypeVar("T")


def check_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port``.

    >>> check_address("127.0.0.1:9443")
    ('127.0.0.1', 9443)
    """
    host, _, port = address.rpartition(":")
    if not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 2**16 or not is_host(host):
        raise Refused("address", "host:port, such as 127.0.0.1:9443", address)
    return host, int(port)


def is_host(text: str) -> bool:
    """Whether a text is a host name or an IP address.

    >>> is_host("fl.example.org"), is_host("::1"), is_host("https://fl.example.org")
    (True, True, False)
    """
    try:
        ipaddress.ip_address(text)
    except ValueError:
        label = "(?!-)[A-Za-z0-9-]{1,63}(?<!-)"
        return len(text) <= 253 and re.fullmatch(rf"{label}(\.{label})*", text) is not None
    return True


def load_settings(kind: type[T], path: str | Path) -> T:
    """Settings from a TOML file; paths in it are relative to the file."""
    given = read_toml(path, "a configuration")
    try:
        return kind(**_checked(kind, given))
    except ValueError as reason:
        raise ValueError(f"{path}: {reason}") from None


def configured(kind: type[T], variable: str, whose: str) -> tuple[T, Path]:
    """Settings from the file that an environment variable names, and the folder it lies in."""
    where = os.environ.get(variable)
    if not where:
        raise Refused(variable, f"the path of the {whose} configuration (.toml)", "nothing")
    return load_settings(kind, where), Path(where).parent


def _checked(kind: type[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    for name, value in given.items():
        if name not in hints:
            known = ", ".join(hints)
            raise ValueError(f"no setting {name!r}{nearest(name, hints)}; it has {known}")
        if not any(fits(value, kind) for kind in _kinds(hints[name])):
            raise ValueError(f"{name} must be {_shown(hints[name])}, got {printable(value)}")
    for f in fields(kind):
        if f.name not in given and f.default is MISSING:
            raise ValueError(f"expected a setting {f.name!r}, found {', '.join(given) or 'none'}")
    return dict(given)


def _kinds(hint: Any) -> list[Any]:
    """The plain types that a hint allows: ``dict`` for ``dict[str, str]``."""
    kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    return [dict if get_origin(kind) is dict else kind for kind in kinds]


def _shown(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(str, get_args(hint)))
    names = {int: "an integer", float: "a number", str: "text", dict: "a table"}
    names |= {bool: "true or false"}
    return " or ".join(names[kind] for kind in _kinds(hint) if kind in names)


def check_range(name: str, value: float, low: float, high: float) -> None:
    """Refuse a number outside ``[low, high]``."""
    if not low <= value <= high:
        raise Refused(name, f"from {low:g} to {high:g}", value)
