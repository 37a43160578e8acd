"""Matrices on the wire: columns rounded with a step of their own, and entropy-coded.

A column is rounded in proportion to a deviation. Codes are counted from the least one of their
column. Columns with similar codes share a table of frequencies. Points and the landmarks of heads
travel in this form.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core.errors import Refused
from fedran.wire import rans
from fedran.wire.container import Container, Tensor, inflate

NAMES = ("columns", "tables", "codes")
"""Tensors of a matrix."""
EIGHTHS = np.array(
    [1.0, 1.0905077, 1.1892071, 1.2968396, 1.4142135, 1.5422108, 1.6817929, 1.8340081], np.float32
)
"""2^(k / 8): a step is one of these times a power of two, so that every machine has the same."""
LEAST_EXPONENT = -31
MOST_CODES = 1000
"""Codes per column: a finer step would be larger than the frequencies of a table can tell apart."""
COLUMNS_PER_TABLE = 40
MOST_TABLES = 32


def column_steps(
    values: NDArray[np.float32], deviation: NDArray[Any], step: float
) -> NDArray[np.uint8]:
    """The smallest steps of at least ``step`` deviations per column, as eighths of powers of two.

    They are larger where a column would have more than ``MOST_CODES`` codes, or one that does not
    fit into 16 bits.
    """
    usual = float(np.sqrt(np.mean(np.square(deviation, dtype=np.float64)))) or 0.1
    size = step * np.maximum(deviation, usual / 100)
    if len(values):
        size = np.maximum(size, np.ptp(values, axis=0) / (MOST_CODES - 2))
        size = np.maximum(size, np.abs(values).max(axis=0) / (2**15 - 2))
    exponents = np.ceil(8 * np.log2(size) - 1e-6) - 8 * LEAST_EXPONENT
    return np.clip(exponents, 0, 255).astype(np.uint8)


def grid_steps(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """The steps by which rounding changes no value that is a multiple of a power of two.

    Other values are rounded as finely as ``MOST_CODES`` allows.
    """
    finest = column_steps(values, np.full(values.shape[1], 1e-9), 1.0)
    for exponent in range(8, LEAST_EXPONENT, -1):
        scaled = values * np.float32(2.0**-exponent)
        if np.array_equal(scaled, np.rint(scaled)):
            steps = np.full(values.shape[1], 8 * (exponent - LEAST_EXPONENT), dtype=np.uint8)
            return np.maximum(steps, finest)
    return finest


def encode_columns(values: NDArray[np.float32], steps: NDArray[np.uint8]) -> dict[str, Tensor]:
    """The tensors of a matrix whose columns are rounded in these steps."""
    n, d = values.shape
    codes = np.rint(values / _step_sizes(steps)).astype(np.int64)
    low = codes.min(axis=0) if n else np.zeros(d, dtype=np.int64)
    low = np.clip(low, -(2**15), 2**15 - 1)
    codes -= low
    tables = _tables_of(codes)
    n_tables, n_symbols = int(tables.max(initial=-1)) + 1, int(codes.max(initial=-1)) + 1
    flat, of_value = codes.T.ravel(), np.repeat(tables, n)
    counts = np.bincount(of_value * n_symbols + flat, minlength=n_tables * n_symbols)
    counts = counts.reshape(n_tables, n_symbols)
    freq = np.stack([rans.frequencies(row) for row in counts]) if counts.size else counts
    return {
        "columns": squeeze(steps, tables.astype(np.uint8), planes(low, 2)),
        "tables": squeeze(planes(freq, 2)),
        "codes": rans.encode(flat, of_value, freq.astype(np.uint16)),
    }


def decode_columns(message: Container, n: int, d: int) -> NDArray[np.float32]:
    """The matrix (n, d) in a verified message. Sizes must have been checked against limits."""
    steps, tables, low = expand(message, "columns", d, (1, 1, 2))
    n_tables = int(tables.max(initial=-1)) + 1
    if n_tables > MOST_TABLES:
        raise Refused("columns", f"at most {MOST_TABLES} tables", n_tables)
    freq = _read_tables(message, n_tables) if n else np.zeros((0, 0), dtype=np.uint16)
    codes = rans.decode(message.stream("codes"), np.repeat(tables, n), freq, "codes")
    values = codes.reshape(d, n).T.astype(np.float32)
    values += low.astype(np.int16).astype(np.float32)
    values *= _step_sizes(steps)
    return values


def planes(values: NDArray[Any], width: int) -> NDArray[np.uint8]:
    """The lowest bytes of all values, then the next ones: equal bytes then stand together."""
    given = np.ascontiguousarray(values.astype("<i8")).view(np.uint8).reshape(-1, 8)
    return given[:, :width].T


def squeeze(*parts: NDArray[Any]) -> bytes:
    """Arrays of bytes in one compressed stream."""
    return zlib.compress(b"".join(part.tobytes() for part in parts), 9)


def expand(
    message: Container, name: str, n: int, widths: tuple[int, ...]
) -> list[NDArray[np.int64]]:
    """Vectors of n values of so many bytes each, in one compressed stream."""
    size = n * sum(widths)
    data, found, start = inflate(message.stream(name), size, name), [], 0
    if len(data) != size:
        raise Refused(name, f"a stream of exactly {size} bytes when decompressed", len(data))
    raw = np.frombuffer(data, dtype=np.uint8)
    for width in widths:
        padded = np.zeros((n, 8), dtype=np.uint8)
        padded[:, :width] = raw[start : start + n * width].reshape(width, n).T
        found.append(padded.view("<i8").reshape(n).astype(np.int64))
        start += n * width
    return found


def _step_sizes(steps: NDArray[Any]) -> NDArray[np.float32]:
    """2^(steps / 8 + LEAST_EXPONENT), the same float32 everywhere."""
    whole, eighths = np.divmod(steps.astype(np.int64), 8)
    return np.ldexp(EIGHTHS[eighths], whole + LEAST_EXPONENT).astype(np.float32)


def _tables_of(codes: NDArray[np.int64]) -> NDArray[np.int64]:
    """The table of each column: columns with similar mean codes share one."""
    d = codes.shape[1]
    tables = np.zeros(d, dtype=np.int64)
    if len(codes):
        n_tables = min(MOST_TABLES, -(-d // COLUMNS_PER_TABLE))
        order = np.argsort(codes.mean(axis=0), kind="stable")
        tables[order] = np.arange(d) * n_tables // d
    return tables


def _read_tables(message: Container, n_tables: int) -> NDArray[np.uint16]:
    """Frequencies, as many symbols per table as the stream has."""
    data = inflate(message.stream("tables"), 2 * n_tables * (MOST_CODES + 1), "tables")
    n_symbols, rest = divmod(len(data), 2 * n_tables)
    if rest or not n_symbols:
        raise Refused("tables", f"{n_tables} tables of at most {MOST_CODES + 1} symbols", "others")
    halves = np.frombuffer(data, dtype=np.uint8).reshape(2, -1).astype(np.uint16)
    return (halves[0] | halves[1] << 8).reshape(n_tables, n_symbols)
