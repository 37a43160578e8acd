"""How many bytes an upload of given sizes takes: exactly, or as a stated estimate."""

from __future__ import annotations

from fedran.wire.summary_codec import SUM_BITS

HEADER = 1200
"""Typical header: accounts, a fingerprint of a dozen fields, framing."""
PER_CLASS = 24
"""Label, count, scale."""
CODED_SAVING = 1.42
"""Bits an entry that entropy coding saves: entries of a direction are close to normal, so the
largest of M takes the full range that most entries do not use."""
SUM_CODED_BITS = 9.5
"""Coded bits an entry of the class sums: they are far from zero and close together."""
PLAIN_BYTES = {"float64": 8.0, "float32": 4.0, "float16": 2.0, "int8": 1.0}


def upload_bytes(
    out_features: int, rank: int, n_classes: int, precision: str = "mixed", bits: float = 5.0
) -> int:
    """Bytes of an upload. Exact up to the header for fixed-width precisions.

    For ``mixed`` an estimate, as the coder's gain depends on the data: within a few percent for
    real features at M >= 1024 (tests/wire/test_sizes.py).
    """
    M, r, C = out_features, rank, n_classes
    if precision == "mixed":
        values = M * r * max(bits - CODED_SAVING, 1.0) / 8 + r
        sums = M * C * min(SUM_CODED_BITS, SUM_BITS) / 8
    else:
        values = M * r * PLAIN_BYTES[precision]
        sums = M * C * max(PLAIN_BYTES[precision], 2.0)
    return int(values + sums) + 8 * r + PER_CLASS * C + HEADER


def head_bytes(out_features: int, n_classes: int, precision: str = "float16") -> int:
    """Bytes of a head on the way down."""
    return int(out_features * n_classes * PLAIN_BYTES[precision]) + PER_CLASS * n_classes + HEADER


def paper_upload_values(out_features: int, rank: int, n_classes: int) -> int:
    """Numbers in an upload by the paper's formula: M r + r + M C."""
    return out_features * rank + rank + out_features * n_classes
