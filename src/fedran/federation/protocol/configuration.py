"""Configuration files of server and site: how they are read, and rules that both share."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from fedran.core.errors import Refused, check_id
from fedran.settings import Rule, check_table
from fedran.wire.files import read_toml

T = TypeVar("T")
ADDRESS = "host:port, such as 127.0.0.1:9443 or [::1]:9443"


def load_settings(kind: type[T], path: str | Path) -> T:
    """The settings in a TOML file. Paths in them are relative to the file."""
    table = check_table(kind, read_toml(path, "a configuration"), str(path), f"{path}: ")
    try:
        return kind(**table)
    except ValueError as reason:
        raise ValueError(f"{path}: {reason}") from None


def check_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port``. An IPv6 address stands in brackets.

    >>> check_address("127.0.0.1:9443"), check_address("[::1]:9443")
    (('127.0.0.1', 9443), ('::1', 9443))
    """
    found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]]+)):([0-9]{1,5})", address)
    if found is None or not 0 < int(found[3]) < 2**16:
        raise Refused("address", ADDRESS, address)
    host = found[1] or found[2]
    if not is_host(host) or (":" in host) != (found[1] is not None):
        raise Refused("address", ADDRESS, address)
    return host, int(found[3])


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


def _rule(check: Callable[[str], object], phrase: str) -> Rule:
    """A rule for settings from a function that refuses wrong values."""

    def holds(value: str) -> bool:
        try:
            check(value)
        except Refused:
            return False
        return True

    return Rule(holds, phrase)


is_address = _rule(check_address, ADDRESS)
is_id = _rule(
    partial(check_id, what="id"),
    "1 to 64 ASCII letters, digits, and after the first '.', '_', '-', spaces",
)
