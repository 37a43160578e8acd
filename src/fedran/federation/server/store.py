"""The server's memory: every accepted upload exactly once, through crashes and restarts."""

from __future__ import annotations

import logging
import statistics
import threading
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path

from fedran.core.aggregator import Aggregator
from fedran.core.errors import Refused
from fedran.core.fingerprint import Fingerprint, require_same
from fedran.core.head import Head
from fedran.core.ids import check_id
from fedran.core.labels import Label
from fedran.core.summary import Summary
from fedran.federation.protocol.identity import Roster, base_task, check_sum
from fedran.federation.protocol.messages import Envelope, Receipt, open_envelope
from fedran.federation.server.events import EventLog
from fedran.federation.server.journal import Journal
from fedran.federation.server.snapshots import Snapshots, State
from fedran.wire.codec import decode
from fedran.wire.files import write_atomically
from fedran.wire.validation import DEFAULT_LIMITS, FILE_LIMITS, Limits

log = logging.getLogger(__name__)
UNUSUAL = 100.0
"""An upload whose mean row energy is beyond so many times the median is put aside."""


@dataclass(frozen=True)
class Rules:
    """What the server expects of every upload."""

    federation: str
    fingerprint: Fingerprint
    out_features: int
    classes: tuple[Label, ...] | None = None
    """The labels that may occur; None: any, up to the limits."""
    max_classes: int = 10_000
    """Of all uploads together: every class takes room in the state and in the head."""
    limits: Limits = DEFAULT_LIMITS
    snapshot_every: int = 20
    """Uploads between two snapshots."""


