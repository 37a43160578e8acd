"""Mixture <-> message: group means, counts, spreads and residual directions, without any width M.

The means are rows of few bits with one scale each, the directions likewise. A decoder scales the
directions to length 1 and makes them orthogonal, so a message cannot state a wrong length.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedran.core.errors import Refused
from fedran.core.labels import Label
from fedran.core.mixture import MAX_DIRECTIONS, Mixture, MixturePart
from fedran.wire.container import Container, Tensor, pack
from fedran.wire.quantisation import MAX_BITS, check_bits, pack_codes, quantise, unpack_codes
from fedran.wire.validation import MAX_ROWS, Header, Limits

MixturePrecision = Literal["mixed", "float32"]
MIXTURE_PRECISIONS: tuple[MixturePrecision, ...] = get_args(MixturePrecision)
DIRECTION_BITS = 4
"""Bits per value of the directions; more where few large entries would make them dependent."""
INDEPENDENT = 0.25
"""Least eigenvalue of V V' for unit rows V that a decoder makes orthogonal."""
_TENSORS = ("means", "counts", "spreads", "directions", "shares")


def check_mixture_precision(precision: str, bits: float) -> MixturePrecision:
    """The precision of a mixture. Raises ValueError if it or ``bits`` is not a valid choice."""
    if precision not in MIXTURE_PRECISIONS:
        choices = " or ".join(MIXTURE_PRECISIONS)
        raise ValueError(f"the precision of a mixture must be {choices}, got {precision!r}")
    check_bits(bits)
    return precision


def encode_mixture(mixture: Mixture, precision: MixturePrecision, bits: float) -> bytes:
    """A mixture as a message. Classes that were withheld are not mentioned."""
    mixture = mixture.to(None).validate()
    parts, d = mixture.parts, mixture.in_features
    header = {
        "precision": precision,
        "in_features": d,
        "fingerprint": dict(mixture.fingerprint.fields),
        "parts": [
            {
                "classes": list(part.classes),
                "groups": np.bincount(part.codes).tolist(),
                "directions": len(part.shares),
            }
            for part in parts
        ],
    }
    counts = _stack([part.counts for part in parts], np.int64)
    tensors: dict[str, Tensor] = {
        "counts": _bytes_of_counts(counts),
        "spreads": _stack([part.spreads for part in parts], np.float32),
        "shares": _stack([part.shares for part in parts], np.float32),
    }
    means = _stack([part.means for part in parts], np.float32, d)
    if precision == "float32":
        directions = _stack([part.directions for part in parts], np.float32, d)
        return pack("mixture", header, {**tensors, "means": means, "directions": directions})
    widths = _mean_bits(counts, bits)
    codes = quantise(means, widths)
    tensors["means"] = pack_codes(codes, widths)
    tensors["means_bits"] = widths
    tensors["means_scale"] = _norm_ratio(means, codes)
    coded = [_quantise_directions(part.directions) for part in parts]
    widths = _stack([w for _, w in coded], np.uint8)
    codes = _stack([c for c, _ in coded], np.int16, d)
    tensors["directions"] = pack_codes(codes, widths)
    tensors["directions_bits"] = widths
    return pack("mixture", header, tensors)


def decode_mixture(message: Container, limits: Limits) -> Mixture:
    """The mixture in a verified message, after every check of docs/reference/wire-format.md."""
    header = message.header
    precision = header.one_of("precision", *MIXTURE_PRECISIONS)
    d = header.integer("in_features", 1, limits.out_features)
    fingerprint = header.fingerprint("fingerprint")
    if fingerprint is None:
        raise Refused("fingerprint", "the features of the mixture", "none")
    layout = _read_parts(header, d, limits)
    g = sum(sum(groups) for _, groups, _ in layout)
    q = sum(directions for _, _, directions in layout)
    if g > limits.groups:
        raise Refused("groups", f"at most {limits.groups}", g)
    # Codes, their bytes and float32 values. Then, part by part, directions and their inner
    # products in float64.
    widest = max((directions for _, _, directions in layout), default=0)
    need = 16 * (g + q) * d + 64 * g + 32 * widest * (d + widest)
    if need > limits.decoded:
        raise Refused("message", f"at most {limits.decoded} bytes when decoded", need)
    counts = _read_counts(message, g)
    spreads = _read_positive(message, "spreads", g).astype(np.float64)
    shares = _read_positive(message, "shares", q).astype(np.float64)
    if precision == "float32":
        message.only(*_TENSORS)
        means = message.tensor("means", "F32", (g, d))
        directions = message.tensor("directions", "F32", (q, d))
    else:
        message.only(*_TENSORS, "means_bits", "means_scale", "directions_bits")
        means = _read_means(message, g, d)
        widths = message.tensor("directions_bits", "U8", (q,))
        directions = unpack_codes(message.stream("directions"), widths, d, "directions")
    parts = []
    group, direction = 0, 0
    for classes, groups, n_directions in layout:
        rows = slice(group, group + sum(groups))
        lines = slice(direction, direction + n_directions)
        stored = directions[lines]
        parts.append(
            MixturePart(
                classes,
                np.repeat(np.arange(len(classes)), groups),
                means[rows],
                counts[rows],
                spreads[rows],
                stored if precision == "float32" else _orthonormal(stored),
                shares[lines],
            )
        )
        group, direction = rows.stop, lines.stop
    return Mixture(tuple(parts), fingerprint, digest=message.digest).validate()


