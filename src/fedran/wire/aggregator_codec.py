"""The aggregator that can be saved and loaded, bit for bit."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from fedran.core import aggregator as core
from fedran.core.aggregator import AggregatorState, check_id
from fedran.core.errors import Refused
from fedran.core.exact_sum import pack_lower, unpack_lower
from fedran.core.truncated_sum import Order
from fedran.wire.container import Container, pack, unpack
from fedran.wire.files import naming, read_container, write_atomically
from fedran.wire.header import Header
from fedran.wire.limits import FILE_LIMITS
from fedran.wire.summary_codec import read_accounts

Dtype = Literal["float32", "float64"]


class Aggregator(core.Aggregator):
    """The server's state, with files: everything of the core aggregator, ``save`` and ``load``."""

    __doc__ = core.Aggregator.__doc__

    def save(self, path: str | Path) -> int:
        """Write the state to a file, crash-safe; returns the bytes written.

        The file can be read by its owner only (mode 0600 where that exists). A loaded
        aggregator goes on bit for bit as this one would have.
        """
        data = to_bytes(self)
        write_atomically(path, data)
        return len(data)

    @classmethod
    def load(cls, path: str | Path, *, device: str | None = None) -> Aggregator:
        """The aggregator saved at ``path``; a half-written or altered file is refused by name."""
        with naming(path):
            return from_container(read_container(path, FILE_LIMITS), device, cls)


def to_bytes(aggregator: core.Aggregator) -> bytes:
    """The whole state as one message of kind ``aggregator``."""
    with aggregator.lock:  # a solve borrows the Gram's diagonal while it runs
        return _to_bytes(aggregator)


def _to_bytes(aggregator: core.Aggregator) -> bytes:
    state = aggregator.state()
    tensors = dict(state.arrays)
    if "gram" in tensors:
        tensors["gram"] = pack_lower(tensors["gram"])
    fingerprint = aggregator.fingerprint
    header = {
        "out_features": aggregator.out_features,
        "server_rank": aggregator.server_rank,
        "order": aggregator.order,
        "dtype": aggregator.dtype,
        "fingerprint": dict(fingerprint.fields) if fingerprint else None,
        "classes": list(state.counts),
        "counts": list(state.counts.values()),
        "accounts": asdict(state.accounts),
        "ledger": [[client, task, digest] for (client, task), digest in state.ledger.items()],
        "state": state.extra,
    }
    return pack("aggregator", header, tensors)


def from_bytes(blob: bytes, device: str | None = None) -> Aggregator:
    """Inverse of ``to_bytes``."""
    return from_container(unpack(blob, FILE_LIMITS), device)


def from_container(
    message: Container, device: str | None, cls: type[Aggregator] = Aggregator
) -> Aggregator:
    """The aggregator in a verified message, its fields and shapes checked."""
    header = message.of_kind("aggregator", "fedran.load reads summaries and heads").header
    M = header.integer("out_features", 1, FILE_LIMITS.out_features)
    dtype = cast(Dtype, header.one_of("dtype", "float32", "float64"))
    rank = None if header.get("server_rank") is None else header.integer("server_rank", 1)
    aggregator = cls(
        M,
        rank,
        order=cast(Order, header.one_of("order", "flat", "paper")),
        fingerprint=header.fingerprint("fingerprint"),
        dtype=dtype,
        device=device,
    )
    classes = header.labels("classes", FILE_LIMITS)
    counts = header.integers("counts", len(classes), 1)
    arrays: dict[str, Any] = {"class_sums": message.tensor("class_sums", "F64", (len(classes), M))}
    section = header.section("state")
    read = _read_exact if rank is None else _read_ranked
    extra, held = read(message, section, M, "F32" if dtype == "float32" else "F64")
    message.only("class_sums", *held)
    for name, array in {**arrays, **held}.items():
        if not np.all(np.isfinite(array)):
            raise Refused(name, "finite values", "NaN or infinity")
    if extra.get("form") == "gram":
        held["gram"] = unpack_lower(held["gram"], M)
    aggregator.restore(
        AggregatorState(
            {**arrays, **held},
            read_accounts(header.section("accounts"), totals=True),
            dict(zip(classes, counts, strict=True)),
            _read_ledger(header),
            extra,
        )
    )
    return aggregator


def _read_exact(
    message: Container, section: Header, M: int, dtype: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    form = section.one_of("form", "stack", "gram")
    width = section.integer("width")
    shape = (M, width) if form == "stack" else (M * (M + 1) // 2,)
    return {"form": form, "width": width}, {form: message.tensor(form, dtype, shape)}


def _read_ranked(
    message: Container, section: Header, M: int, dtype: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    held = {}
    for name in ("past", "open"):
        columns = message.tensors[name].shape[-1:] if name in message.tensors else ()
        held[name] = message.tensor(name, dtype, (M, *columns))
    open_task = section.optional_text("open_task", 64)
    extra = {
        "open_task": None if open_task is None else check_id(open_task, "open_task"),
        "closed": [check_id(t, "closed") for t in section.items("closed", FILE_LIMITS.classes)],
        "past_accounts": asdict(read_accounts(section.section("past_accounts"), totals=True)),
        "open_accounts": asdict(read_accounts(section.section("open_accounts"), totals=True)),
    }
    return extra, held


def _read_ledger(header: Header) -> dict[tuple[str, str], str]:
    ledger = {}
    for row in header.items("ledger", FILE_LIMITS.classes):
        if not (isinstance(row, list) and len(row) == 3 and isinstance(row[2], str)):
            raise Refused("ledger", "rows of client, task, digest", row)
        ledger[check_id(row[0], "ledger"), check_id(row[1], "ledger")] = row[2]
    return ledger
