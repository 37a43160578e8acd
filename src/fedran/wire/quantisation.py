"""Round rows to few bits per value, and compress the result with Huffman codes.

A row x becomes integer codes round(x / max|x| * L) with L = 2^(bits - 1) - 1. The largest entry
always gets code +-L, so no row of codes is zero.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core.errors import Refused, real_number
from fedran.wire.container import inflate

MIN_BITS, MAX_BITS = 2, 14
SLOPE = 1.5
"""How many more bits a column gets when its singular value doubles.

A slope of 2 minimises the Frobenius error of the Gram, in which a column counts with sigma^2.
A slope of 1 minimises the error of the factor. 1.5 needs the fewest bytes for the same accuracy
(docs/reference/wire-format.md).
"""
SUM_EXTRA_BITS = 1.0
"""Bits per value of the sum of a class with one row, beyond the average of the factor."""

Codes = NDArray[np.int16]


def allocate_bits(sigma: NDArray[np.float64], average: float) -> NDArray[np.uint8]:
    """Bits per column: average + SLOPE (log2 sigma - mean log2 sigma), within 2 .. 14.

    >>> allocate_bits(np.array([16.0, 4.0, 1.0]), 5).tolist()
    [8, 5, 2]
    """
    if sigma.size == 0:
        return np.zeros(0, dtype=np.uint8)
    logs = np.log2(np.maximum(sigma, np.finfo(np.float64).tiny))
    wish = SLOPE * (logs - logs.mean())
    offset = average
    for _ in range(MAX_BITS):  # columns raised to MIN_BITS take bits from the others
        bits = np.clip(np.rint(offset + wish), MIN_BITS, MAX_BITS)
        excess = float(bits.mean()) - average
        if excess <= 0.1:
            break
        offset -= excess
    return bits.astype(np.uint8)


def allocate_sum_bits(counts: tuple[int, ...], average: float) -> NDArray[np.uint8]:
    """Bits per class sum: average + 1 + log2(n_c) / 2, within 2 .. 14.

    The sum of n rows varies by chance in proportion to sqrt(n), and its size grows with n. Half a
    bit per doubling keeps the rounding error at the same share of that variation.

    >>> allocate_sum_bits((1, 4, 100), 5).tolist()
    [6, 7, 9]
    """
    wish = average + SUM_EXTRA_BITS + 0.5 * np.log2(np.maximum(counts, 1.0))
    return np.clip(np.rint(wish), MIN_BITS, MAX_BITS).astype(np.uint8)


def check_bits(bits: float) -> None:
    """ValueError unless rows can be rounded to this average number of bits."""
    if not MIN_BITS <= real_number(bits, "bits") <= MAX_BITS:
        raise ValueError(f"bits must lie in {MIN_BITS} .. {MAX_BITS}, got {bits!r}")


def quantise(rows: NDArray[Any], bits: NDArray[np.uint8]) -> Codes:
    """Integer codes (k, M) of the rows, with this number of bits per row."""
    peaks = np.max(np.abs(rows), axis=1, initial=0.0).astype(np.float64)
    scale = np.where(peaks > 0, peaks, 1.0) / largest_code(bits)
    codes = np.empty(rows.shape, dtype=np.int16)
    for i, row in enumerate(rows):
        codes[i] = np.rint(row / scale[i])
    return codes


def largest_code(bits: NDArray[np.uint8]) -> NDArray[np.int64]:
    """L = 2^(bits - 1) - 1 per row."""
    return (1 << (bits.astype(np.int64) - 1)) - 1


def pack_codes(codes: Codes, bits: NDArray[np.uint8]) -> bytes:
    """Compress codes to one zlib stream with Huffman codes only.

    Layout before compression: first the leading 8 bits of every row, as int8 (the whole code
    where a row has at most 8 bits). Then, for each row of more bits, its remaining low bits: the
    lowest bit of all values, packed 8 to a byte, then the next bit. Only the leading bits have
    a skewed distribution that Huffman codes can use.
    """
    extra = np.maximum(bits.astype(np.int64) - 8, 0)
    raw = [(codes >> extra[:, None].astype(np.int16)).astype(np.int8).tobytes()]
    for row, low in zip(codes, extra, strict=True):
        raw += [np.packbits((row >> k) & 1).tobytes() for k in range(low)]
    coder = zlib.compressobj(9, zlib.DEFLATED, 15, 9, zlib.Z_HUFFMAN_ONLY)
    return coder.compress(b"".join(raw)) + coder.flush()


def unpack_codes(stream: bytes, bits: NDArray[np.uint8], width: int, name: str) -> Codes:
    """Inverse of ``pack_codes`` for rows of ``width`` values. Refuses every other stream."""
    if bits.size and (bits.min() < MIN_BITS or bits.max() > MAX_BITS):
        raise Refused(f"{name}_bits", f"{MIN_BITS} to {MAX_BITS}", f"{bits.min()}..{bits.max()}")
    extra = np.maximum(bits.astype(np.int64) - 8, 0)
    plane = (width + 7) // 8
    size = len(bits) * width + int(extra.sum()) * plane
    data = inflate(stream, size, name)
    if len(data) != size:
        raise Refused(name, f"a stream of exactly {size} bytes when decompressed", len(data))
    raw = np.frombuffer(data, dtype=np.uint8)
    leading = raw[: len(bits) * width].view(np.int8).reshape(len(bits), width)
    codes, wide = leading.astype(np.int16), extra > 0
    codes[wide] <<= extra[wide, None].astype(np.int16)
    start = len(bits) * width
    for row, low in zip(codes, extra, strict=True):
        for k in range(low):
            row |= np.unpackbits(raw[start : start + plane], count=width).astype(np.int16) << k
            start += plane
    if bits.size:
        beyond = np.maximum(codes.max(axis=1), -codes.min(axis=1)) > largest_code(bits)
        if beyond.any():
            first = int(np.argmax(beyond))
            raise Refused(name, f"codes of {bits[first]} bits in row {first}", "a larger code")
    return codes
