"""The store: every accepted upload exactly once, through crashes and restarts."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedran import __version__
from fedran.core.errors import Refused
from fedran.core.fingerprint import Fingerprint
from fedran.core.labels import Label
from fedran.core.private.noisy_sums import noisy_ridge
from fedran.core.solve.head import Head
from fedran.core.solve.kernel_ridge import ASKED, ASKED_RIDGE
from fedran.core.solve.nystrom import sketch_ridge
from fedran.core.solve.ridge import Ridge
from fedran.core.sums.aggregator import Aggregator, Message
from fedran.core.sums.stored_points import Opinion, Part
from fedran.federation.protocol.identity import SiteKey
from fedran.federation.protocol.limits import EVENT_SECONDS, MAX_EVENTS
from fedran.federation.protocol.lockfile import locked
from fedran.federation.protocol.messages import Envelope, open_envelope
from fedran.federation.protocol.receipts import Code, Receipt, UploadRefused
from fedran.federation.protocol.roster import Roster
from fedran.federation.server.settings import ROSTER, STATE, ServerSettings
from fedran.federation.server.store.admission import (
    check_fingerprint,
    check_message,
    check_not_covered,
    check_not_forgotten,
)
from fedran.federation.server.store.database import Database
from fedran.federation.server.store.events import EventLog
from fedran.federation.server.store.forgetting import KEY as RECORD_KEY
from fedran.federation.server.store.forgetting import (
    Forgotten,
    sign_record,
    sign_revision,
    to_forget,
    write_record,
)
from fedran.federation.server.store.schema import Upload, class_rows
from fedran.federation.server.store.state import State

log = logging.getLogger(__name__)

VOUCHED, PINNED = "vouched", "pinned"
"""Facts in the database: what the owner decided about sites, and about the head."""
SERVER_KEY = "sums.key"
"""File in the server's folder with the key that signs secure sums."""
RESTORED = "restored"
"""Fact in the database after a backup was restored: sites that may have uploads which it lacks.
Such an upload opens its task."""


@contextmanager
def locked_store(
    folder: Path, settings: ServerSettings, task: str, timeout: float = 60.0
) -> Iterator[Store]:
    """The store of the server in ``folder``, which no other process uses meanwhile."""
    with (
        locked(folder / STATE, timeout, task=task),
        closing(Store.open(folder, settings)) as store,
    ):
        yield store


