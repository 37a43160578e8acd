"""One task at a server with secure sums: several exchanges, then one upload per cohort of sites.

A run works at one sum: that of its task, or, in a run without a task, the open one that was worked
at least recently. Every turn of the loop in ``_collect`` takes these steps:

1. ``_begin`` begins an attempt, unless ``_resume`` goes on with that of an earlier run.
   ``cohorts.py`` says what is summed. ``budget.py`` refuses what exceeds the privacy budget.
2. ``_ask`` sends every site the request of the stage that waits for it. Before the last stage,
   ``charge`` writes to the ledger what the sum spends. Its sites are in no other sum of the task.
3. ``_absorb`` gives the answers to ``OpenSum.receive``. A site may refuse.
4. ``OpenSum.advance`` ends every stage that is complete or whose time is over.
5. ``_commit`` puts a known sum into the store as the upload of a cohort.

The open attempt keeps stage and answers in files, the ledger keeps in the database what was
charged, and ``SecureRound`` knows how often this run has tried.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core.errors import Refused
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
from fedran.federation.secure.masking.attempt import AttemptFailed, Stage
from fedran.federation.secure.server.budget import charge, over_budget
from fedran.federation.secure.server.cohorts import (
    make_attempt,
    make_content,
    next_number,
    receive_sum,
    released_mean,
)
from fedran.federation.secure.server.open_sum import FOLDER, NEW_TASK, OpenSum, open_tasks
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
    """The task of the sum at which this run works."""
    sum: OpenSum | None = None
    attempts = 0
    """How many were opened in this run."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.folder = self.store.folder / FOLDER
        self.clients: dict[int, str] = {}
        """Node -> its client, once it has answered."""
        self.asked: dict[int, tuple[str, Stage | None]] = {}
        """Node -> attempt and stage about which it was asked last."""
        self.decided: dict[str, Code] = {}
        """Site -> what was decided about its rows, in whichever sum of the task they are."""

    def _collect(self, task: str, quorum: Quorum) -> Verdict:
        """Run the exchanges of the open sum until it is finished or waits for other sites."""
        start = time.monotonic()
        offer = self._open_task(task)
        if offer is None:
            return "complete"
        limit, next_progress = start + quorum.deadline, start + FIRST_PROGRESS
        self.task = next(iter([task] if task else open_tasks(self.folder)), "")
        self._resume(limit)
        self._log_lost()
        while True:
            self.decided = self._decisions()
            self._answer(quorum, task, self.decided)
            if self._may_open():
                self._begin(limit)
            if time.monotonic() < limit and self._is_closed(task):
                limit = time.monotonic()
                if self.sum is not None and self.sum.state.stage is Stage.ADVERTISE:
                    self.sum.until = limit
            self._ask(offer, limit)
            for node, reply in self.messenger.replies():
                self._receive_reply(node, reply, task, quorum)
            self._advance(task, quorum)
            now, busy = time.monotonic(), self.sum is not None and not self.sum.idle
            if not busy and not self._may_open():
                if task or now >= limit or self._all_answered():
                    return quorum.verdict(math.inf)
            elif now >= next_progress:
                next_progress = now + PROGRESS_SECONDS
                self._log_progress(task)
            time.sleep(POLL_SECONDS)

    def _answer(self, quorum: Quorum, task: str, decided: Mapping[str, Code]) -> None:
        """Count what was decided about sites, if this is the run of the task."""
        for client, code in decided.items() if task else ():
            quorum.answer(Receipt(code, client, task, "?"))

    def _log_lost(self) -> None:
        """Say whose rows were charged in a sum that is not here: they are in no other one."""
        lost = [site for site, code in self.decided.items() if code is Code.CONFLICT]
        if lost:
            names, lost_sum = ", ".join(sorted(lost)[:10]), "was charged and is not here"
            log.error("task %s: a sum of %s %s; %s", self.task, names, lost_sum, NEW_TASK)

    def _record(self, task: str, state: str, quorum: Quorum) -> None:
        if self.sum is not None and self.sum.state.stage is not None:
            quorum.waiting = set(self.sum.state.answered(self.sum.state.stage))
        super()._record(task, state, quorum)

    def _log_progress(self, task: str) -> None:
        if self.sum is not None:
            stage, waiting, hint = self.sum.state.stage, self.sum.waiting_for, ""
            if stage is Stage.ADVERTISE:  # and for those that have answered in an earlier run only
                waiting |= set(self.sum.state.answered(stage)) - set(self.clients.values())
                hint = HOW_TO_CLOSE if task else ""
            missing = self._describe_missing(waiting)
            log.info("%s, %s: waiting for %s%s", self.sum.name, stage, missing, hint)

    def _all_answered(self) -> bool:
        """Whether every connected node has answered."""
        return set(self.messenger.network.nodes()) <= self.answered

    def _decisions(self) -> dict[str, Code]:
        """``CONFLICT``: the rows are in a sum that was charged, and failed or was forgotten."""
        found: dict[str, Code] = {}
        number = None if self.sum is None else self.sum.attempt.number
        for charged in self.store.database.ledger():
            if charged.task == self.task and charged.attempt != number:
                found.update(dict.fromkeys(charged.sites, Code.CONFLICT))
        for code, keys in (
            (Code.FORGOTTEN, self.store.forgotten),
            (Code.DUPLICATE, self.store.state.covered),
        ):
            found.update((client, code) for client, task in keys if task == self.task)
        return found

    def _may_open(self) -> bool:
        """Whether an attempt at the sum should begin.

        After one that gave a sum, another begins only for sites that are here.
        """
        if not self.task or self.sum is not None or self.attempts == MAX_ATTEMPTS:
            return False
        missing = self.store.roster.clients.keys() - self.decided.keys()
        if self.attempts and self.decided:
            return len(missing & set(self.clients.values())) >= self.settings.min_sites
        return bool(missing)

    def _resume(self, limit: float) -> None:
        """Go on with the attempt of an earlier run, unless it cannot give a sum any more.

        ``limit`` is when the first stage ends without sites that have not answered.
        """
        seconds, report = self.settings.exchange_seconds, self.store.events.write
        until = max(limit, time.monotonic() + seconds)
        self.sum = OpenSum.load(self.folder, self.task, until, seconds, report)
        self.decided = self._decisions()
        if self.sum is None:
            return
        self.sum.left_out = self.decided.keys()
        attempt, stage = self.sum.attempt, self.sum.state.stage
        content = make_content(self.store, self.task, self.sum.content.center)
        now = make_attempt(self.store, self.task, attempt.number, content)
        members = self.sum.state.answered(Stage.ADVERTISE)
        codes = {self.decided[site] for site in members if site in self.decided}
        if attempt.roster != now.roster:
            self._fail("the roster has changed")
        elif stage is Stage.ADVERTISE:
            if attempt != now:
                self._fail("the server's settings have changed")
        elif codes - {Code.DUPLICATE}:
            self._fail("the rows of a member were forgotten")
        elif codes:
            self._forget()  # the server was killed after the store had it

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
        content = make_content(self.store, self.task, released_mean(self.store))
        attempt = make_attempt(self.store, self.task, next_number(self.store, self.task), content)
        state = unmasking.start(attempt, self.store.roster.clients)
        report = self.store.events.write
        self.sum = OpenSum(self.folder, state, content, limit, seconds, report)
        self.sum.left_out = self.decided.keys()
        self.sum.save()

    def _fail(self, reason: str) -> None:
        assert self.sum is not None
        self.sum.fail(reason)
        self.sum = None

    def _forget(self) -> None:
        assert self.sum is not None
        self.sum.delete()
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
                self.attempts = MAX_ATTEMPTS
                self._fail(over)
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

    def _advance(self, task: str, quorum: Quorum) -> None:
        """End stages of the open sum, and put it into the store once it is known."""
        if self.sum is None:
            return
        live = set(self.clients.values())
        expected: Collection[str] = quorum.asked - quorum.declined - self.decided.keys()
        if not task:
            expected = live if self._all_answered() else self.store.roster.clients
        try:
            total = self.sum.advance(time.monotonic(), live, expected)
        except AttemptFailed as reason:
            self._fail(str(reason))
        else:
            if total is not None:
                self._commit(self.sum, total, task, quorum)

    def _commit(
        self, opened: OpenSum, total: NDArray[np.uint32], task: str, quorum: Quorum
    ) -> None:
        """Put a sum into the store as the upload of a cohort, and tell its members."""
        attempt, members = opened.attempt, opened.state.survivors
        receipt = receive_sum(self.store, opened, total)
        self._forget()
        if not receipt.settled:  # the members have revealed it, so another attempt is no remedy
            self.attempts = MAX_ATTEMPTS
        digest = hashlib.sha256(attempt.info("receipt")).hexdigest()
        for node, client in self.clients.items():
            if client in members:
                own = Receipt(receipt.code, client, attempt.task, digest, receipt.reason)
                self.receipts.setdefault(node, []).append(own)
        self._answer(quorum, task, dict.fromkeys(members, receipt.code))


def run_round(
    network: Network, folder: Path, settings: ServerSettings, task: str, *, keyed: bool
) -> None:
    """One run of the server in ``folder``. ``keyed``: a node may answer for its own client only."""
    with locked_store(folder, settings, task, LOCK_TIMEOUT) as store:
        validation = ValidationSet.load(folder, settings)
        owners = store.database.node_owners if keyed else None
        rounds = Round if settings.privacy == "none" else SecureRound
        rounds(Messenger(network), store, validation, owners).run(task)
