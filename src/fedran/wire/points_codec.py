"""Points <-> message: means rounded with one step per column and entropy-coded, norms and counts.

A column is rounded with a step in proportion to the deviation of its rows from their class means.
Codes are counted from the least one of their column. Columns with similar codes share a table of
frequencies. Rounding changes norms, so the norm of every mean travels beside its count, and decoded
means are scaled to it.
"""

from __future__ import annotations

import zlib
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedran.core._linalg.arrays import to_numpy
from fedran.core.errors import Refused, real_number
from fedran.core.points import MAX_ROWS, Points
from fedran.wire import rans
from fedran.wire.container import Container, pack
from fedran.wire.validation import Limits

DEFAULT_STEP = 1.0
"""Step of a column over the deviation of its rows: 2 costs 0.5 points and saves a third."""
STEPS = (0.01, 16.0)
EIGHTHS = np.array(
    [1.0, 1.0905077, 1.1892071, 1.2968396, 1.4142135, 1.5422108, 1.6817929, 1.8340081], np.float32
)
"""2^(k / 8): a step is one of these times a power of two, so that every machine has the same."""
LEAST_EXPONENT = -31
MOST_CODES = 1000
"""Codes per column: a finer step would be larger than the frequencies of a table can tell apart."""
COLUMNS_PER_TABLE = 40
MOST_TABLES = 32
WHOLE_NORM = 2**16 - 1


class _Rounded(NamedTuple):
    """Means as integers: code minus ``low`` times the step of the column."""

    codes: NDArray[np.int64]
    low: NDArray[np.int64]
    steps: NDArray[np.uint8]


def check_step(step: float) -> float:
    """The step over the deviation. ValueError unless it is a sensible number."""
    if not STEPS[0] <= real_number(step, "step") <= STEPS[1]:
        raise ValueError(f"step must lie in {STEPS[0]} .. {STEPS[1]}, got {step!r}")
    return float(step)


def encode_points(points: Points, step: float) -> bytes:
    """Points as a message. Classes that were withheld are not mentioned."""
    points = points.to(None).validate()
    means, d = to_numpy(points.means), points.in_features
    header = {
        "in_features": d,
        "fingerprint": None if points.fingerprint is None else dict(points.fingerprint.fields),
        "classes": list(points.classes),
        "points": np.bincount(points.codes, minlength=len(points.classes)).tolist(),
    }
    rounded = _round(means, points.deviation, step)
    tables = _tables_of(rounded.codes)
    n_tables = int(tables.max(initial=-1)) + 1
    n_symbols = int(rounded.codes.max(initial=-1)) + 1
    flat, of_value = rounded.codes.T.ravel(), np.repeat(tables, len(means))
    counts = np.bincount(of_value * n_symbols + flat, minlength=n_tables * n_symbols)
    counts = counts.reshape(n_tables, n_symbols)
    freq = np.stack([rans.frequencies(row) for row in counts]) if counts.size else counts
    norms = np.sqrt(np.einsum("ij,ij->i", means, means, dtype=np.float64))
    whole = np.rint(np.minimum(norms, 1.0) * WHOLE_NORM).astype("<u2")
    return pack(
        "points",
        header,
        {
            "columns": _squeeze(rounded.steps, tables.astype(np.uint8), _planes(rounded.low, 2)),
            "rows": _squeeze(_planes(whole, 2), _planes(points.counts, 6)),
            "tables": _squeeze(_planes(freq, 2)),
            "codes": rans.encode(flat, of_value, freq.astype(np.uint16)),
        },
    )


def decode_points(message: Container, limits: Limits) -> Points:
    """The points in a verified message, after every check of docs/reference/wire-format.md."""
    header = message.header
    message.only("columns", "rows", "tables", "codes")
    d = header.integer("in_features", 1, limits.out_features)
    classes = header.labels("classes", limits)
    per_class = header.integers("points", len(classes), 1, limits.groups)
    n = sum(per_class)
    if n > limits.groups:
        raise Refused("points", f"at most {limits.groups}", n)
    need = 24 * n * d + 64 * (n + d)
    if need > limits.decoded:
        raise Refused("message", f"at most {limits.decoded} bytes when decoded", need)
    steps, tables, low = _expand(message, "columns", d, (1, 1, 2))
    whole, counts = _expand(message, "rows", n, (2, 6))
    if n and (counts.min() < 1 or int(counts.sum()) > MAX_ROWS):
        raise Refused("rows", f"positive counts of at most {MAX_ROWS} in all", "others")
    n_tables = int(tables.max(initial=-1)) + 1
    if n_tables > MOST_TABLES:
        raise Refused("columns", f"at most {MOST_TABLES} tables", n_tables)
    freq = _read_tables(message, n_tables) if n else np.zeros((0, 0), dtype=np.uint16)
    codes = rans.decode(message.stream("codes"), np.repeat(tables, n), freq, "codes")
    values = codes.reshape(d, n).T.astype(np.float32)
    values += low.astype(np.int16).astype(np.float32)
    values *= _step_sizes(steps)
    lengths = np.sqrt(np.einsum("ij,ij->i", values, values, dtype=np.float64))
    wanted = whole / WHOLE_NORM
    values *= (wanted / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)[:, None]
    return Points(
        classes,
        np.repeat(np.arange(len(classes)), per_class),
        values,
        counts,
        header.fingerprint("fingerprint"),
        digest=message.digest,
    ).validate()


