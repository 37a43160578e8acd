"""One task at a server with secure sums: several exchanges, then one upload of all its sites.

A task has one secure sum. A run works at the one of its task. Every turn of the loop in
``_collect`` takes these steps:

1. ``_begin`` begins an attempt, unless ``_resume`` goes on with that of an earlier run.
   ``open_sum.py`` says what is summed. ``budget.py`` refuses what exceeds the privacy budget.
2. ``_ask`` sends every site the request of the stage that waits for it. Before the last stage,
   ``charge`` writes to the ledger what the sum spends. From then on the task has had its sum.
3. ``_absorb`` gives the answers to ``OpenSum.receive``. A site may refuse.
4. ``OpenSum.advance`` ends every stage that is complete or whose time is over.
5. ``_commit`` puts a known sum into the store as the upload of a cohort.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core.errors import Refused, shortened
from fedran.federation.protocol.limits import (
    FIRST_PROGRESS,
    LOCK_TIMEOUT,
    MAX_ATTEMPTS,
    POLL_SECONDS,
    PROGRESS_SECONDS,
)
from fedran.federation.protocol.messages import Question
from fedran.federation.protocol.receipts import Code, Receipt
from fedran.federation.secure.masking import unmasking
from fedran.federation.secure.masking.attempt import AttemptFailed, Stage, roster_digest
from fedran.federation.secure.server.budget import charge, over_budget
from fedran.federation.secure.server.open_sum import (
    FOLDER,
    OpenSum,
    make_attempt,
    make_content,
    next_number,
    receive_sum,
)
from fedran.federation.server.head.validation import ValidationSet
from fedran.federation.server.round.messenger import Messenger, Network, Reply
from fedran.federation.server.round.quorum import HOW_TO_CLOSE, Quorum, Verdict
from fedran.federation.server.round.round import Round
from fedran.federation.server.settings import ServerSettings
from fedran.federation.server.store.store import locked_store

log = logging.getLogger(__name__)


class SecureRound(Round):
    """One run of the server app in a federation with secure sums."""

    task = ""
    sum: OpenSum | None = None
    attempts = 0
    """How many were opened in this run."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.clients: dict[int, str] = {}
        """Node -> its client, once it has answered."""
        self.asked: dict[int, tuple[str, Stage | None]] = {}
        """Node -> attempt and stage about which it was asked last."""
        self.decided: dict[str, Code] = {}
        """Site -> what was decided about its rows. Not empty: the task has had its sum."""

    def _collect(self, task: str, quorum: Quorum) -> Verdict:
        """Run the exchanges of the task's sum until it is finished or waits for other sites.

        Without a task, receipts and the roster are sent, and the newest head afterwards.
        """
        start = time.monotonic()
        offer = self._open_task(task)
        if offer is None:
            return "complete"
        limit, next_progress = start + quorum.deadline, start + FIRST_PROGRESS
        self.task, self.path = task, self.store.folder / FOLDER / f"{task}.sum"
        self._resume(limit)
        while True:
            self.decided = self._decisions()
            for client, code in self.decided.items():
                quorum.answer(Receipt(code, client, task, "?"))
            if self._may_open():
                self._begin(limit)
            if time.monotonic() < limit and self._is_closed(task):
                limit = time.monotonic()
                if self.sum is not None and self.sum.state.stage is Stage.ADVERTISE:
                    self.sum.until = limit
            self._ask(offer, limit)
            for node, reply in self.messenger.replies():
                self._receive_reply(node, reply, task, quorum)
            self._advance(quorum)
            now, busy = time.monotonic(), self.sum is not None and not self.sum.idle
            if not busy and not self._may_open():
                everyone = set(self.messenger.network.nodes()) <= self.answered
                if task or now >= limit or everyone:
                    return quorum.verdict(math.inf)
            elif now >= next_progress:
                next_progress = now + PROGRESS_SECONDS
                self._log_progress()
            time.sleep(POLL_SECONDS)

    def _record(self, task: str, state: str, quorum: Quorum) -> None:
        if self.sum is not None and self.sum.state.stage is not None:
            quorum.waiting = set(self.sum.state.answered(self.sum.state.stage))
        super()._record(task, state, quorum)

    def _log_progress(self) -> None:
        if self.sum is not None:
            stage, missing = self.sum.state.stage, self._describe_missing(self.sum.waiting_for)
            hint = HOW_TO_CLOSE if stage is Stage.ADVERTISE else ""
            log.info("%s, %s: waiting for %s%s", self.sum.name, stage, missing, hint)

    def _decisions(self) -> dict[str, Code]:
        """``CONFLICT``: the rows are in a sum that was charged, and failed or was forgotten."""
        number = None if self.sum is None else self.sum.attempt.number
        found = {
            site: Code.CONFLICT
            for charged in self.store.database.ledger()
            if charged.task == self.task and charged.attempt != number
            for site in charged.sites
        }
        for code, keys in (
            (Code.FORGOTTEN, self.store.forgotten),
            (Code.DUPLICATE, self.store.state.covered),
        ):
            found.update((client, code) for client, task in keys if task == self.task)
        return found

    def _may_open(self) -> bool:
        """Whether an attempt at the task's sum should begin."""
        had = self.sum is not None or self.decided or self.attempts == MAX_ATTEMPTS
        return bool(self.task and not had)

    def _resume(self, limit: float) -> None:
        """Go on with the attempt of an earlier run, unless it cannot give a sum any more.

        If the task has had its sum, the log names the sites that need a new task id.
        """
        seconds = self.settings.exchange_seconds
        until = max(limit, time.monotonic() + seconds)
        self.sum = OpenSum.load(self.path, until, seconds, self.store.events.write)
        decided = self._decisions()
        if self.sum is not None:
            if set(decided.values()) == {Code.DUPLICATE}:
                self._close()  # the server was killed after the store had it
            elif decided:
                self._close("the rows of a member were forgotten, or are in another sum")
            elif self.sum.attempt.roster != roster_digest(self.store.roster.clients):
                self._close("the roster has changed")
        elif decided:
            sites = self.store.roster.clients
            if late := sorted(s for s in sites if decided.get(s) is not Code.DUPLICATE):
                told = "task %s has had its one secure sum: rows of %s need a new task id"
                log.warning(told, self.task, shortened(late, 10))

    def _begin(self, limit: float) -> None:
        """Open an attempt, unless its sum would exceed the privacy budget."""
        noise, ledger = self.settings.noise, self.store.database.ledger()
        total = self.settings.total_epsilon
        if noise and (reason := over_budget(ledger, self.task, noise.budget, total)):
            self.attempts = MAX_ATTEMPTS
            log.error("task %s is refused: %s", self.task, reason)
            self.store.events.write("sum", name=self.task, state="over budget", reason=reason)
            return
        seconds = self.settings.exchange_seconds
        if self.attempts:  # everyone has to answer the first stage again
            limit = max(limit, time.monotonic() + seconds)
        self.attempts += 1
        content = make_content(self.store, self.task)
        attempt = make_attempt(self.store, self.task, next_number(self.store, self.task), content)
        state = unmasking.start(attempt, self.store.roster.clients)
        self.sum = OpenSum(self.path, state, content, limit, seconds, self.store.events.write)
        self.sum.save()

    def _close(self, reason: str = "") -> None:
        """End the attempt: it has failed for a reason, or its sum is in the store."""
        assert self.sum is not None
        if reason:
            self.sum.fail(reason)
        self.path.unlink(missing_ok=True)
        self.sum = None

    def _ask(self, offer: dict[str, Any], limit: float) -> None:
        """Send every node what it is asked now. Nodes with nothing new are left alone.

        The content of the sum comes with the first stage only. Before the last one, what the sum
        spends is charged, also without noise. A sum that no longer fits the budget is given up:
        others were revealed since it was opened.
        """
        if self.sum is not None and self.sum.state.stage in (Stage.REVEAL, None):
            over = charge(self.store.database, self.sum, self.settings.total_epsilon)
            if over:
                self._close(over)
        opened, owners = self.sum, {} if self.owners is None else self.owners()
        waiting = set() if opened is None else opened.waiting_for
        asked = ("", None) if opened is None else (opened.name, opened.state.stage)
        for node, client in self.clients.items():
            if client in waiting and self.asked.get(node) != asked:
                self.messenger.ask_again(node)
        ttl = max(1.0, limit - time.monotonic()) + 5 * self.settings.exchange_seconds
        for node in self.messenger.nodes_to_ask():
            client = self.clients.get(node) or owners.get(str(node), "")
            contents: dict[str, Any] = {}
            blobs: dict[str, bytes] = {}
            if opened is not None and client in waiting:
                self.asked[node] = asked
                blobs[opened.name] = unmasking.request(opened.state, client)
                if opened.state.stage is Stage.ADVERTISE:
                    contents[opened.name] = opened.content.fields()
            sums = {"roster": self.store.roster.clients, "contents": contents}
            fields = {"offer": offer, "receipts": self._receipts_for(node), "sums": sums}
            self.messenger.send(node, Question.OFFER, fields, blobs, ttl)

    def _absorb(self, reply: Reply) -> list[Receipt]:
        """Take the answer of a site to its request. Plain uploads are refused in this mode."""
        client, refused = reply.client, reply.fields.get("refused")
        self.clients[reply.node] = client
        if self.sum is not None:
            name = self.sum.name
            if name in reply.blobs:
                try:
                    self.sum.receive(client, reply.blobs[name])
                except Refused as reason:
                    log.warning("%s, %s: %s", client, name, reason)
                    self.sum.refuse(client, str(reason))
            if isinstance(refused, Mapping) and name in refused:
                self.sum.refuse(client, str(refused[name]))
        return []

    def _advance(self, quorum: Quorum) -> None:
        """End stages of the open sum, and put it into the store once it is known."""
        if self.sum is None:
            return
        try:
            total = self.sum.advance(time.monotonic(), quorum.asked - quorum.declined)
        except AttemptFailed as reason:
            self._close(str(reason))
        else:
            if total is not None:
                self._commit(self.sum, total, quorum)

    def _commit(self, opened: OpenSum, total: NDArray[np.uint32], quorum: Quorum) -> None:
        """Put a sum into the store as the upload of a cohort, and tell its members."""
        attempt, members = opened.attempt, opened.state.survivors
        receipt = receive_sum(self.store, opened, total)
        self._close()
        digest = hashlib.sha256(attempt.info("receipt")).hexdigest()
        for node, client in self.clients.items():
            if client in members:
                own = Receipt(receipt.code, client, attempt.task, digest, receipt.reason)
                self.receipts.setdefault(node, []).append(own)
        for client in members:
            quorum.answer(Receipt(receipt.code, client, attempt.task, "?", receipt.reason))


def run_round(
    network: Network, folder: Path, settings: ServerSettings, task: str, *, keyed: bool
) -> None:
    """One run of the server in ``folder``. ``keyed``: a node may answer for its own client only."""
    with locked_store(folder, settings, task, LOCK_TIMEOUT) as store:
        validation = ValidationSet.load(folder, settings)
        owners = store.database.node_owners if keyed else None
        rounds = Round if settings.privacy == "none" else SecureRound
        rounds(Messenger(network), store, validation, owners).run(task)
