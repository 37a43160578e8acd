"""Rounding rows to few bits, and the entropy coder that packs the result.

A row x becomes integer codes round(x / max|x| * L) with L = 2^(bits - 1) - 1. The largest entry
always gets code +-L, so no row of codes is zero.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core.errors import Refused

MIN_BITS, MAX_BITS = 2, 14
SLOPE = 1.5
"""Bits a column gains when its singular value doubles.

The Gram error of a rounded column weighs its error by sigma^2, so 2 would be optimal for the
Frobenius norm and 1 for the factor itself; 1.5 takes the fewest bytes at the same accuracy
(results/precision.md).
"""

Codes = NDArray[np.int16]


def allocate_bits(sigma: NDArray[np.float64], average: float) -> NDArray[np.uint8]:
    """Bits for each column: average + SLOPE (log2 sigma - mean log2 sigma), within 2 .. 14.

    >>> allocate_bits(np.array([16.0, 4.0, 1.0]), 5).tolist()
    [8, 5, 2]
    """
    if sigma.size == 0:
        return np.zeros(0, dtype=np.uint8)
    logs = np.log2(np.maximum(sigma, np.finfo(np.float64).tiny))
    wish = SLOPE * (logs - logs.mean())
    offset = average
    for _ in range(MAX_BITS):  # where many columns sit at the least, the others give way
        bits = np.clip(np.rint(offset + wish), MIN_BITS, MAX_BITS)
        excess = float(bits.mean()) - average
        if excess <= 0.1:
            break
        offset -= excess
    return bits.astype(np.uint8)


def quantise(rows: NDArray[Any], bits: NDArray[np.uint8]) -> tuple[Codes, NDArray[np.float64]]:
    """Integer codes (k, M) of the rows, and the scale with rows ~ codes * scale[:, None]."""
    levels = largest_code(bits)
    peaks = np.max(np.abs(rows), axis=1, initial=0.0).astype(np.float64)
    scale = np.where(peaks > 0, peaks, 1.0) / levels
    codes = np.empty(rows.shape, dtype=np.int16)
    for i, row in enumerate(rows):
        codes[i] = np.rint(row / scale[i])
    return codes, scale


def largest_code(bits: NDArray[np.uint8]) -> NDArray[np.int64]:
    """L = 2^(bits - 1) - 1 for each row."""
    return (1 << (bits.astype(np.int64) - 1)) - 1


def pack_codes(codes: Codes, bits: NDArray[np.uint8]) -> bytes:
    """Codes as one Huffman-only zlib stream.

    Raw layout before compression: rows of at most 8 bits as int8, in order; then of the wider
    rows, each code + 32768 as uint16, all high bytes, then all low bytes.
    """
    narrow = bits <= 8
    wide = (codes[~narrow].astype(np.int32) + 32768).astype(np.uint16)
    raw = b"".join(
        [
            codes[narrow].astype(np.int8).tobytes(),
            (wide >> 8).astype(np.uint8).tobytes(),
            (wide & 255).astype(np.uint8).tobytes(),
        ]
    )
    coder = zlib.compressobj(9, zlib.DEFLATED, 15, 9, zlib.Z_HUFFMAN_ONLY)
    return coder.compress(raw) + coder.flush()


def unpack_codes(stream: bytes, bits: NDArray[np.uint8], width: int, name: str) -> Codes:
    """Inverse of ``pack_codes`` for rows of ``width``; anything else is refused."""
    if bits.size and (bits.min() < MIN_BITS or bits.max() > MAX_BITS):
        raise Refused(f"{name}_bits", f"{MIN_BITS} to {MAX_BITS}", f"{bits.min()}..{bits.max()}")
    narrow = bits <= 8
    n_narrow, n_wide = int(narrow.sum()) * width, int((~narrow).sum()) * width
    raw = np.frombuffer(_inflate(stream, n_narrow + 2 * n_wide, name), dtype=np.uint8)
    codes = np.empty((len(bits), width), dtype=np.int16)
    codes[narrow] = raw[:n_narrow].view(np.int8).reshape(-1, width)
    high = raw[n_narrow : n_narrow + n_wide].astype(np.int32).reshape(-1, width)
    low = raw[n_narrow + n_wide :].reshape(-1, width)
    codes[~narrow] = (high << 8 | low) - 32768
    if bits.size:
        beyond = np.max(np.abs(codes.astype(np.int32)), axis=1) > largest_code(bits)
        if beyond.any():
            row = int(np.argmax(beyond))
            raise Refused(name, f"codes of {bits[row]} bits in row {row}", "a larger code")
    return codes


def _inflate(stream: bytes, size: int, name: str) -> bytes:
    """Decompress to exactly ``size`` bytes, never holding more."""
    decoder = zlib.decompressobj()
    try:
        raw = decoder.decompress(stream, size + 1)
    except zlib.error as reason:
        raise Refused(name, "a zlib stream", str(reason)) from None
    if len(raw) != size or not decoder.eof or decoder.unused_data:
        got = f"more than {size}" if len(raw) > size else f"{len(raw)}"
        raise Refused(name, f"a stream of exactly {size} bytes when unpacked", got)
    return raw