class Store:
    """The accepted uploads in a database, and the heads that follow from them.

    An upload is checked completely, then written to the database and synced, then acknowledged. The
    head after a restart is bit for bit the same as without it.

    One thread uses a store. Other processes may read its database, and write other tables, at any
    time: no transaction is open while an upload is checked or absorbed, however long that takes.
    """

    def __init__(
        self,
        folder: str | Path,
        settings: ServerSettings,
        roster: Roster,
        key: SiteKey | None = None,
    ) -> None:
        self.folder, self.settings, self.roster = Path(folder), settings, roster
        self.key = key
        """Signs secure sums; None: the federation has none."""
        self.tasks: Collection[str] | None = None
        """Tasks that were opened. Uploads for others are refused. None: any task."""
        self.database = Database(self.folder)
        self.events = EventLog(self.database)
        try:
            self.forgotten = {(t.client, t.task) for t in self.database.tombstones()}
            """Clients and tasks whose uploads were removed."""
            self.restored: list[str] = json.loads(self.database.fact(RESTORED) or "[]")
            self.state = State.load(settings, self.database)
        except BaseException:
            self.database.close()
            raise

    @classmethod
    def open(cls, folder: Path, settings: ServerSettings) -> Store:
        """The store of the server in ``folder``. The caller holds the lock of the state folder."""
        roster = Roster.load(folder / ROSTER)
        key = SiteKey.load_or_make(folder / SERVER_KEY) if settings.privacy != "none" else None
        if key is not None:
            roster = replace(roster, server_key=key.public)
        store = cls(folder / STATE, settings, roster, key)
        with store.tolerating_a_full_disk("deletion of old events"):
            store.events.delete(time.time() - EVENT_SECONDS, MAX_EVENTS)
        return store

    @property
    def fingerprint(self) -> Fingerprint:
        """The fingerprint of uploads and heads."""
        return self.state.fingerprint

    @property
    def aggregator(self) -> Aggregator:
        """The messages of all accepted uploads. Those that are not in memory yet are read."""
        return self.state.aggregator

    @property
    def vouched(self) -> tuple[str, ...]:
        """Sites for which the owner vouches: they are not judged, and their classes count."""
        return tuple(json.loads(self.database.fact(VOUCHED) or "[]"))

    @property
    def pinned(self) -> dict[str, Any]:
        """The task to which the owner has rolled back, and the last upload of its head."""
        return dict(json.loads(self.database.fact(PINNED) or "{}"))

    @property
    def served(self) -> State:
        """The uploads that may count in a head: all, or those before a rollback."""
        last = self.pinned.get("last_upload")
        later = {k for k, u in self.state.uploads.items() if last is not None and u.number > last}
        return self.state.without(later) if later else self.state

    def what_others_say(self, left_out: Collection[Part]) -> dict[str, dict[Label, Opinion]]:
        """What all other sites say about each site; empty for secure sums."""
        if self.settings.privacy != "none":
            return {}
        return self.served.aggregator.what_others_say(left_out)

    def candidate(self, left_out: Collection[Part]) -> Head | None:
        """A head without some parts, to be compared with others; None if no class is left."""
        if self.settings.privacy == "none":
            return self._solve_points(left_out, ASKED_RIDGE, ASKED)
        clients, state = {client for client, _ in left_out}, self.served
        uploads = (u for u in state.uploads.values() if u.client in clients)
        messages = map(self.database.message, uploads)  # one at a time in memory
        return state.aggregator.solve_without(messages, self.ridge)

    def solve(self, left_out: Collection[Part] = ()) -> Head | None:
        """The head over everything that may count, but some parts; None if no class is left.

        A label cannot be left out of a secure sum, so the head has no such label at all.
        """
        if self.settings.privacy == "none":
            return self._solve_points(left_out, None, self.settings.support)
        clients, state = {client for client, label in left_out if label is None}, self.served
        if clients:
            state = state.without({key for key in state.uploads if key[0] in clients})
        gone = {label for _, label in left_out if label is not None}
        kept = [i for i, label in enumerate(state.classes) if label not in gone]
        if not kept:
            return None
        head = state.aggregator.solve(self.ridge)
        if len(kept) < len(head.classes):
            classes = tuple(head.classes[i] for i in kept)
            head = replace(head, weights=head.weights[:, kept], classes=classes)
        return head

    def _solve_points(
        self, left_out: Collection[Part], ridge: float | None, most: int
    ) -> Head | None:
        state, out = self.served, set(left_out)
        if all({(client, None), (client, c)} & out for client, c in state.parts):
            return None
        most = min(most, self.settings.support)
        weight = self.settings.class_weight
        return state.aggregator.solve(ridge, landmarks=most, class_weight=weight, left_out=left_out)

    def solved_from(self) -> str:
        """SHA-256 of all from which a head is solved."""
        uploads = sorted((*u.key, u.digest) for u in self.state.uploads.values())
        names = ("support", "trusted", "row_multiple", "classes", "class_weight", "validation")
        known = [__version__, self.fingerprint.hash, uploads, self.vouched, self.pinned]
        known += [getattr(self.settings, name) for name in names]
        return hashlib.sha256(json.dumps(known).encode()).hexdigest()

    @property
    def ridge(self) -> Ridge | None:
        """The rule for the ridge that fits what sites send; None: the default one."""
        if self.settings.privacy == "none":
            return None
        M = self.settings.out_features
        private = self.settings.privacy == "dp"
        return noisy_ridge(self.aggregator.accounts, M) if private else sketch_ridge(M)

    def close(self) -> None:
        """Close the database. Nothing is lost without it."""
        self.database.close()

    def open_task(self, task: str) -> list[str]:
        """Add a task to the opened ones, and return them all. "" adds none."""
        tasks = [known.task for known in self.database.tasks()]
        if task and task not in tasks:
            tasks.append(task)
            with self.tolerating_a_full_disk(f"task {task}"):
                self.database.set_task(task)
        self.tasks = frozenset(tasks)
        return tasks

    def note_complete(self, client: str) -> None:
        """Note that a site has sent all that a restored backup lacks. It opens no task any more."""
        if client in self.restored:
            self.restored.remove(client)
            with self.tolerating_a_full_disk("list of sites with missing uploads"):
                self.database.set_fact(RESTORED, json.dumps(self.restored))

    def receive(self, blob: bytes) -> Receipt:
        """Decide about one envelope. Every problem with it is answered by a receipt.

        Only a failing disk raises (OSError): then nothing was accepted and nothing is acknowledged.
        """
        arrival = Arrival(blob)
        try:
            receipt = Receipt(self._check(arrival), *arrival.name)
        except Refused as reason:
            receipt = Receipt.refusal(reason, *arrival.name)
        except OSError:
            raise
        except Exception:
            log.exception("%s, %s: unexpected error while checking an upload", *arrival.name[:2])
            told = "an error at the server; its log says more"
            receipt = Receipt(Code.SERVER_ERROR, *arrival.name, told)
        if receipt.code == Code.ACCEPTED:
            self._commit(arrival, receipt)
        else:
            self.events.write("upload", **arrival.event(receipt))
        return receipt

    def _check(self, arrival: Arrival) -> Code:
        """Check an upload completely: its sender, what it is for, and its content."""
        envelope = arrival.envelope = open_envelope(arrival.blob, self.settings.limits)
        statement = envelope.statement
        federation = self.settings.federation
        if statement.federation != federation:
            got = statement.federation
            raise UploadRefused(Code.WRONG_FEDERATION, "federation", federation, got)
        self.roster.check(statement, envelope.signature)
        if self.tasks is not None and statement.task not in self.tasks:
            if statement.client not in self.restored:
                expected = "a task that this server opened"
                raise UploadRefused(Code.UNKNOWN_TASK, "task", expected, statement.task)
            log.info("task %s is not in the restored backup; it is opened again", statement.task)
            self.database.set_task(statement.task, "restored")
            self.tasks = {*self.tasks, statement.task}
        arrival.verified = True
        check_fingerprint(statement, self.fingerprint)
        if self.state.digest(statement.key) == statement.digest:
            return Code.DUPLICATE
        check_not_forgotten(statement, self.forgotten)
        older = self.state.uploads.get(statement.key)
        if older is not None and statement.revision > older.revision:
            arrival.replaces = older
        else:
            check_not_covered(statement, self.state.uploads, self.state.covered)
        arrival.message = check_message(envelope, self.settings, self.state)
        return Code.ACCEPTED

    def forget(self, client: str, task: str | None, who: str, key: SiteKey) -> Forgotten:
        """Delete the uploads of a site, for one task or all, and rebuild the state without them.

        The state is then bit for bit that of a store that never saw them. A secure sum that
        contains rows of the site is deleted too. No upload for these tasks is accepted from the
        site again. ``key`` signs the record that is stored with the tombstones.
        """
        found = to_forget(self.database, client, task, who)
        with self.database.transaction():
            self.database.forget(found.tombstones)
            self.database.add_record(sign_record(self.settings.federation, found, key))
            self.database.set_outdated()
            count = len(found.tombstones)
            self.events.write_or_raise("forget", client=client, task=task, uploads=count)
        self.database.checkpoint()
        self.forgotten.update((t.client, t.task) for t in found.tombstones)
        kept = {upload.key for upload in self.database.uploads()}
        self.state = self.state.without(self.state.uploads.keys() - kept)
        return found

    def _commit(self, arrival: Arrival, receipt: Receipt) -> None:
        """Write an upload and its event to disk, and a signed record of one that it replaces."""
        assert arrival.envelope is not None
        assert arrival.message is not None
        statement, message, replaced = arrival.envelope.statement, arrival.message, arrival.replaces
        with self.database.transaction():
            upload = self.database.add_upload(statement, message, arrival.blob)
            if replaced is not None:
                key = SiteKey.load_or_make(self.folder.parent / RECORD_KEY)
                heads, federation = self.database.heads(), self.settings.federation
                record = sign_revision(federation, replaced, upload.digest, heads, key)
                self.database.add_record(record)
            self.events.write_or_raise("upload", **arrival.event(receipt))
        if replaced is not None:
            with self.tolerating_a_full_disk("file of the record"):
                write_record(self.folder.parent, upload.client, record)
            self.state = self.state.without({upload.key})
            self.database.checkpoint()  # the upload that was replaced is in no file any more
        self.state.add(upload, message)

    @contextmanager
    def tolerating_a_full_disk(self, what: str) -> Iterator[None]:
        """Log that something was not written, which can be made again. Nothing is raised."""
        try:
            yield
        except OSError as reason:
            log.error("%s not written: %s", what, reason)


@dataclass
class Arrival:
    """An envelope that arrived, and what is known about it after the checks so far."""

    blob: bytes
    verified: bool = False
    """Whether the client in the envelope really sent it."""
    envelope: Envelope | None = None
    message: Message | None = None
    """Only after every check."""
    replaces: Upload | None = None
    """The upload of which it is a revision."""

    @property
    def name(self) -> tuple[str, str, str]:
        """Client, task and digest, if the envelope could be opened."""
        said = self.envelope and self.envelope.statement
        return (*said.key, said.digest) if said else ("?", "?", "?")

    def event(self, receipt: Receipt) -> dict[str, object]:
        """The fields of the upload in the event log."""
        fields: dict[str, object] = {**receipt.fields(), "verified": self.verified}
        fields |= {"bytes": len(self.blob), "rows": None, "classes": None, "members": 0}
        if self.message is not None and self.envelope is not None:
            fields["rows"] = self.message.accounts.n_rows
            fields["classes"] = class_rows(self.message)
            fields["members"] = len(self.envelope.statement.members)
        if self.verified and self.envelope is not None:
            fields["revision"] = self.envelope.statement.revision
        return fields
