"""Messages of the federation in Flower's records: fields as JSON text, blobs as arrays of bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedran.core.errors import Refused
from fedran.federation.protocol.limits import MAX_BLOBS, MAX_JSON

RAW = "fedran.bytes"


def make_record(fields: Mapping[str, Any], blobs: Mapping[str, bytes]) -> RecordDict:
    """The content of a message with these fields and named blobs. Empty blobs are left out."""
    arrays = {name: Array("uint8", (len(blob),), RAW, blob) for name, blob in blobs.items() if blob}
    text = json.dumps(dict(fields), separators=(",", ":"))
    return RecordDict({"fields": ConfigRecord({"json": text}), "blobs": ArrayRecord(arrays)})


def read_record(content: RecordDict) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Fields and named blobs of a message. Blobs are neither copied nor decoded.

    Fields that are not a JSON object are refused, and blobs that are not arrays of bytes.
    """
    try:
        text = content["fields"]["json"]
        fields = json.loads(text) if len(text) <= MAX_JSON else None
    except (KeyError, TypeError, ValueError, RecursionError) as reason:
        raise Refused("message", "fields as JSON", str(reason)) from None
    if not isinstance(fields, dict):
        expected = f"a JSON object of at most {MAX_JSON} characters"
        raise Refused("message", expected, type(fields).__name__)
    arrays = content.get("blobs", ArrayRecord())
    if not isinstance(arrays, ArrayRecord) or len(arrays) > MAX_BLOBS:
        raise Refused("message", f"at most {MAX_BLOBS} arrays of bytes", "something else")
    for name, array in arrays.items():
        if array.stype != RAW:
            raise Refused(name, f"an array of kind {RAW}", array.stype)
    return fields, {str(name): bytes(array.data) for name, array in arrays.items()}
