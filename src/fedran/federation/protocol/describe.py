"""The content of an envelope as text, for ``fedran inspect``: what leaves a site?"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from fedran.core.errors import printable
from fedran.federation.protocol.messages import open_envelope
from fedran.wire.container import unpack
from fedran.wire.describe import Description, Section, describe_container
from fedran.wire.files import refusals_name_file
from fedran.wire.validation import FILE_LIMITS


def describe_envelope(path: Path) -> Description:
    """The signed statement, and the upload in the envelope. The signature is not verified."""
    with refusals_name_file(path):
        envelope = open_envelope(path.read_bytes(), FILE_LIMITS)
        upload = describe_container(unpack(envelope.upload, FILE_LIMITS), FILE_LIMITS)
    statement = envelope.statement
    signed: Section = {
        "federation": statement.federation,
        "site": statement.client,
        "task": statement.task,
        "members": printable(", ".join("/".join(m) for m in statement.members)) or "none",
        "bytes": path.stat().st_size,
    }
    return Description(
        f"envelope of {statement.client} for {statement.task}: {upload.title}",
        {"signed statement": signed, **upload.sections},
        {**upload.fields, "statement": asdict(statement)},
    )
