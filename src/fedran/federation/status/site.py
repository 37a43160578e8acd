"""Reads the state of a site. Only reads files."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from fedran.federation.protocol.connection import certificate_expiry
from fedran.federation.protocol.limits import FULL_DISK
from fedran.federation.protocol.lockfile import lock_holder
from fedran.federation.protocol.messages import open_envelope
from fedran.federation.secure.masking.attempt import STAGES
from fedran.federation.secure.site.pinning import PinnedRoster, key_fingerprint, roster_fingerprint
from fedran.federation.secure.site.sum_files import FOLDER, SumFiles
from fedran.federation.server.store.schema import SolvedHead
from fedran.federation.site.outbox import Outbox
from fedran.federation.site.settings import (
    CONNECTION,
    HEAD,
    OUTBOX,
    SitePaths,
    newest_head,
)
from fedran.federation.status.model import Finding, Outcome, SiteStatus, Status
from fedran.federation.status.reader import alarms, disk_findings
from fedran.wire.files import folder_bytes, read_json_object
from fedran.wire.validation import FILE_LIMITS


def read_site(paths: SitePaths) -> Status:
    """The state of a site now."""
    settings, state = paths.settings(), paths.state
    pinned, contact = PinnedRoster(state), read_json_object(state / CONNECTION)
    known, shown = pinned.clients, pinned.shown or pinned.clients
    marks = pinned.marks(shown)
    free = shutil.disk_usage(paths.folder).free
    findings = [*disk_findings(free), *alarms(state)]
    if known and marks:
        text = "The server shows another roster: this site takes part in no secure sum."
        remedy = f"Compare and pin it: `fedran federation check {paths.folder}` says how."
        findings.append(Finding("problem", text, remedy))
    uploads, budget = list(_uploads(state / OUTBOX)), ""
    if (state / FOLDER).is_dir():
        uploads += _sums(SumFiles(state))
        budget = _budget(SumFiles(state), settings.max_delta)
    return Status(
        at=time.time(),
        federation=settings.federation,
        client=settings.client,
        folder=str(paths.folder),
        running=lock_holder(paths.folder / "log") is not None and free >= FULL_DISK,
        findings=findings,
        sites=[
            SiteStatus(
                client,
                client in known and client in shown,
                key_fingerprint(shown.get(client) or known[client]),
                marks.get(client, ""),
            )
            for client in sorted({*known, *shown})
        ],
        disk_bytes=folder_bytes(state),
        disk_free=free,
        certificate_expires=certificate_expiry(paths.folder / settings.ca),
        checked=contact.get("at") if isinstance(contact.get("at"), float) else None,
        connection=str(contact.get("state", "")) or f"server {settings.server}, never tried",
        head=_head(state),
        uploads=uploads,
        roster=roster_fingerprint(shown) if shown else "",
        budget=budget,
    )


def _head(state: Path) -> SolvedHead | None:
    """The classifier that the site has. Only the server knows the task and the accuracy."""
    if (head := newest_head(state)) is None:
        return None
    file = (state / HEAD).stat()
    return SolvedHead(0, file.st_mtime, "", "", len(head.classes), file.st_size, None, 0.0, 0)


def _uploads(folder: Path) -> list[Outcome]:
    """The uploads in the outbox, oldest first, each with its receipt."""
    outbox, found = Outbox(folder), []
    for path in folder.glob("*.envelope") if folder.is_dir() else ():
        receipt = outbox.receipt(path.stem)
        state, reason = (receipt.code.value, receipt.reason) if receipt else ("pending", "")
        if receipt is None and (blob := outbox.envelope(path.stem)):
            revision = open_envelope(blob, FILE_LIMITS).statement.revision
            if revision:
                reason = f"revision {revision}, which the server has not asked for yet"
        with suppress(FileNotFoundError):  # withdrawn or put aside meanwhile
            found.append(Outcome(path.stat().st_mtime, "", path.stem, state, reason))
    return sorted(found, key=lambda upload: upload.at or 0.0)


def _sums(files: SumFiles) -> Iterator[Outcome]:
    """The part of this site in the newest attempt at the secure sum of each task."""
    for task in sorted({path.stem for path in files.folder.glob("*.note")}):
        try:
            newest, note = files.state(task), files.note(task)
        except (OSError, ValueError):  # it changes while it is read, or is damaged
            continue
        if refused := str(note.get("refused") or ""):
            reason = f"this site refuses, and tells the server no reason: {refused}"
            yield Outcome(None, "", task, "refused", reason)
        elif newest is not None:
            answered = [str(stage) for stage in STAGES if stage in newest.answers]
            reason = f"attempt {newest.attempt.number}, answered up to {(answered or ['none'])[-1]}"
            members = list(newest.survivors)
            told = f"sum of {', '.join(members)}" if members else "", note.get("reason")
            reason = "; ".join(filter(None, (reason, *told)))
            code = str(note.get("code", "pending"))
            yield Outcome(None, "", task, code, reason, members=members)


def _budget(files: SumFiles, delta: float) -> str:
    """What a person with one row in every task has spent; empty if nothing."""
    try:
        spent = files.spent(delta)
    except (OSError, ValueError):  # it changes while it is read, or is damaged
        return ""
    told = f"has spent epsilon {spent:.3g}, by this site's own record."
    return f"A person with one row in each of these sums {told}" if spent else ""
