"""Aggregator <-> message: the complete state, bit for bit."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Literal

import numpy as np

from fedran.core._linalg.blas import pack_lower, unpack_lower
from fedran.core.errors import Refused, check_id
from fedran.core.sums.aggregator import Aggregator
from fedran.wire.container import Container, pack
from fedran.wire.validation import Header, Limits, plain_accounts

Dtype = Literal["float32", "float64"]


def encode_aggregator(aggregator: Aggregator) -> bytes:
    """The complete state of an aggregator as a message. Decoding it restores the state exactly."""
    with aggregator.lock:  # a solve borrows the diagonal of the Gram while it runs
        values, arrays = aggregator.state()
        tensors = dict(arrays)
        if "gram" in tensors:
            tensors["gram"] = pack_lower(tensors["gram"])
        fingerprint = aggregator.fingerprint
        header: dict[str, Any] = {
            "out_features": aggregator.out_features,
            "dtype": aggregator.dtype,
            "fingerprint": dict(fingerprint.fields) if fingerprint else None,
            "ledger": [
                [client, task, digest] for (client, task), digest in aggregator.absorbed.items()
            ],
            "state": values | {"accounts": plain_accounts(aggregator.accounts)},
        }
        return pack("aggregator", header, tensors)


def decode_aggregator(message: Container, limits: Limits, device: str | None) -> Aggregator:
    """The aggregator in a verified message, on a torch device or (None) in NumPy."""
    header = message.header
    M = header.integer("out_features", 1, limits.out_features)
    dtype: Dtype = header.one_of("dtype", "float32", "float64")
    need = message.size
    if "gram" in message.tensors:  # the message holds its lower triangle only
        need += M * M * (4 if dtype == "float32" else 8)
    if need > limits.decoded:
        raise Refused("message", f"at most {limits.decoded} bytes when decoded", need)
    aggregator = Aggregator(
        M,
        fingerprint=header.fingerprint("fingerprint"),
        dtype=dtype,
        device=device,
    )
    section, stored = header.section("state"), "F32" if dtype == "float32" else "F64"
    values, arrays = _read_sum(message, section, M, stored, limits)
    message.only(*arrays)
    for name, array in arrays.items():
        if not np.all(np.isfinite(array)):
            raise Refused(name, "finite values", "NaN or infinity")
    if "gram" in arrays:
        arrays["gram"] = unpack_lower(arrays["gram"], M)
    ledger = {}
    for row in header.items("ledger", limits.classes):
        if not (isinstance(row, list) and len(row) == 3 and isinstance(row[2], str)):
            raise Refused("ledger", "rows of client, task, digest", row)
        ledger[check_id(row[0], "ledger"), check_id(row[1], "ledger")] = row[2]
    aggregator.restore(values, arrays, ledger)
    return aggregator


def _read_sum(
    message: Container, section: Header, M: int, dtype: str, limits: Limits
) -> tuple[dict[str, Any], dict[str, Any]]:
    form = section.one_of("form", "stack", "gram")
    width = section.integer("width")
    shape = (M, width) if form == "stack" else (M * (M + 1) // 2,)
    classes = section.labels("classes", limits)
    values = {
        "form": form,
        "width": width,
        "classes": list(classes),
        "counts": section.integers("counts", len(classes), 1),
        "accounts": asdict(section.accounts("accounts", totals=True)),
    }
    sums = message.tensor("class_sums", "F64", (len(classes), M))
    return values, {form: message.tensor(form, dtype, shape), "class_sums": sums}
