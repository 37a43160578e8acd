"""Summary <-> message: directions, singular values, class sums, accounts.

The factor F = V diag(sigma) is sent as its singular values in float64 and its directions, the
columns of V, as rows of few bits. A decoder scales each direction to length 1, so a message
cannot state a wrong length, and ||F||^2 is the sum of sigma^2 at every precision. Class sums are
sent in the same way, as norms and directions, so that sum_c ||b_c||^2 / n_c does not change.
"""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from fedran.core.errors import Refused
from fedran.core.summary import Center, Summary
from fedran.core.sums.class_sums import ClassSums
from fedran.wire.container import Container, Tensor, pack
from fedran.wire.quantisation import (
    MAX_BITS,
    allocate_bits,
    allocate_sum_bits,
    check_bits,
    pack_codes,
    quantise,
    unpack_codes,
)
from fedran.wire.validation import MAX_ENERGY, Limits, plain_accounts

Precision = Literal["float64", "float32", "mixed"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
EXACT_ERROR_COLUMNS = 640
"""Up to this number of columns (rank and classes) the rounding error of the Gram is computed
exactly. Above it, it is bounded by norms."""
FLOAT32_SIGMA = (1e-18, 1.8e19)
"""Range of the largest column of the Gram's factor, so that float32 can hold its squares."""
TOLERANCE = {"float64": 1e-3, "float32": 1e-3, "mixed": 0.5}
"""Largest accepted ||V'V - I||_F / sqrt(r) per precision."""

_DTYPE = {"float64": "<f8", "float32": "<f4"}
_TENSOR = {"float64": "F64", "float32": "F32"}


def check_precision(precision: str, bits: float) -> Precision:
    """The precision of a summary. Raises ValueError if it or ``bits`` is not a valid choice."""
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}")
    check_bits(bits)
    return precision


def encode_summary(summary: Summary, precision: Precision, bits: float) -> bytes:
    """A summary as a message. The error of rounding is added to its accounts."""
    summary = summary.to(None).validate()
    sigma, rows = _sorted_directions(summary)
    if _deviation(rows) > TOLERANCE["float32"] / 2:
        # Columns of a sum of summaries are not orthogonal: rotate them. What the rotation drops
        # is zero to rounding, so the accounts of the original stay valid.
        sigma, rows = _sorted_directions(summary.truncate(None))
    sums = np.ascontiguousarray(summary.class_sums.T, dtype=np.float64)
    _check_range(sigma, sums, summary.sums.totals, precision)
    direction_tensors, unit = _encode_directions(rows, sigma, precision, bits)
    _check_orthogonal(unit, precision)
    sum_tensors, decoded_sums = _encode_sums(sums, summary.counts, precision, bits)
    columns, scale = rows.astype(np.float64), sigma[:, None]
    F, change = columns * scale, (unit.astype(np.float64) - columns) * scale
    if summary.center == "class":  # the between-class part of the Gram is rounded too
        roots = np.sqrt(summary.sums.totals)[:, None]
        F = np.concatenate([F, sums / roots])
        change = np.concatenate([change, (decoded_sums - sums) / roots])
    spectral, frobenius = _gram_error(F, change)
    accounts = summary.accounts.after_quantisation(
        spectral, frobenius, float(np.linalg.norm(sums - decoded_sums))
    )
    header = {
        "precision": precision,
        "out_features": summary.out_features,
        "rank": len(sigma),
        "center": summary.center,
        "classes": list(summary.classes),
        "counts": list(summary.counts),
        "accounts": plain_accounts(accounts),
        "fingerprint": dict(summary.fingerprint.fields) if summary.fingerprint else None,
    }
    return pack("summary", header, {"sigma": sigma, **direction_tensors, **sum_tensors})


