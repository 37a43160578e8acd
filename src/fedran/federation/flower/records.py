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
    return _fields(content), _blobs(content)


def _fields(content: RecordDict) -> dict[str, Any]:
    try:
        text = content["fields"]["json"]
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


def _blobs(content: RecordDict) -> dict[str, bytes]:
    record = content.get("blobs")
    if record is None:
        return {}
    if not isinstance(record, ArrayRecord):
        raise Refused("message", "arrays of bytes", type(record).__name__)
    if len(record) > MAX_BLOBS:
        raise Refused("message", f"at most {MAX_BLOBS} parts", len(record))
    for name, array in record.items():
        if array.stype != RAW:
            raise Refused(name, f"an array of kind {RAW}", array.stype)
    return {str(name): bytes(array.data) for name, array in record.items()}
