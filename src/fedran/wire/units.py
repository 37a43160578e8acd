"""Bytes as people write and read them."""

from __future__ import annotations

import re

_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
}


def parse_bytes(text: str) -> int:
    """``"1.5MiB"`` -> 1572864. Plain numbers are bytes.

    >>> parse_bytes("2MB"), parse_bytes("1 KiB"), parse_bytes("300")
    (2000000, 1024, 300)
    """
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", text)
    if not match or match[2].lower() not in _UNITS:
        raise ValueError(f"expected a size such as 2000000, 2MB or 1.5MiB, got {text!r}")
    size = float(match[1]) * _UNITS[match[2].lower()]
    if size >= 2**63:
        raise ValueError(f"expected a size below 2^63 bytes, got {text[:40]!r}")
    return int(size)


def human_bytes(n: int) -> str:
    """1572864 -> ``"1.50 MiB"``.

    >>> human_bytes(300), human_bytes(21_000), human_bytes(1572864)
    ('300 B', '20.5 KiB', '1.50 MiB')
    """
    if n < 2**10:
        return f"{n} B"
    if n < 2**20:
        return f"{n / 2**10:.1f} KiB"
    if n < 2**30:
        return f"{n / 2**20:.2f} MiB"
    return f"{n / 2**30:.2f} GiB"
