"""Our messages as Flower carries them: bytes as one uint8 array, words in a ConfigRecord."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from fedran.core.errors import Refused
from fedran.federation.protocol.messages import Receipt

RAW = "fedran.bytes"
MOST_BLOBS = 256
LONGEST = 2**20


def content(fields: Mapping[str, Any], blobs: Mapping[str, bytes]) -> RecordDict:
    """Fields as JSON text and named bytes, as the content of a message."""
    arrays = {name: Array("uint8", (len(blob),), RAW, blob) for name, blob in blobs.items() if blob}
    text = json.dumps(dict(fields), separators=(",", ":"))
    return RecordDict({"fields": ConfigRecord({"json": text}), "blobs": ArrayRecord(arrays)})


def fields_of(message: Message) -> dict[str, Any]:
    """The fields of a message, refused unless they are a JSON object."""
    try:
        text = message.content["fields"]["json"]
        if not isinstance(text, str) or len(text) > LONGEST:
            raise Refused("message", f"at most {LONGEST} letters of JSON", type(text).__name__)
        found = json.loads(text)
    except Refused:
        raise
    except (KeyError, TypeError, ValueError, RecursionError) as reason:
        raise Refused("message", "fields as JSON", str(reason)) from None
    if not isinstance(found, dict):
        raise Refused("message", "a JSON object", found)
    return found


def blobs_of(
    message: Message, largest: int, larger: dict[str, int] | None = None
) -> dict[str, bytes]:
    """The named bytes of a message, each at most ``largest``; nothing is decoded here.

    A larger one is refused; with ``larger``, only noted there with its size.
    """
    record = message.content.get("blobs")
    if record is None:
        return {}
    if not isinstance(record, ArrayRecord):
        raise Refused("message", "arrays of bytes", type(record).__name__)
    if len(record) > MOST_BLOBS:
        raise Refused("message", f"at most {MOST_BLOBS} parts", len(record))
    found = {}
    for name, array in record.items():
        if array.stype != RAW:
            raise Refused(name, f"an array of kind {RAW}", array.stype)
        if len(array.data) > largest:
            if larger is None:
                raise Refused(name, f"at most {largest} bytes", len(array.data))
            larger[str(name)[:64]] = len(array.data)
            continue
        found[str(name)] = bytes(array.data)
    return found


def receipts_fields(receipts: Sequence[Receipt]) -> list[dict[str, str]]:
    """Receipts as plain values."""
    return [asdict(r) for r in receipts]


def read_receipts(given: Any) -> list[Receipt]:
    """Inverse of ``receipts_fields``, each field checked to be text."""
    if not isinstance(given, list) or not all(isinstance(g, dict) for g in given):
        raise Refused("receipts", "a list of objects", given)
    names = ("outcome", "client", "task", "digest", "reason")
    for g in given:
        if set(g) != set(names) or not all(isinstance(v, str) for v in g.values()):
            raise Refused("receipts", f"fields {', '.join(names)}", sorted(g))
    return [Receipt(**g) for g in given]
