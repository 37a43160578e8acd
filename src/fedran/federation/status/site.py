"""Reads the state of a site. Only reads files."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from fedran.core.errors import shortened
from fedran.federation.protocol.limits import SHOWN_ITEMS
from fedran.federation.protocol.messages import open_envelope
from fedran.federation.protocol.roster import Roster
from fedran.federation.secure.masking.attempt import STAGES
from fedran.federation.secure.site.pinning import (
    PinnedRoster,
    key_fingerprint,
    read_clients,
    roster_fingerprint,
)
from fedran.federation.secure.site.sum_files import FOLDER, SumFiles
from fedran.federation.server.store.schema import SolvedHead
from fedran.federation.site.outbox import Outbox
from fedran.federation.site.settings import CONNECTION, HEAD, OUTBOX, SitePaths, newest_head
from fedran.federation.status.model import Finding, Outcome, SiteStatus, Status
from fedran.federation.status.reader import read_folder
from fedran.wire.files import read_json_object
from fedran.wire.validation import FILE_LIMITS


def read_site(paths: SitePaths) -> Status:
    """The state of a site now."""
    settings, state = paths.settings(), paths.state
    found = read_folder(paths, paths.folder / settings.ca, settings.federation, settings.client)
    contact = read_json_object(state / CONNECTION)
    found.checked = contact.get("at") if isinstance(contact.get("at"), float) else None
    before = "" if found.running or found.checked is None else "when it ran last: "
    found.connection = f"{before}{contact.get('state') or f'{settings.server}, never tried'}"
    pinned = PinnedRoster(state)
    shown = pinned.shown or pinned.clients
    marks, keys = pinned.marks(shown), {**pinned.clients, **shown}
    if marks:
        found.findings.append(roster_finding(paths))
    found.sites = [
        SiteStatus(client, key_fingerprint(keys[client]), marks.get(client, ""))
        for client in sorted(keys)
    ]
    found.roster = roster_fingerprint(shown) if shown else ""
    if (head := newest_head(state)) is not None:  # only the server knows its task and accuracy
        file, classes = (state / HEAD).stat(), len(head.classes)
        found.head = SolvedHead(0, file.st_mtime, "", "", classes, file.st_size, None, 0.0, 0)
    found.uploads = sorted(_uploads(state / OUTBOX), key=lambda upload: upload.at or 0.0)
    if (state / FOLDER).is_dir():
        found.uploads += _sums(SumFiles(state))
        found.budget = _budget(SumFiles(state), settings.max_delta)
    return found


def roster_finding(paths: SitePaths, file: Path | None = None) -> Finding:
    """Whether this site trusts the roster in a file, or the one that the server showed last."""
    pinned = PinnedRoster(paths.state)
    shown = read_clients(Roster.load(file).clients) if file else pinned.shown or pinned.clients
    given = ["--roster", str(file)] if file else []
    command = shlex.join(["fedran", "federation", "check", str(paths.folder), *given])
    if not shown:
        remedy = "run a task, or name the server's roster.toml with --roster"
        return Finding("problem", "the server has shown no roster of its sites yet", remedy)
    found = f"roster of {len(shown)} sites, fingerprint {roster_fingerprint(shown)}"
    if marks := [f"{client} {mark}" for client, mark in pinned.marks(shown).items()]:
        remedy = "call the server's owner, compare the names and the fingerprint, then pin it: "
        text = f"this site has NOT pinned the {found}: {shortened(marks, SHOWN_ITEMS)}"
        return Finding("problem", text, f'{remedy}{command} --trust "FINGERPRINT"')
    return Finding("ok", f"this site has pinned the {found}")


def _uploads(folder: Path) -> Iterator[Outcome]:
    """The uploads in the outbox, each with its receipt."""
    outbox = Outbox(folder)
    for path in folder.glob("*.envelope"):
        receipt = outbox.receipt(path.stem)
        state, reason = (receipt.code.value, receipt.reason) if receipt else ("pending", "")
        if receipt is None and (blob := outbox.envelope(path.stem)):
            revision = open_envelope(blob, FILE_LIMITS).statement.revision
            if revision:
                reason = f"revision {revision}, which the server has not asked for yet"
        with suppress(FileNotFoundError):  # withdrawn or put aside meanwhile
            yield Outcome(path.stat().st_mtime, "", path.stem, state, reason)


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
            told = [f"attempt {newest.attempt.number}, answered up to {(answered or ['none'])[-1]}"]
            told += [f"sum of {', '.join(newest.survivors)}"] if newest.survivors else []
            told += [note["reason"]] if note.get("reason") else []
            yield Outcome(None, "", task, str(note.get("code", "pending")), "; ".join(told))


def _budget(files: SumFiles, delta: float) -> str:
    """What a person with one row in every task has spent; empty if nothing."""
    try:
        spent = files.spent(delta)
    except (OSError, ValueError):  # it changes while it is read, or is damaged
        return ""
    told = f"has spent epsilon {spent:.3g}, by this site's own record."
    return f"A person with one row in each of these sums {told}" if spent else ""
