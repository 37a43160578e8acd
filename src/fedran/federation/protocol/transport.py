"""Messages of the federation in Flower's records: fields as JSON text, blobs as arrays of bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from fedran.core.errors import Refused

RAW = "fedran.bytes"
MAX_BLOBS = 256
MAX_JSON = 2**20
"""Characters of the fields of one message."""


def message_content(fields: Mapping[str, Any], blobs: Mapping[str, bytes]) -> RecordDict:
    """The content of a message with these fields and named blobs. Empty blobs are left out."""
    arrays = {name: Array("uint8", (len(blob),), RAW, blob) for name, blob in blobs.items() if blob}
    text = json.dumps(dict(fields), separators=(",", ":"))
    return RecordDict({"fields": ConfigRecord({"json": text}), "blobs": ArrayRecord(arrays)})


def fields_of(message: Message) -> dict[str, Any]:
    """The fields of a message. Anything but a JSON object is refused."""
    try:
        text = message.content["fields"]["json"]
        if not isinstance(text, str) or len(text) > MAX_JSON:
            raise Refused("message", f"at most {MAX_JSON} characters of JSON", type(text).__name__)
        found = json.loads(text)
    except Refused:
        raise
    except (KeyError, TypeError, ValueError, RecursionError) as reason:
        raise Refused("message", "fields as JSON", str(reason)) from None
    if not isinstance(found, dict):
        raise Refused("message", "a JSON object", found)
    return found


def blobs_of(
    message: Message, max_bytes: int, oversized: dict[str, int] | None = None
) -> dict[str, bytes]:
    """The named blobs of a message, each of at most ``max_bytes``, not decoded.

    A larger blob is refused. With ``oversized``, it is skipped and its size is noted there.
    """
    record = message.content.get("blobs")
    if record is None:
        return {}
    if not isinstance(record, ArrayRecord):
        raise Refused("message", "arrays of bytes", type(record).__name__)
    if len(record) > MAX_BLOBS:
        raise Refused("message", f"at most {MAX_BLOBS} parts", len(record))
    found = {}
    for name, array in record.items():
        if array.stype != RAW:
            raise Refused(name, f"an array of kind {RAW}", array.stype)
        if len(array.data) <= max_bytes:
            found[str(name)] = bytes(array.data)
        elif oversized is None:
            raise Refused(name, f"at most {max_bytes} bytes", len(array.data))
        else:
            oversized[str(name)[:64]] = len(array.data)
    return found