def _read_parts(
    header: Header, d: int, limits: Limits
) -> list[tuple[tuple[Label, ...], list[int], int]]:
    """Classes, groups per class and number of directions of each part, for rows of d values."""
    layout = []
    for i, value in enumerate(header.items("parts", limits.classes)):
        if not isinstance(value, dict):
            raise Refused(f"parts.{i}", "an object", value)
        part = Header(value, f"parts.{i}")
        classes = part.labels("classes", limits)
        if not classes:
            raise Refused(f"parts.{i}.classes", "at least one class", "none")
        groups = part.integers("groups", len(classes), 1, limits.groups)
        layout.append((classes, groups, part.integer("directions", 0, min(d, MAX_DIRECTIONS))))
    if sum(len(classes) for classes, _, _ in layout) > limits.classes:
        raise Refused("parts", f"at most {limits.classes} classes in all", "more")
    return layout


def _bytes_of_counts(counts: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Counts as little-endian bytes (g, w), with as few bytes as the largest needs."""
    width = max(1, -(-int(counts.max(initial=0)).bit_length() // 8))
    return np.ascontiguousarray(counts.astype("<i8").view(np.uint8).reshape(-1, 8)[:, :width])


def _read_counts(message: Container, g: int) -> NDArray[np.int64]:
    found = message.tensors.get("counts")
    width = found.shape[-1] if found is not None and found.ndim == 2 else 1
    if not 1 <= width <= 6:
        raise Refused("counts", "1 to 6 bytes per count", width)
    padded = np.zeros((g, 8), dtype=np.uint8)
    padded[:, :width] = message.tensor("counts", "U8", (g, width))
    counts = padded.view("<i8").reshape(g).astype(np.int64)
    if g and (counts.min() < 1 or int(counts.astype(object).sum()) > MAX_ROWS):
        raise Refused("counts", f"positive numbers of at most {MAX_ROWS} in all", "others")
    return counts


def _read_positive(message: Container, name: str, n: int) -> NDArray[np.float32]:
    values = message.tensor(name, "F32", (n,))
    if not np.all(np.isfinite(values)) or np.any(values < 0):
        raise Refused(name, "finite values, at least 0", "others")
    return values


def _read_means(message: Container, g: int, d: int) -> NDArray[np.float32]:
    widths = message.tensor("means_bits", "U8", (g,))
    scale = _read_positive(message, "means_scale", g)
    codes = unpack_codes(message.stream("means"), widths, d, "means")
    with np.errstate(over="ignore"):
        return codes.astype(np.float32) * scale[:, None]


def _mean_bits(counts: NDArray[np.int64], average: float) -> NDArray[np.uint8]:
    """The same bits for all means, or one more for the largest groups to meet the average.

    More bits for larger groups throughout (half a bit per doubling, as for a fixed weighted
    error) gives the same weighted error at the same size.
    """
    widths = np.full(len(counts), int(average), dtype=np.uint8)
    more = round((average - int(average)) * len(counts))
    widths[np.argsort(-counts, kind="stable")[:more]] += 1
    return widths


def _norm_ratio(rows: NDArray[np.float32], codes: NDArray[np.int16]) -> NDArray[np.float32]:
    """The scale that gives each row of codes the norm of its row.

    Rounding then changes no norm, so rows of norm 1 have means that a decoder accepts at any
    number of bits.
    """
    norms = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
    lengths = np.sqrt(np.einsum("ij,ij->i", codes, codes, dtype=np.float64))
    return (norms / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)


def _quantise_directions(
    directions: NDArray[np.float32],
) -> tuple[NDArray[np.int16], NDArray[np.uint8]]:
    """Codes of orthonormal rows with as many bits as keep them independent, and the bits."""
    for bits in range(DIRECTION_BITS, MAX_BITS + 1):
        widths = np.full(len(directions), bits, dtype=np.uint8)
        codes = quantise(directions, widths)
        unit = _unit_rows(codes)
        if not len(unit) or np.linalg.eigvalsh(unit @ unit.T)[0] >= 2 * INDEPENDENT:
            break
    return codes, widths


def _orthonormal(codes: NDArray[np.int16]) -> NDArray[np.float32]:
    """The orthonormal rows nearest to the codes scaled to unit rows: (V V')^(-1/2) V."""
    unit = _unit_rows(codes)
    values, vectors = np.linalg.eigh(unit @ unit.T)
    if len(unit) and not values[0] >= INDEPENDENT:
        raise Refused("directions", "rows that are clearly independent", "others")
    nearest = (vectors / np.sqrt(values)) @ (vectors.T @ unit)
    return nearest.astype(np.float32)


def _unit_rows(codes: NDArray[np.int16]) -> NDArray[np.float64]:
    rows = codes.astype(np.float64)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(norms > 0, norms, 1.0)


def _stack(arrays: list[NDArray[Any]], dtype: Any, columns: int | None = None) -> NDArray[Any]:
    """Arrays of all parts one after the other, also when there is none."""
    empty = np.zeros(0 if columns is None else (0, columns), dtype=dtype)
    return np.concatenate([empty, *(a.astype(dtype) for a in arrays)])