def _round(means: NDArray[np.float32], deviation: NDArray[Any] | None, step: float) -> _Rounded:
    """Means in steps of about ``step`` deviations, at most ``MOST_CODES`` codes per column."""
    if deviation is None:
        deviation = means.std(axis=0) if len(means) else np.ones(means.shape[1])
    usual = float(np.sqrt(np.mean(np.square(deviation, dtype=np.float64)))) or 0.1
    size = step * np.maximum(deviation, usual / 100)
    if len(means):
        size = np.maximum(size, np.ptp(means, axis=0) / (MOST_CODES - 2))
    exponents = np.ceil(8 * np.log2(size) - 1e-6) - 8 * LEAST_EXPONENT
    steps = np.clip(exponents, 0, 255).astype(np.uint8)
    codes = np.rint(means / _step_sizes(steps)).astype(np.int64)
    low = codes.min(axis=0) if len(codes) else np.zeros(means.shape[1], dtype=np.int64)
    low = np.clip(low, -(2**15), 2**15 - 1)
    return _Rounded(codes - low, low, steps)


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


def _planes(values: NDArray[Any], width: int) -> NDArray[np.uint8]:
    """The lowest bytes of all values, then the next ones: equal bytes then stand together."""
    given = np.ascontiguousarray(values.astype("<i8")).view(np.uint8).reshape(-1, 8)
    return given[:, :width].T


def _squeeze(*parts: NDArray[Any]) -> bytes:
    return zlib.compress(b"".join(part.tobytes() for part in parts), 9)


def _expand(
    message: Container, name: str, n: int, widths: tuple[int, ...]
) -> list[NDArray[np.int64]]:
    """Vectors of n values of so many bytes each, compressed in one stream."""
    data = _inflate(message, name, n * sum(widths))
    raw, found, start = np.frombuffer(data, dtype=np.uint8), [], 0
    for width in widths:
        padded = np.zeros((n, 8), dtype=np.uint8)
        padded[:, :width] = raw[start : start + n * width].reshape(width, n).T
        found.append(padded.view("<i8").reshape(n).astype(np.int64))
        start += n * width
    return found


def _inflate(message: Container, name: str, size: int) -> bytes:
    decoder = zlib.decompressobj()
    try:
        # One byte more than expected is enough to notice a longer stream without holding it.
        data = decoder.decompress(message.stream(name), size + 1)
    except zlib.error as reason:
        raise Refused(name, "a zlib stream", str(reason)) from None
    if len(data) != size or not decoder.eof or decoder.unused_data:
        got = f"more than {size}" if len(data) > size else f"{len(data)}"
        raise Refused(name, f"a stream of exactly {size} bytes when decompressed", got)
    return data


def _read_tables(message: Container, n_tables: int) -> NDArray[np.uint16]:
    """Frequencies, as many symbols per table as the stream has."""
    largest = 2 * n_tables * (MOST_CODES + 1)
    decoder = zlib.decompressobj()
    try:
        data = decoder.decompress(message.stream("tables"), largest + 1)
    except zlib.error as reason:
        raise Refused("tables", "a zlib stream", str(reason)) from None
    n_symbols, rest = divmod(len(data), 2 * n_tables)
    if rest or not n_symbols or len(data) > largest or not decoder.eof or decoder.unused_data:
        raise Refused("tables", f"{n_tables} tables of at most {MOST_CODES + 1} symbols", "others")
    planes = np.frombuffer(data, dtype=np.uint8).reshape(2, -1).astype(np.uint16)
    return (planes[0] | planes[1] << 8).reshape(n_tables, n_symbols)
