"""What it means to forget a site: which uploads, secure sums and heads contain its rows.

A signed record says what was removed. It outlives backups that still hold the uploads.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedran.core.errors import Refused
from fedran.federation.protocol.identity import SiteKey, UploadId, check_public, is_signed
from fedran.federation.server.store.database import Database
from fedran.federation.server.store.schema import SolvedHead, Tombstone, Upload
from fedran.wire.files import write_atomically

PURPOSE = "fedran record 1"
"""Part of every signed record, so that no signature can be used for another purpose."""
KEY, RECORDS = "record.key", "records"
"""In the server's folder: the key that signs records, and their folder. The database has a copy of
each."""
VERIFY = (
    "`fedran federation verify FILE` checks the signature: Ed25519, by the server's key, over "
    "`record` as JSON with sorted keys and without spaces. A digest of an upload or a classifier "
    "is the SHA-256 of its file."
)


@dataclass(frozen=True)
class Forgotten:
    """What ``Store.forget`` removes."""

    tombstones: list[Tombstone]
    sums: list[Upload]
    """Secure sums that contained rows of the site."""
    heads: list[SolvedHead]
    """Heads that were solved with one of the removed uploads."""


def to_forget(database: Database, client: str, task: str | None, who: str) -> Forgotten:
    """What must be removed to forget a site's uploads for a task, or for all tasks (None)."""

    def meant(key: UploadId) -> bool:
        return key[0] == client and task in (None, key[1])

    gone = [u for u in database.uploads() if meant(u.key) or any(map(meant, u.members))]
    digests = dict.fromkeys((m for u in gone for m in u.members if meant(m)), "")
    digests |= {u.key: u.digest for u in gone if meant(u.key)}
    if not digests:
        which = "any task" if task is None else task
        raise Refused("upload", f"an upload of {client} for {which}", "none")
    now, numbers = time.time(), {u.key: u.sum_number for u in gone}
    return Forgotten(
        [Tombstone(*key, digest, now, who, numbers.get(key, 0)) for key, digest in digests.items()],
        [upload for upload in gone if not meant(upload.key)],
        _heads_with(gone, database.heads()),
    )


def _heads_with(uploads: list[Upload], heads: list[SolvedHead]) -> list[SolvedHead]:
    """The heads that were solved with one of these uploads."""
    return [
        head
        for head in heads
        if any(u.number <= head.last_upload and u.at <= head.at for u in uploads)
    ]


def sign_record(federation: str, found: Forgotten, key: SiteKey, after: str | None = None) -> str:
    """What was removed, and which heads were solved with it, as signed JSON.

    ``after`` is the digest of the first head without it, "" if there is none; None: not yet known.
    """
    return _signed(
        key,
        federation,
        found.heads,
        removed=[asdict(t) for t in found.tombstones],
        sums=[{"client": s.client, "task": s.task, "digest": s.digest} for s in found.sums],
        **({} if after is None else {"head_after": after}),
    )


def sign_revision(
    federation: str, old: Upload, digest: str, heads: list[SolvedHead], key: SiteKey
) -> str:
    """The upload that a site replaced, and which heads were solved with it, as signed JSON.

    ``digest`` is that of the new upload. The first head after the time of the record contains it.
    """
    with_it = _heads_with([old], heads)
    replaced = {"client": old.client, "task": old.task, "digest": old.digest, "by": digest}
    return _signed(key, federation, with_it, removed=[], replaced=replaced, at=time.time())


def write_record(folder: Path, client: str, content: str) -> Path:
    """Write a record to the folder of the server; returns its path."""
    when = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    which = hashlib.sha256(content.encode()).hexdigest()[:8]  # one message may cause several
    (folder / RECORDS).mkdir(exist_ok=True, mode=0o700)
    path = folder / RECORDS / f"{when}-{client}-{which}.json"
    write_atomically(path, content.encode())
    return path


def _signed(key: SiteKey, federation: str, heads: list[SolvedHead], **said: Any) -> str:
    record = {
        "purpose": PURPOSE,
        "federation": federation,
        **said,
        "heads": [{"digest": h.digest, "task": h.task, "at": h.at} for h in heads],
        "verify": VERIFY,
    }
    signature = base64.b64encode(key.sign_bytes(_canonical(record))).decode("ascii")
    return json.dumps({"record": record, "key": key.public, "signature": signature}, indent=1)


def check_record(content: str, public: str | None = None) -> list[Tombstone]:
    """The tombstones in a signed record. An altered record, or one of another key, is refused.

    Without ``public``, the key in the record is used: then only alterations are noticed.
    """
    try:
        found = json.loads(content)
        record, key = found["record"], check_public(found["key"], "key")
        signature = base64.b64decode(found["signature"], validate=True)
        tombstones = [Tombstone(**fields) for fields in record["removed"]]
    except (ValueError, KeyError, TypeError) as reason:
        raise Refused("record", "a signed record of `fedran federation forget`", reason) from None
    if public not in (None, key) or record.get("purpose") != PURPOSE:
        raise Refused("record", "a record that this server signed", "another one")
    if not is_signed(key, _canonical(record), signature):
        raise Refused("record", "the text that was signed", "another text")
    return tombstones


def _canonical(record: Any) -> bytes:
    return json.dumps(record, sort_keys=True, separators=(",", ":")).encode("ascii")
