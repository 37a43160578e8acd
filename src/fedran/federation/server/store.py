"""The store: every accepted upload exactly once, through crashes and restarts."""

from __future__ import annotations

import json
import logging
import statistics
import threading
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from fedran.core.aggregator import Aggregator
from fedran.core.errors import Refused
from fedran.core.fingerprint import require_same
from fedran.core.head import Head
from fedran.core.ids import check_id
from fedran.core.mixture import Mixture
from fedran.core.summary import Summary
from fedran.federation.protocol.identity import Roster, UploadId, base_task
from fedran.federation.protocol.messages import Envelope, open_envelope
from fedran.federation.protocol.receipts import Code, Receipt, UploadRefused, receipts_to_json
from fedran.federation.server.events import EventLog
from fedran.federation.server.journal import Journal, StoreDamaged
from fedran.federation.server.settings import ServerSettings
from fedran.federation.server.validation import (
    Rules,
    check_fingerprint,
    check_message,
    check_not_covered,
    check_sender,
    decode_upload,
)
from fedran.wire.files import load, save, write_atomically
from fedran.wire.validation import FILE_LIMITS, Limits

log = logging.getLogger(__name__)
UNUSUAL = 100.0
"""An upload whose mean row energy differs from the median by more than this factor is quarantined.
The ridge is proportional to the mean over all rows, so few bytes could otherwise change it."""
MANY_ROWS = 10**7
"""An upload of more rows is quarantined if it has UNUSUAL times the rows accepted so far."""
SNAPSHOTS_KEPT = 2


@dataclass
class State:
    """What follows from the accepted uploads. It can be rebuilt from the journal."""

    aggregator: Aggregator
    energies: list[float]
    """Mean row energy of each upload, in order of acceptance."""
    covered: dict[UploadId, UploadId]
    """Members of forwarded sums -> the sum that contains them."""

    def absorb(self, envelope: Envelope, message: Summary | Mixture) -> None:
        """Add one upload."""
        statement = envelope.statement
        self.aggregator.absorb(message, client=statement.client, task=statement.task)
        self.covered.update(dict.fromkeys(statement.members, statement.key))
        self.energies.append(_mean_energy(message, self.aggregator.out_features))


