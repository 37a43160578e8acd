"""Aggregator <-> message: the complete state, bit for bit."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Literal

import numpy as np

from fedran.core._linalg.arrays import to_numpy
from fedran.core._linalg.blas import pack_lower, unpack_lower
from fedran.core.errors import Refused, check_id
from fedran.core.points import MAX_ROWS, Points
from fedran.core.sums.aggregator import Aggregator
from fedran.core.sums.stored_points import Key
from fedran.wire.container import Container, Tensor, pack
from fedran.wire.validation import Header, Limits, plain_accounts

Dtype = Literal["float32", "float64"]
SLACK = 1e-3
"""Of the energy: what rounding of a float32 sum over many messages may change."""


def encode_aggregator(aggregator: Aggregator) -> bytes:
    """The complete state of an aggregator as a message. Decoding it restores the state exactly."""
    with aggregator.lock:  # a solve borrows the diagonal of the Gram while it runs
        header: dict[str, Any] = {
            "dtype": aggregator.dtype,
            "fingerprint": dict(aggregator.fingerprint.fields) if aggregator.fingerprint else None,
            "ledger": [
                [client, task, digest] for (client, task), digest in aggregator.absorbed.items()
            ],
        }
        if aggregator.takes is Points:
            fields, tensors = _write_points(list(aggregator.points.values()))
        else:
            fields, tensors = _write_sum(aggregator)
        return pack("aggregator", header | fields, tensors)


def decode_aggregator(message: Container, limits: Limits, device: str | None) -> Aggregator:
    """The aggregator in a verified message, on a torch device or (None) in NumPy."""
    header = message.header
    dtype: Dtype = header.one_of("dtype", "float32", "float64")
    ledger: dict[Key, str] = {}
    for row in header.items("ledger", limits.classes):
        if not (isinstance(row, list) and len(row) == 3 and isinstance(row[2], str)):
            raise Refused("ledger", "rows of client, task, digest", row)
        ledger[check_id(row[0], "ledger"), check_id(row[1], "ledger")] = row[2]
    fingerprint = header.fingerprint("fingerprint")
    if header.get("out_features") is not None:
        M = header.integer("out_features", 1, limits.out_features)
        aggregator = Aggregator(M, fingerprint=fingerprint, dtype=dtype, device=device)
        values, arrays = _read_sum(message, M, dtype, limits)
        aggregator.restore(values, arrays, ledger)
        return aggregator
    aggregator = Aggregator(fingerprint=fingerprint, dtype=dtype, device=device)
    for (client, task), points in zip(ledger, _read_points(message, ledger, limits), strict=True):
        aggregator.absorb(points, client=client, task=task)
    return aggregator


def _write_points(messages: list[Points]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """All messages one after the other, with what is needed to divide them again."""
    empty = [np.zeros((0, messages[0].in_features if messages else 1), np.float32)]
    stated = [
        {
            "in_features": points.in_features,
            "classes": list(points.classes),
            "points": np.bincount(points.codes, minlength=len(points.classes)).tolist(),
        }
        for points in messages
    ]
    held = [to_numpy(points.means) for points in messages if len(points.counts)]
    means = np.concatenate(held) if held else empty[0]
    counts = np.concatenate([np.zeros(0, np.int64), *(points.counts for points in messages)])
    return {"out_features": None, "messages": stated}, {
        "means": means,
        "counts": counts.astype(np.float64),
    }


def _read_points(message: Container, ledger: dict[Key, str], limits: Limits) -> list[Points]:
    header, found, start = message.header, [], 0
    message.only("means", "counts")
    fingerprint = header.fingerprint("fingerprint")
    stated = header.items("messages", limits.classes)
    if len(stated) != len(ledger):
        raise Refused("messages", f"one for each of {len(ledger)} in the ledger", len(stated))
    means, counts = message.tensors.get("means"), message.tensors.get("counts")
    if means is None or counts is None or means.ndim != 2:
        raise Refused("means", "a matrix and a vector of counts", "others")
    means = message.tensor("means", "F32", means.shape)
    counts = message.tensor("counts", "F64", (len(means),))
    with np.errstate(invalid="ignore"):
        valid = np.all((counts >= 1) & (counts <= MAX_ROWS) & (counts == np.rint(counts)))
    if not valid:
        raise Refused("counts", "whole numbers of at least 1", "others")
    for digest, fields in zip(ledger.values(), stated, strict=True):
        section = Header(fields if isinstance(fields, dict) else {}, "messages")
        classes = section.labels("classes", limits)
        per_class = section.integers("points", len(classes), 1, limits.points)
        d, end = section.integer("in_features", 1, limits.out_features), start + sum(per_class)
        if end > len(means) or (classes and d != means.shape[1]):
            raise Refused("messages", f"{len(means)} points of {means.shape[1]} columns", end)
        codes = np.repeat(np.arange(len(classes)), per_class)
        rows = means[start:end] if classes else np.zeros((0, d), np.float32)
        whole = counts[start:end].astype(np.int64)
        found.append(Points(classes, codes, rows, whole, fingerprint, digest=digest))
        start = end
    if start != len(means):
        raise Refused("means", f"{start} points, as the messages say", len(means))
    return found


def _write_sum(aggregator: Aggregator) -> tuple[dict[str, Any], dict[str, Tensor]]:
    values, arrays = aggregator.sums.state()
    tensors: dict[str, Tensor] = dict(arrays)
    if "gram" in arrays:
        tensors["gram"] = pack_lower(arrays["gram"])
    state = values | {"accounts": plain_accounts(aggregator.accounts)}
    return {"out_features": aggregator.out_features, "state": state}, tensors


def _read_sum(
    message: Container, M: int, dtype: Dtype, limits: Limits
) -> tuple[dict[str, Any], dict[str, Any]]:
    need = message.size
    if "gram" in message.tensors:  # the message holds its lower triangle only
        need += M * M * (4 if dtype == "float32" else 8)
    if need > limits.decoded:
        raise Refused("message", f"at most {limits.decoded} bytes when decoded", need)
    section = message.header.section("state")
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
    arrays = {
        form: message.tensor(form, "F32" if dtype == "float32" else "F64", shape),
        "class_sums": message.tensor("class_sums", "F64", (len(classes), M)),
    }
    message.only(*arrays)
    for name, array in arrays.items():
        if not np.all(np.isfinite(array)):
            raise Refused(name, "finite values", "NaN or infinity")
    if "gram" in arrays:
        arrays["gram"] = unpack_lower(arrays["gram"], M)
    _check_accounts(values, arrays)
    return values, arrays


def _check_accounts(values: dict[str, Any], arrays: dict[str, Any]) -> None:
    """Refuse accounts that no sum of valid summaries has: each of theirs holds for the total."""
    acc, counts, sums = values["accounts"], values["counts"], arrays["class_sums"]
    rows, energy, slack = acc["n_rows"], acc["energy"], SLACK * acc["energy"]
    if sum(counts) > rows or not min(rows, 1) <= acc["parts"] <= rows:
        expected = f"at least {sum(counts)} rows, and 1 to n_rows parts"
        raise Refused("state.accounts", expected, f"{rows} rows and {acc['parts']} parts")
    held = arrays[values["form"]]
    with np.errstate(over="ignore"):
        between = float(np.sum(np.sum(sums**2, axis=1) / np.asarray(counts, dtype=np.float64)))
        if values["form"] == "stack":
            trace = float(np.sum(held.astype(np.float64) ** 2))
        else:
            trace = float(np.trace(held, dtype=np.float64))
    if between > energy + slack or not abs(trace + acc["cut"] - energy) <= slack:
        expected = f"trace + cut = {trace + acc['cut']:.6g}, and enough for the class sums"
        raise Refused("state.accounts.energy", expected, f"{energy:.6g}")
    if acc["eps_G"] < (acc["cut"] - slack) / len(held):
        raise Refused("state.accounts.eps_G", "at least cut / M", acc["eps_G"])