class Store:
    """An aggregator with a journal, snapshots and a quarantine in one folder.

    An upload is checked completely, then written to the journal and synced, then absorbed, then
    acknowledged. A restart loads the newest snapshot and replays the journal behind it, which
    ends in the same state, bit for bit, as if nothing had happened.
    """

    def __init__(self, folder: str | Path, rules: Rules, roster: Roster) -> None:
        self.folder, self.rules, self.roster = Path(folder), rules, roster
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.quarantine = self.folder / "quarantine"
        self.quarantine.mkdir(exist_ok=True, mode=0o700)
        self.lock = threading.RLock()
        self.tasks: Collection[str] | None = None
        """Tasks that were opened; uploads for others are refused. None: any."""
        self.events = EventLog(self.folder / "events.jsonl")
        self.journal = Journal(self.folder / "journal")
        self._snapshots = Snapshots(self.folder)
        try:
            self._restore()
        except BaseException:
            self.journal.close()
            raise

    def receive(self, blob: bytes) -> Receipt:
        """Take in one envelope; whatever is wrong with it, the answer is a receipt.

        Only a failing disk raises (OSError): then nothing was taken in, and nothing is
        acknowledged.
        """
        seen = {"verified": False, **_contents(blob)}
        with self.lock:
            receipt = self._receive(blob, seen)
            self._note(receipt, seen)
            return receipt

    def _receive(self, blob: bytes, seen: dict[str, object]) -> Receipt:
        """As ``receive``; ``seen`` gathers for the event log what was found on the way."""
        key, digest = ("?", "?"), "?"
        try:
            envelope = open_envelope(blob, self.rules.limits)
            key, digest = envelope.statement.key, envelope.statement.digest
            self._check_sender(envelope)
            seen["verified"] = True
            self._check_features(envelope)
            if self.aggregator.absorbed.get(key) == digest:
                return Receipt("duplicate", *key, digest)
            summary = self._checked(envelope)
            seen |= _contents(blob, summary, len(envelope.statement.members))
            unusual = self._unusual(summary)
            if unusual:
                self._put_aside(envelope, blob)
                return Receipt("quarantined", *key, digest, unusual)
        except Refused as reason:
            return Receipt("refused", *key, digest, str(reason))
        except OSError:
            raise
        except Exception:
            log.exception("%s, %s: an upload that no check foresaw", *key)
            return Receipt("refused", *key, digest, "an error at the server; its log says more")
        return self._take(envelope, blob, summary)

    def accept(self, client: str, task: str) -> Receipt:
        """Take in an upload that was put aside."""
        path = self._aside(check_id(client, "client"), check_id(task, "task"))
        with self.lock:
            if not path.is_file():
                raise Refused("upload", "one that is in quarantine", f"{client}, {task}")
            blob = path.read_bytes()
            envelope = open_envelope(blob, self.rules.limits)
            key, digest = envelope.statement.key, envelope.statement.digest
            if self.aggregator.absorbed.get(key) == digest:  # a crash came before the unlink
                path.unlink()
                return Receipt("duplicate", *key, digest)
            self._check_sender(envelope)
            self._check_features(envelope)
            summary = self._checked(envelope)
            receipt = self._take(envelope, blob, summary)
            contents = _contents(blob, summary, len(envelope.statement.members))
            self._note(receipt, {"verified": True, "released": True, **contents})
            path.unlink()
            return receipt

    def solve(self) -> Head:
        """The head over everything absorbed."""
        return self.aggregator.solve()

    def close(self) -> None:
        """Nothing is lost without it."""
        self.journal.close()

    def _check_sender(self, envelope: Envelope) -> None:
        said = envelope.statement
        if said.federation != self.rules.federation:
            raise Refused("federation", self.rules.federation, said.federation)
        self.roster.check(said, envelope.signature)
        check_sum(said)
        if self.tasks is not None and base_task(said.task) not in self.tasks:
            raise Refused("task", "one that was opened here", said.task)

    def _check_features(self, envelope: Envelope) -> None:
        said = envelope.statement
        if said.fingerprint != self.rules.fingerprint.hash:
            raise Refused(
                "fingerprint",
                f"{self.rules.fingerprint.hash[:12]}... of this federation",
                f"{said.fingerprint[:12]}...",
                hint="the site's backbone or feature map differs",
            )

    def _note(self, receipt: Receipt, seen: dict[str, object]) -> None:
        """Tell the event log; ``verified`` says whether the client named there really sent it."""
        self.events.write("upload", **asdict(receipt), **seen)

    def _checked(self, envelope: Envelope) -> Summary:
        """The summary, after every check that could refuse it: nothing is half-absorbed."""
        said, ledger = envelope.statement, self.aggregator.absorbed
        if said.key in ledger:
            raise Refused(
                "digest",
                f"the upload already accepted for {said.client}, {said.task}",
                "another one",
                hint="a site sends one upload a task; use a new task id for more data",
            )
        for member in (said.key, *said.members):
            via = self.state.covered.get(member)
            if via is not None or (member != said.key and member in ledger):
                told = f"already in, {'by itself' if via is None else 'through ' + via[0]}"
                raise Refused("members", "uploads that are not in yet", f"{member}: {told}")
        summary = decode(envelope.upload, Summary, limits=self.rules.limits)
        if self.rules.classes is not None:
            strange = [c for c in summary.classes if c not in self.rules.classes]
            if strange:
                raise Refused("classes", "labels of this federation", strange[:5])
        if summary.accounts.energy <= 0:
            raise Refused("energy", "rows that are not all zero", summary.accounts.energy)
        known = {*self.aggregator.classes, *summary.classes}
        if len(known) > self.rules.max_classes:
            raise Refused("classes", f"at most {self.rules.max_classes} in all", len(known))
        self.aggregator.check(summary, client=said.client, task=said.task)
        return summary

    def _unusual(self, summary: Summary) -> str:
        """A sentence about a mean row energy far beyond the others', or nothing."""
        mean = _mean_energy(summary)
        usual = statistics.median(self.energies) if self.energies else 0.0
        if usual <= 0 or mean <= UNUSUAL * usual:
            return ""
        return (
            f"mean row energy {mean:.3g} is {mean / usual:.0f} times the median; "
            "`fedran federation accept` takes it in"
        )

    def _take(self, envelope: Envelope, blob: bytes, summary: Summary) -> Receipt:
        self.journal.append(blob)
        self._absorb(envelope, summary)
        if self.journal.count % self.rules.snapshot_every == 0:
            try:
                self.snapshot()
            except OSError as reason:  # the journal has it: a restart only takes longer
                log.warning("snapshot not written: %s", reason)
        return Receipt("accepted", *envelope.statement.key, envelope.statement.digest)

    def _absorb(self, envelope: Envelope, summary: Summary) -> None:
        said = envelope.statement
        self.aggregator.absorb(summary, client=said.client, task=said.task)
        self.state.covered.update(dict.fromkeys(said.members, said.key))
        self.energies.append(_mean_energy(summary))

    def _put_aside(self, envelope: Envelope, blob: bytes) -> None:
        path = self._aside(*envelope.statement.key)
        if path.is_file() and path.read_bytes() != blob:
            raise Refused(
                "digest",
                "the upload that is in quarantine for this site and task",
                "another one",
                hint="use a new task id for other data",
            )
        write_atomically(path, blob)

    def _aside(self, client: str, task: str) -> Path:
        return self.quarantine / f"{client}@{task}"

    def snapshot(self) -> None:
        """Write the state, so that a restart need not replay what it holds."""
        self._snapshots.write(self.journal.count, self.state)

    def _restore(self) -> None:
        done, self.state = self._snapshots.newest(self.journal.count) or (
            0,
            State(Aggregator(self.rules.out_features, fingerprint=self.rules.fingerprint), [], {}),
        )
        require_same(self.rules.fingerprint, self.aggregator.fingerprint, "settings and state")
        for record in self.journal.records(done):
            envelope = open_envelope(record, FILE_LIMITS)
            self._absorb(envelope, decode(envelope.upload, Summary, limits=FILE_LIMITS))

    @property
    def aggregator(self) -> Aggregator:
        """What was absorbed."""
        return self.state.aggregator

    @property
    def energies(self) -> list[float]:
        """Mean row energies, in the order of the uploads."""
        return self.state.energies


def _mean_energy(summary: Summary) -> float:
    return summary.accounts.energy / max(1, summary.accounts.n_rows)


def _contents(blob: bytes, summary: Summary | None = None, members: int = 0) -> dict[str, object]:
    """What the event log tells of an upload; of the summary only once it passed every check."""
    told: dict[str, object] = {"bytes": len(blob), "rows": None, "classes": None}
    if summary is not None:
        told["rows"] = summary.accounts.n_rows
        told["classes"] = list(zip(summary.classes, summary.counts, strict=True))
    return {**told, "members": members}