def decode_summary(message: Container, limits: Limits) -> Summary:
    """The summary in a verified message, after every check of docs/reference/wire-format.md."""
    header = message.header
    precision = header.one_of("precision", *PRECISIONS)
    M = header.integer("out_features", 1, limits.out_features)
    r = header.integer("rank", 0, M)
    center: Center | None = None
    if header.get("center") is not None:
        header.one_of("center", "class")
        center = "class"
    classes = header.labels("classes", limits)
    counts = tuple(header.integers("counts", len(classes), 1))
    accounts = header.accounts("accounts")
    fingerprint = header.fingerprint("fingerprint")
    # The factor, its codes and its Gram, then the class sums with their codes and squares.
    size = 8 if precision == "float64" else 4
    need = r * M * (2 * size + 8) + r * r * size * 2 + len(classes) * M * 24
    if need > limits.decoded:
        raise Refused("message", f"at most {limits.decoded} bytes when decoded", need)
    sigma = message.tensor("sigma", "F64", (r,))
    if not np.all(np.isfinite(sigma)) or np.any(sigma <= 0) or np.any(np.diff(sigma) > 0):
        raise Refused("sigma", "finite, positive, descending values", sigma[:8].tolist())
    if precision == "mixed":
        widths = message.tensor("directions_bits", "U8", (r,))
        unit = _unit_rows(unpack_codes(message.stream("directions"), widths, M, "directions"))
        message.only("sigma", "directions", "sums", "directions_bits", "sums_bits", "sums_norm")
    else:
        unit = _unit_rows(message.tensor("directions", _TENSOR[precision], (r, M)))
        message.only("sigma", "directions", "sums")
    sums = _decode_sums(message, precision, len(classes), M)
    _check_range(sigma, sums, np.asarray(counts, dtype=np.float64), precision)
    _check_orthogonal(unit, precision)
    unit *= sigma[:, None].astype(unit.dtype)
    class_sums = ClassSums(classes, sums.T, counts)
    return Summary(
        unit.T, class_sums, accounts, fingerprint, center, "decoded", message.digest
    ).validate()


def _sorted_directions(summary: Summary) -> tuple[NDArray[np.float64], NDArray[Any]]:
    """The positive singular values, largest first, and their directions as unit rows (r, M)."""
    sigma = summary.sigma
    order = np.argsort(-sigma, kind="stable")
    order = order[sigma[order] > 0]
    sigma = sigma[order]
    rows = np.ascontiguousarray(summary.factor.T[order])
    return sigma, rows / sigma[:, None].astype(rows.dtype)


def _check_range(
    sigma: NDArray[np.float64],
    sums: NDArray[np.float64],
    counts: NDArray[np.float64],
    precision: str,
) -> None:
    """Refuse singular values and columns b_c / sqrt(n_c) that the factor's dtype cannot hold."""
    low, high = (0.0, math.sqrt(MAX_ENERGY)) if precision == "float64" else FLOAT32_SIGMA
    with np.errstate(over="ignore"):
        norms = np.linalg.norm(sums, axis=1) / np.sqrt(counts)
    largest = {"sigma": np.max(sigma, initial=0.0), "sums": np.max(norms, initial=0.0)}
    name = max(largest, key=lambda k: largest[k])
    if largest[name] > 0 and not low < largest[name] < high:
        raise Refused(
            name,
            f"a largest value of sigma and ||b_c|| / sqrt(n_c) between {low:g} and {high:g} "
            f"for {precision}",
            f"{largest[name]:.3g}",
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
) -> tuple[dict[str, Tensor], NDArray[Any]]:
    """The tensors of the directions, and the unit rows that a decoder makes from them."""
    if precision != "mixed":
        stored = rows.astype(_DTYPE[precision])
        return {"directions": stored}, _unit_rows(stored)
    average = bits
    while True:
        widths = allocate_bits(sigma, average)
        codes = quantise(rows, widths)
        unit = _unit_rows(codes)
        # Directions with few large entries need more bits, or the decoder refuses them.
        if _deviation(unit) <= 0.9 * TOLERANCE["mixed"] or average >= 2 * MAX_BITS:
            return {"directions": pack_codes(codes, widths), "directions_bits": widths}, unit
        average += 1