class Store:
    """An aggregator with a journal, snapshots and a quarantine in one folder.

    An upload is checked completely, then written to the journal and synced, then absorbed, then
    acknowledged. A restart loads the newest snapshot and replays the records that follow it in
    the journal. The state is then bit for bit the same as without the restart.
    """

    def __init__(
        self, folder: str | Path, rules: Rules, roster: Roster, snapshot_every: int = 20
    ) -> None:
        self.folder, self.rules, self.roster = Path(folder), rules, roster
        self.snapshot_every = snapshot_every
        """Accepted uploads between two snapshots."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.quarantine = self.folder / "quarantine"
        self.quarantine.mkdir(exist_ok=True, mode=0o700)
        self.lock = threading.RLock()
        self.tasks: Collection[str] | None = None
        """Tasks that were opened. Uploads for others are refused. None: any task."""
        self.events = EventLog(self.folder / "events.jsonl")
        self.journal = Journal(self.folder / "journal")
        try:
            self.state = self._restore()
        except BaseException:
            self.journal.close()
            raise

    @classmethod
    def open(cls, settings: ServerSettings, folder: Path) -> Store:
        """The store of the server in ``folder``. The caller holds the lock of the state folder."""
        rules = Rules(
            settings.federation,
            settings.features().fingerprint,
            settings.out_features,
            max_classes=settings.max_classes,
            limits=Limits(message=settings.largest_upload),
            message=settings.message,
        )
        roster = Roster.load(folder / settings.roster)
        return cls(folder / settings.state, rules, roster, settings.snapshot_every)

    @property
    def aggregator(self) -> Aggregator:
        """The sum of all accepted uploads."""
        return self.state.aggregator

    def solve(self) -> Head:
        """The head over everything absorbed."""
        return self.aggregator.solve()

    def close(self) -> None:
        """Close the journal. Nothing is lost without it."""
        self.journal.close()

    def receive(self, blob: bytes) -> Receipt:
        """Decide about one envelope. Every problem with it is answered by a receipt.

        Only a failing disk raises (OSError): then nothing was accepted and nothing is acknowledged.
        """
        with self.lock:
            event = _event_fields(blob, verified=False)
            receipt = self._decide(blob, event)
            self._record(receipt, event)
            return receipt

    def _decide(self, blob: bytes, event: dict[str, object]) -> Receipt:
        """The decision of ``receive``. Fields for the event log are added to ``event``."""
        key, digest = ("?", "?"), "?"
        try:
            envelope = open_envelope(blob, self.rules.limits)
            key, digest = envelope.statement.key, envelope.statement.digest
            self._check_sender(envelope)
            event["verified"] = True
            check_fingerprint(envelope.statement, self.rules.upload_fingerprint)
            if self.aggregator.absorbed.get(key) == digest:
                return Receipt(Code.DUPLICATE, *key, digest)
            message = self._check_content(envelope)
            event |= _event_fields(blob, envelope, message)
            unusual = self._unusual(message)
            if unusual:
                self._quarantine(envelope, blob)
                return Receipt(Code.QUARANTINED, *key, digest, unusual)
        except Refused as reason:
            code = reason.code if isinstance(reason, UploadRefused) else Code.INVALID
            return Receipt(code, *key, digest, str(reason))
        except OSError:
            raise
        except Exception:
            log.exception("%s, %s: unexpected error while checking an upload", *key)
            reason_shown = "an error at the server; its log says more"
            return Receipt(Code.SERVER_ERROR, *key, digest, reason_shown)
        return self._commit(envelope, blob, message)

    def accept(self, client: str, task: str) -> Receipt:
        """Accept an upload that is in quarantine."""
        path = self._quarantined(check_id(client, "client"), check_id(task, "task"))
        with self.lock:
            if not path.is_file():
                raise Refused("upload", "an upload in quarantine", f"{client}, {task}")
            blob = path.read_bytes()
            envelope = open_envelope(blob, self.rules.limits)
            key, digest = envelope.statement.key, envelope.statement.digest
            if self.aggregator.absorbed.get(key) == digest:  # a crash came before the unlink
                path.unlink()
                return Receipt(Code.DUPLICATE, *key, digest)
            self._check_sender(envelope)
            check_fingerprint(envelope.statement, self.rules.upload_fingerprint)
            message = self._check_content(envelope)
            receipt = self._commit(envelope, blob, message)
            self._record(receipt, _event_fields(blob, envelope, message, released=True))
            path.unlink()
            return receipt

    def _check_sender(self, envelope: Envelope) -> None:
        check_sender(envelope, self.rules.federation, self.roster)
        task = envelope.statement.task
        if self.tasks is not None and base_task(task) not in self.tasks:
            raise UploadRefused(Code.UNKNOWN_TASK, "task", "a task that this server opened", task)

    def _check_content(self, envelope: Envelope) -> Summary | Mixture:
        check_not_covered(envelope.statement, self.aggregator.absorbed, self.state.covered)
        return check_message(envelope, self.rules, self.aggregator)

    def _unusual(self, message: Summary | Mixture) -> str:
        """Why a person has to decide about the upload; empty for a usual one."""
        rows, known = message.accounts.n_rows, self.aggregator.accounts.n_rows
        if rows > max(MANY_ROWS, UNUSUAL * known):
            return f"{rows} rows, after {known} in all; `fedran federation accept` accepts it"
        mean = _mean_energy(message, self.rules.out_features)
        median = statistics.median(self.state.energies) if self.state.energies else 0.0
        if median <= 0 or median / UNUSUAL <= mean <= UNUSUAL * median:
            return ""
        return (
            f"mean row energy {mean:.3g} is {mean / median:.3g} times the median; "
            "`fedran federation accept` accepts it"
        )

    def _commit(self, envelope: Envelope, blob: bytes, message: Summary | Mixture) -> Receipt:
        self.journal.append(blob)
        self.state.absorb(envelope, message)
        if self.journal.count % self.snapshot_every == 0:
            try:
                self.snapshot()
            except OSError as reason:  # the journal has the upload: a restart only takes longer
                log.warning("snapshot not written: %s", reason)
        return Receipt(Code.ACCEPTED, *envelope.statement.key, envelope.statement.digest)

    def _quarantine(self, envelope: Envelope, blob: bytes) -> None:
        path = self._quarantined(*envelope.statement.key)
        if path.is_file() and path.read_bytes() != blob:
            raise UploadRefused(
                Code.CONFLICT,
                "digest",
                "the upload that is in quarantine for this site and task",
                "another upload",
                hint="use a new task id for other data",
            )
        write_atomically(path, blob)

    def _quarantined(self, client: str, task: str) -> Path:
        return self.quarantine / f"{client}@{task}"

    def _record(self, receipt: Receipt, event: dict[str, object]) -> None:
        """Write the event. ``verified`` says whether the client in it really sent the upload."""
        self.events.write("upload", **receipts_to_json([receipt])[0], **event)

    def write_replaceable(self, name: str, data: bytes) -> None:
        """Write a file that can be made again. A full disk is logged and does not raise."""
        try:
            write_atomically(self.folder / name, data)
        except OSError as reason:
            log.error("%s not written: %s", name, reason)

    def snapshot(self) -> None:
        """Write the state to ``snapshot-N`` files, where N is the number of accepted uploads.

        A snapshot only saves time: a restart replays the journal from it on. Two are kept.
        """
        path = self.folder / f"snapshot-{self.journal.count:010d}.fedran"
        notes = {
            "energies": self.state.energies,
            "covered": [[list(m), list(k)] for m, k in self.state.covered.items()],
        }
        # The notes come first, so that they exist for every aggregator file.
        write_atomically(path.with_suffix(".json"), json.dumps(notes).encode())
        save(self.aggregator, path)
        for old in self._snapshots()[:-SNAPSHOTS_KEPT]:
            old.unlink()
            old.with_suffix(".json").unlink(missing_ok=True)

    def _snapshots(self) -> list[Path]:
        return sorted(self.folder.glob("snapshot-*.fedran"))

    def _restore(self) -> State:
        """The newest undamaged snapshot, or the empty state, and the journal after it."""
        rules, done = self.rules, 0
        state = State(Aggregator(rules.out_features, fingerprint=rules.fingerprint), [], {})
        for path in reversed(self._snapshots()):
            count = int(path.stem.removeprefix("snapshot-"))
            if count > self.journal.count:
                raise StoreDamaged(
                    f"{path}: expected a journal of at least {count} records, got "
                    f"{self.journal.count}; the journal is older than the snapshot, restore both "
                    "from one backup"
                )
            try:
                notes = json.loads(path.with_suffix(".json").read_bytes())
                covered = {(m[0], m[1]): (k[0], k[1]) for m, k in notes["covered"]}
                done, state = count, State(load(path, Aggregator), notes["energies"], covered)
                break
            except (OSError, ValueError, KeyError, TypeError, IndexError) as reason:
                log.warning("%s is damaged, using an older snapshot: %s", path.name, reason)
        require_same(rules.fingerprint, state.aggregator.fingerprint, "settings and state")
        for record in self.journal.records(done):
            envelope = open_envelope(record, FILE_LIMITS)
            state.absorb(envelope, decode_upload(envelope, FILE_LIMITS))
        return state


def _mean_energy(message: Summary | Mixture, out_features: int) -> float:
    """Mean ||h||^2 of the rows; for a mixture that of normal entries, before the activation."""
    gain = out_features if isinstance(message, Mixture) else 1
    return gain * message.accounts.energy / max(1, message.accounts.n_rows)


def _event_fields(
    blob: bytes,
    envelope: Envelope | None = None,
    message: Summary | Mixture | None = None,
    **more: bool,
) -> dict[str, object]:
    """The fields of an upload in the event log. Contents appear only after every check."""
    event: dict[str, object] = {"verified": True, "bytes": len(blob), "rows": None, **more}
    event |= {"classes": None, "members": len(envelope.statement.members) if envelope else 0}
    if message is not None:
        event["rows"] = message.accounts.n_rows
        event["classes"] = list(zip(message.classes, message.counts, strict=True))
    return event
