"""Summary <-> message: directions, singular values, class sums, accounts."""

from __future__ import annotations

import math
import sys
from dataclasses import asdict, fields, replace
from typing import Any, Literal, get_args

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from fedran.core.accounts import Accounts
from fedran.core.errors import Refused
from fedran.core.summary import Summary
from fedran.wire.container import Container, pack
from fedran.wire.quantisation import (
    MAX_BITS,
    MIN_BITS,
    allocate_bits,
    pack_codes,
    quantise,
    unpack_codes,
)
from fedran.wire.validation import Header, Limits

Precision = Literal["float64", "float32", "float16", "int8", "mixed"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
SUM_BITS = 12
"""Bits of the class sums under ``mixed``: as accurate as 14 (results/precision.md)."""
EXACT_ERROR_RANK = 512
"""Up to this rank the quantisation error is computed exactly, above it bounded by norms."""
MOST_ROWS, MOST_ENERGY = 2**40, 1e100
"""Ceilings of the accounts of one message, so that no sum of messages can overflow."""
FLOAT32_SIGMA = (1e-18, 1.8e19)
"""Largest singular values whose factor and its squares float32 can hold."""
TOLERANCE = {"float64": 1e-3, "float32": 1e-3, "float16": 2e-3, "int8": 0.25, "mixed": 0.5}
"""Largest ||V'V - I||_F / sqrt(r) that a message of this precision may show."""

_DTYPE = {"float64": "<f8", "float32": "<f4", "float16": "<f2"}
_TENSOR = {"float64": "F64", "float32": "F32", "float16": "F16", "int8": "I8"}


def encode_summary(summary: Summary, precision: Precision, bits: float) -> bytes:
    """A summary as an upload; the rounding it causes is added to its accounts."""
    summary = _orthogonal(summary.to(None).validate())
    sigma = summary.sigma
    order = np.argsort(-sigma, kind="stable")
    order = order[sigma[order] > 0]
    sigma = sigma[order]
    _check_range(sigma, precision)
    rows = np.ascontiguousarray(summary.factor.T[order])
    rows = rows / sigma[:, None].astype(rows.dtype)
    sums = np.ascontiguousarray(summary.class_sums.T, dtype=np.float64)
    tensors, unit = _encode_directions(rows, sigma, precision, bits)
    _check_orthogonal(unit, precision)
    sum_tensors, sums_back = _encode_sums(sums, precision)
    spectral, frobenius = _gram_error(rows, unit, sigma)
    accounts = summary.accounts.after_quantisation(
        spectral, frobenius, float(np.linalg.norm(sums - sums_back))
    )
    header = {
        "precision": precision,
        "out_features": summary.out_features,
        "rank": len(sigma),
        "classes": list(summary.classes),
        "counts": list(summary.counts),
        "accounts": asdict(accounts),
        "fingerprint": dict(summary.fingerprint.fields) if summary.fingerprint else None,
    }
    return pack("summary", header, {"sigma": sigma, **tensors, **sum_tensors})


def decode_summary(message: Container, limits: Limits) -> Summary:
    """A summary from a parsed message, every check of docs/reference/wire-format.md applied."""
    header = message.header
    precision = header.one_of("precision", *PRECISIONS)
    M = header.integer("out_features", 1, limits.out_features)
    r = header.integer("rank", 0, M)
    classes = header.labels("classes", limits)
    counts = tuple(header.integers("counts", len(classes), 1))
    accounts = read_accounts(header.section("accounts"))
    fingerprint = header.fingerprint("fingerprint")
    _check_size(M, r, len(classes), precision, limits)
    sigma = message.tensor("sigma", "F64", (r,))
    if not np.all(np.isfinite(sigma)) or np.any(sigma <= 0) or np.any(np.diff(sigma) > 0):
        raise Refused("sigma", "finite, positive, descending values", _brief(sigma))
    _check_range(sigma, precision)
    unit = _decode_directions(message, precision, r, M)
    sums = _decode_sums(message, precision, len(classes), M)
    message.only("sigma", *_tensor_names(precision))
    _check_orthogonal(unit, precision)
    unit *= sigma[:, None].astype(unit.dtype)
    summary = Summary(
        unit.T, sums.T, classes, counts, accounts, fingerprint, "decoded", message.digest
    )
    return summary.validate()


def read_accounts(section: Header, totals: bool = False) -> Accounts:
    """Accounts from a header section: all fields there, none else, finite, at least 0.

    Those of one message have ceilings; ``totals`` over many messages may exceed them.
    """
    rows, energy = (10**30, sys.float_info.max) if totals else (MOST_ROWS, MOST_ENERGY)
    known = {f.name for f in fields(Accounts)}
    extra = sorted(section.fields.keys() - known)
    if extra:
        raise Refused(section.path, "only known accounts", ", ".join(extra))
    values: dict[str, Any] = {
        name: section.integer(name, 0, rows)
        if name in ("n_rows", "merges")
        else section.number(name, energy)
        for name in known
    }
    return Accounts(**values)


def _orthogonal(summary: Summary) -> Summary:
    """The same summary with orthogonal columns: as it is, or rotated (sums need it)."""
    sigma = summary.sigma
    good = sigma > 0
    rows = (summary.factor[:, good] / sigma[good].astype(summary.factor.dtype)).T
    if _deviation(rows) <= TOLERANCE["float32"] / 2:
        return summary
    rotated = summary.truncate(None)
    # Columns that are zero to rounding are no loss: the accounts stay what they were.
    return replace(rotated, accounts=summary.accounts)


def _check_range(sigma: NDArray[np.float64], precision: str) -> None:
    low, high = (0.0, math.sqrt(MOST_ENERGY)) if precision == "float64" else FLOAT32_SIGMA
    if sigma.size and not low < sigma[0] < high:
        raise Refused(
            "sigma",
            f"a largest value between {low:g} and {high:g} for {precision}",
            f"{sigma[0]:.3g}",
            hint="rescale the features",
        )


def _deviation(rows: NDArray[Any]) -> float:
    """||V'V - I||_F / sqrt(r) for unit rows (r, M)."""
    if not len(rows):
        return 0.0
    gram = rows @ rows.T
    gram[np.diag_indices_from(gram)] -= 1.0
    return float(np.linalg.norm(gram)) / math.sqrt(len(rows))


def _check_orthogonal(unit: NDArray[Any], precision: str) -> None:
    deviation = _deviation(unit)
    if not deviation <= TOLERANCE[precision]:
        raise Refused(
            "directions",
            f"||V'V - I||_F / sqrt(r) of at most {TOLERANCE[precision]:g} for {precision}",
            f"{deviation:.3g}",
            hint="directions with few large entries need precision='float32'",
        )


def _encode_directions(
    rows: NDArray[Any], sigma: NDArray[np.float64], precision: Precision, bits: float
) -> tuple[dict[str, NDArray[Any]], NDArray[Any]]:
    """The tensors of the directions, and the unit rows that a decoder will get from them."""
    if precision in _DTYPE:
        peaks = np.max(np.abs(rows), axis=1, keepdims=True) if len(rows) else 1.0
        # float16 has few exponents: with the largest entry at 1, none is lost to underflow.
        stored = (rows / peaks if precision == "float16" else rows).astype(_DTYPE[precision])
        return {"directions": stored}, _unit_rows(stored, "directions")
    if precision == "int8":
        codes, _ = quantise(rows, np.full(len(rows), 8, dtype=np.uint8))
        return {"directions": codes.astype(np.int8)}, _unit_rows(codes, "directions")
    average = bits
    while True:
        widths = allocate_bits(sigma, average)
        codes, _ = quantise(rows, widths)
        unit = _unit_rows(codes, "directions")
        # Spiky directions need more bits than asked for before a decoder will take them.
        if _deviation(unit) <= 0.9 * TOLERANCE["mixed"] or average >= 2 * MAX_BITS:
            stream = np.frombuffer(pack_codes(codes, widths), dtype=np.uint8)
            return {"directions": stream, "directions_bits": widths}, unit
        average += 1


def _decode_directions(message: Container, precision: str, r: int, M: int) -> NDArray[Any]:
    if precision == "mixed":
        widths = message.tensor("directions_bits", "U8", (r,))
        codes = unpack_codes(message.stream("directions"), widths, M, "directions")
        return _unit_rows(codes, "directions")
    stored = message.tensor("directions", _TENSOR[precision], (r, M))
    return _unit_rows(stored, "directions")


def _unit_rows(stored: NDArray[Any], name: str) -> NDArray[Any]:
    """Rows scaled to norm 1: float64 from float64, float32 from everything else.

    The decoder never trusts a scale: a direction is whatever the codes point at, its length is
    sigma. So ||F||^2 is the sum of sigma^2 exactly, for every precision.
    """
    dtype = np.float64 if stored.dtype == np.float64 else np.float32
    unit: NDArray[Any] = stored.astype(dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.sqrt(np.sum(unit * unit, axis=1, dtype=np.float64))
    if not np.all(np.isfinite(norms)) or np.any(norms == 0):
        raise Refused(name, "finite rows that are not all zero", "NaN, infinity or a zero row")
    return np.divide(unit, norms[:, None].astype(dtype), out=unit)


def _encode_sums(
    sums: NDArray[np.float64], precision: Precision
) -> tuple[dict[str, NDArray[Any]], NDArray[np.float64]]:
    """The tensors of the class sums (C, M), and the float64 rows a decoder will get from them."""
    if precision in ("float64", "float32"):
        with np.errstate(over="ignore"):
            stored = sums.astype(_DTYPE[precision])
        if not np.all(np.isfinite(stored)):
            raise ValueError("class sums exceed the range of float32; use precision='float64'")
        return {"sums": stored}, stored.astype(np.float64)
    if precision == "mixed":
        widths = np.full(len(sums), SUM_BITS, dtype=np.uint8)
        codes, scale = quantise(sums, widths)
        stream = np.frombuffer(pack_codes(codes, widths), dtype=np.uint8)
        return {"sums": stream, "sums_scale": scale}, codes * scale[:, None]
    peaks = np.max(np.abs(sums), axis=1, initial=0.0)
    scale = np.where(peaks > 0, peaks, 1.0)
    stored = (sums / scale[:, None]).astype("<f2")
    return {"sums": stored, "sums_scale": scale}, stored.astype(np.float64) * scale[:, None]


def _decode_sums(message: Container, precision: str, C: int, M: int) -> NDArray[np.float64]:
    if precision in ("float64", "float32"):
        sums = message.tensor("sums", _TENSOR[precision], (C, M)).astype(np.float64)
    else:
        scale = message.tensor("sums_scale", "F64", (C,))
        if not np.all(np.isfinite(scale)) or np.any(scale <= 0):
            raise Refused("sums_scale", "finite, positive values", _brief(scale))
        if precision == "mixed":
            widths = np.full(C, SUM_BITS, dtype=np.uint8)
            stored: NDArray[Any] = unpack_codes(message.stream("sums"), widths, M, "sums")
        else:
            stored = message.tensor("sums", "F16", (C, M))
        with np.errstate(over="ignore", invalid="ignore"):
            sums = stored.astype(np.float64) * scale[:, None]
    if not np.all(np.isfinite(sums)):
        raise Refused("sums", "finite values", "NaN or infinity")
    return sums


def _tensor_names(precision: str) -> tuple[str, ...]:
    names: tuple[str, ...] = ("directions", "sums")
    if precision == "mixed":
        return (*names, "directions_bits", "sums_scale")
    return (*names, "sums_scale") if precision in ("float16", "int8") else names


def _check_size(M: int, r: int, C: int, precision: str, limits: Limits) -> None:
    """Refuse before allocating: factor, its Gram and codes, class sums."""
    size = 8 if precision == "float64" else 4
    need = r * M * (2 * size + 8) + r * r * size * 2 + C * M * (8 + 8 + 8)
    if need > limits.decoded:
        raise Refused("message", f"at most {limits.decoded} bytes when decoded", need)


def _gram_error(
    rows: NDArray[Any], unit: NDArray[Any], sigma: NDArray[np.float64]
) -> tuple[float, float]:
    """||FF' - F^F^'|| in the spectral and Frobenius norms, for F^ = F + D.

    The difference is A C A' with A = [F D] = QR and C = [[0 I] [I I]], so both norms are those
    of the (2r, 2r) matrix R C R'. Above EXACT_ERROR_RANK, 2 ||F||_2 ||D||_F + ||D||_F^2 bounds
    both.
    """
    r = len(sigma)
    if r == 0:
        return 0.0, 0.0
    F = rows.astype(np.float64) * sigma[:, None]
    D = unit.astype(np.float64) * sigma[:, None] - F
    if r > EXACT_ERROR_RANK:
        size = float(np.linalg.norm(D))
        bound = 2 * float(sigma[0]) * size + size**2
        return bound, bound
    R = _triangular(np.concatenate([F, D]))
    eye = np.eye(r)
    C = np.block([[np.zeros((r, r)), eye], [eye, eye]])
    errors = scipy.linalg.eigvalsh(R @ C @ R.T, check_finite=False)
    return float(np.max(np.abs(errors))), float(np.linalg.norm(errors))


def _triangular(A: NDArray[np.float64]) -> NDArray[np.float64]:
    """R with R'R = A A': by Cholesky where A A' is well conditioned, else by QR of A'."""
    S = A @ A.T
    try:
        R = scipy.linalg.cholesky(S, check_finite=False)
        diagonal = np.abs(np.diagonal(R))
        if diagonal.min() > 1e-6 * diagonal.max():
            return R
    except np.linalg.LinAlgError:
        pass
    (R,) = scipy.linalg.qr(A.T, mode="r", check_finite=False)
    return R[: len(A)]


def _brief(values: NDArray[Any]) -> str:
    low, high = values.min(initial=np.inf), values.max(initial=-np.inf)
    return f"{len(values)} values from {low:.3g} to {high:.3g}"


def check_precision(precision: str, bits: float) -> Precision:
    """The precision if it is a known one, with bits in range; ValueError otherwise."""
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}")
    if not MIN_BITS <= bits <= MAX_BITS:
        raise ValueError(f"bits must lie in {MIN_BITS} .. {MAX_BITS}, got {bits!r}")
    return precision
