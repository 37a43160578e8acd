"""Entropy coding of small integers with tables of frequencies (rANS), in NumPy.

A stream is coded by L coders that work side by side: coder l has the symbols l, l + L, l + 2 L, ...
Each keeps a state of 32 bits, and writes or reads 16 bits when the state leaves its range. So
a step of Python codes L symbols. The result is within 1 % of the entropy for the tables given,
where a Huffman code of the same symbols needs 15 to 30 % more. All arithmetic is on integers, so
that every machine reads the same symbols.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedran.core.errors import Refused

PRECISION = 12
"""Bits of a frequency: those of one table add up to 2**PRECISION."""
TOTAL = 1 << PRECISION
LOW = 1 << 16
"""Least state of a coder between two symbols."""
SYMBOLS_PER_CODER = 1024
"""A coder costs 4 bytes at the end of the stream, so short streams have few. With 4096, an upload
of 100 rows is 0.7 % smaller and takes four times as long to decode (51 ms instead of 13)."""
MOST_CODERS = 1024


def frequencies(counts: NDArray[np.int64]) -> NDArray[np.uint16]:
    """Frequencies that add up to ``TOTAL``, at least 1 where a symbol occurs.

    >>> frequencies(np.array([3, 0, 1])).tolist()
    [3072, 0, 1024]
    """
    occurs = counts > 0
    found = np.where(occurs, np.maximum(1, counts * TOTAL // max(1, int(counts.sum()))), 0)
    # What rounding left over goes to, or comes from, the most frequent symbols.
    while (rest := TOTAL - int(found.sum())) != 0:
        if rest > 0:
            found[np.argmax(found)] += rest
        else:
            largest = np.argmax(found)
            found[largest] -= min(-rest, int(found[largest]) - 1)
    return found.astype(np.uint16)


def n_coders(n: int) -> int:
    """Coders of a stream of n symbols."""
    return int(min(MOST_CODERS, max(1, n // SYMBOLS_PER_CODER)))


def encode(
    symbols: NDArray[np.integer], tables: NDArray[np.integer], freq: NDArray[np.uint16]
) -> bytes:
    """The stream of ``symbols[i]`` with the frequencies ``freq[tables[i]]``."""
    n, coders = len(symbols), n_coders(len(symbols))
    if n == 0:
        return b""
    f = freq.astype(np.uint64)
    start = np.cumsum(f, axis=1) - f
    f, start = f[tables, symbols], start[tables, symbols]
    state = np.full(coders, LOW, dtype=np.uint64)
    words: list[NDArray[np.uint16]] = []
    shift = np.uint64(32 - PRECISION)
    for first in range((n - 1) // coders * coders, -1, -coders):
        now = slice(first, min(first + coders, n))
        x, g = state[: now.stop - first], f[now]
        full = x >= g << shift
        words.append(x[full].astype(np.uint16))
        x = np.where(full, x >> np.uint64(16), x)
        state[: now.stop - first] = (x // g << np.uint64(PRECISION)) + x % g + start[now]
    stream = np.concatenate(words[::-1]) if words else np.zeros(0, dtype=np.uint16)
    return state.astype("<u4").tobytes() + stream.astype("<u2").tobytes()


def decode(
    stream: bytes, tables: NDArray[np.integer], freq: NDArray[np.uint16], field: str
) -> NDArray[np.uint16]:
    """The symbols of a stream. One that no encoder wrote is refused."""
    n, coders = len(tables), n_coders(len(tables))
    if n == 0 and not stream:
        return np.zeros(0, dtype=np.uint16)
    if n == 0 or len(stream) < 4 * coders or len(stream) % 2:
        raise Refused(field, f"a stream of at least {4 * coders} bytes", f"{len(stream)} bytes")
    if np.any(freq.astype(np.int64).sum(axis=1) != TOTAL):
        raise Refused(field, f"frequencies that add up to {TOTAL}", "others")
    state = np.frombuffer(stream, "<u4", coders).astype(np.uint64)
    words = np.frombuffer(stream, "<u2", offset=4 * coders).astype(np.uint64)
    f = freq.astype(np.uint64)
    start = np.cumsum(f, axis=1) - f
    symbol_of = np.stack([np.repeat(np.arange(len(row)), row) for row in freq])
    found, read = np.empty(n, dtype=np.uint16), 0
    for first in range(0, n, coders):
        now = slice(first, min(first + coders, n))
        x, table = state[: now.stop - first], tables[now]
        slot = x & np.uint64(TOTAL - 1)
        symbol = symbol_of[table, slot]
        found[now] = symbol
        x = f[table, symbol] * (x >> np.uint64(PRECISION)) + slot - start[table, symbol]
        empty = x < LOW
        needed = int(np.count_nonzero(empty))
        if read + needed > len(words):
            raise Refused(field, "a complete stream", "one that ends early")
        x[empty] = (x[empty] << np.uint64(16)) + words[read : read + needed]
        state[: now.stop - first] = x
        read += needed
    if read != len(words) or np.any(state != LOW):
        raise Refused(field, "a stream that ends with its last symbol", "another one")
    return found