def _unit_rows(stored: NDArray[Any]) -> NDArray[Any]:
    """Rows scaled to norm 1, in float64 if they are stored as float64, else in float32."""
    dtype = np.float64 if stored.dtype == np.float64 else np.float32
    unit: NDArray[Any] = stored.astype(dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.sqrt(np.sum(unit * unit, axis=1, dtype=np.float64))
    if not np.all(np.isfinite(norms)) or np.any(norms == 0):
        got = "NaN, infinity or a zero row"
        raise Refused("directions", "finite rows that are not all zero", got)
    return np.divide(unit, norms[:, None].astype(dtype), out=unit)


def _encode_sums(
    sums: NDArray[np.float64], counts: tuple[int, ...], precision: Precision, bits: float
) -> tuple[dict[str, Tensor], NDArray[np.float64]]:
    """The tensors of the class sums (C, M), and the float64 rows that a decoder makes from them."""
    if precision != "mixed":
        with np.errstate(over="ignore"):
            stored = sums.astype(_DTYPE[precision])
        if not np.all(np.isfinite(stored)):
            raise ValueError("class sums exceed the range of float32; use precision='float64'")
        return {"sums": stored}, stored.astype(np.float64)
    norms = np.linalg.norm(sums, axis=1)
    sums = np.where(norms[:, None] > 0, sums, 0.0)  # also where the squares underflow
    widths = allocate_sum_bits(counts, bits)
    codes = quantise(sums, widths)
    tensors = {"sums": pack_codes(codes, widths), "sums_bits": widths, "sums_norm": norms}
    return tensors, _rows_of_norm(codes, norms)


def _decode_sums(message: Container, precision: str, C: int, M: int) -> NDArray[np.float64]:
    """The class sums (C, M) of a message."""
    if precision != "mixed":
        sums = message.tensor("sums", _TENSOR[precision], (C, M)).astype(np.float64)
    else:
        norms = message.tensor("sums_norm", "F64", (C,))
        if not np.all(np.isfinite(norms)) or np.any(norms < 0):
            raise Refused("sums_norm", "finite values, at least 0", norms[:8].tolist())
        widths = message.tensor("sums_bits", "U8", (C,))
        sums = _rows_of_norm(unpack_codes(message.stream("sums"), widths, M, "sums"), norms)
    if not np.all(np.isfinite(sums)):
        raise Refused("sums", "finite values", "NaN or infinity")
    return sums


def _rows_of_norm(stored: NDArray[Any], norms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rows scaled to the given norms, float64. A row is zero if and only if its norm is."""
    rows = stored.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        lengths = np.sqrt(np.sum(rows * rows, axis=1))
    if np.any((lengths > 0) != (norms > 0)):
        raise Refused("sums", "rows that are zero where sums_norm is 0, and only there", "others")
    with np.errstate(over="ignore", invalid="ignore"):
        rows *= (norms / np.where(lengths > 0, lengths, 1.0))[:, None]
    return rows


def _gram_error(F: NDArray[np.float64], D: NDArray[np.float64]) -> tuple[float, float]:
    """||F'F - (F + D)'(F + D)|| in the spectral and Frobenius norms, for rows F and D (w, M).

    The difference is A'CA with A = [F; D] and C = [[0 I] [I I]], so both norms are those of the
    (2w, 2w) matrix R C R' for any R with R'R = A A'. Above EXACT_ERROR_COLUMNS,
    2 ||F||_F ||D||_F + ||D||_F^2 bounds both.
    """
    w = len(F)
    if w == 0:
        return 0.0, 0.0
    if w > EXACT_ERROR_COLUMNS:
        size = float(np.linalg.norm(D))
        bound = 2 * float(np.linalg.norm(F)) * size + size**2
        return bound, bound
    A = np.concatenate([F, D])
    try:
        R = scipy.linalg.cholesky(A @ A.T, check_finite=False)
        diagonal = np.abs(np.diagonal(R))
        well_conditioned = diagonal.min() > 1e-6 * diagonal.max()
    except np.linalg.LinAlgError:
        well_conditioned = False
    if not well_conditioned:
        R = scipy.linalg.qr(A.T, mode="r", check_finite=False)[0][: 2 * w]
    eye = np.eye(w)
    C = np.block([[np.zeros((w, w)), eye], [eye, eye]])
    errors = scipy.linalg.eigvalsh(R @ C @ R.T, check_finite=False)
    return float(np.max(np.abs(errors))), float(np.linalg.norm(errors))
