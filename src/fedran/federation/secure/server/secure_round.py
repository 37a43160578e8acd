"""One task at a server with secure sums: several exchanges, then one upload per cohort of sites.

Every turn of the loop in ``_collect`` takes these steps:

1. ``_open_sum`` begins an attempt at the sum of a task, or goes on with that of an earlier run.
   ``cohorts.py`` says what is summed. ``budget.py`` refuses what exceeds the privacy budget.
2. ``_ask`` sends every site the requests of the stages that wait for it. Before the last stage,
   ``_charge`` writes to the ledger what the sum spends. Its sites are in no other sum of the task.
3. ``_absorb`` gives the answers to ``Coordinator.receive``. A site may refuse (``_refused``).
4. ``Coordinator.advance`` ends every stage that is complete or whose time is over.
5. ``_commit`` puts a known sum into the store as the upload of a cohort.

The coordinator keeps stage and answers of the open attempts in files, the ledger keeps in the
database what was charged, and ``SecureRound`` knows how often this run has tried.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core.errors import Refused
from fedran.federation.protocol.limits import (
    CATCH_UP_SECONDS,
    FIRST_PROGRESS,
    MAX_AHEAD,
    MAX_ATTEMPTS,
    MAX_LATE,
    POLL_SECONDS,
    PROGRESS_SECONDS,
)
from fedran.federation.protocol.messages import Question
from fedran.federation.protocol.receipts import Code, Receipt
from fedran.federation.secure.masking.attempt import Stage
from fedran.federation.secure.masking.contribution import Content
from fedran.federation.secure.server.budget import charge, over_budget
from fedran.federation.secure.server.cohorts import (
    make_attempt,
    make_content,
    next_number,
    receive_sum,
    task_before,
)
from fedran.federation.secure.server.coordinator import FOLDER, NEW_TASK, Coordinator, OpenSum
from fedran.federation.server.round.messenger import Reply
from fedran.federation.server.round.quorum import HOW_TO_CLOSE, Quorum, Verdict
from fedran.federation.server.round.round import Round

log = logging.getLogger(__name__)


class SecureRound(Round):
    """One run of the server app in a federation with secure sums."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.sums = Coordinator(
            self.store.folder / FOLDER,
            self.store.roster.clients,
            self.settings.exchange_seconds,
            self.store.events.write,
            time.monotonic(),
        )
        self.clients: dict[int, str] = {}
        """Node -> its client, once it has answered."""
        self.asked: dict[int, set[tuple[str, str]]] = {}
        """Node -> sums and stages about which it was asked."""
        self.attempts: dict[str, int] = {}
        """Task -> attempts that were opened in this run."""
        self.decided = self._decisions()
        self.started: set[str] = set()
        """Tasks whose open attempt has a limit of time in this run."""
        self.corrected: set[tuple[str, str]] = set()
        """Clients and tasks of which the server has learnt a higher number of an attempt."""

    def _collect(self, task: str, quorum: Quorum) -> Verdict:
        """Run the exchanges of all open sums until each is finished or waits for other sites."""
        start = time.monotonic()
        offer = self._open_task(task)
        if offer is None:
            return "complete"
        limit, next_progress = start + quorum.deadline, start + FIRST_PROGRESS
        self._log_lost(task)
        late = [t for t in (offer["task"], *reversed(offer["earlier"])) if t != task][:MAX_LATE]
        while True:
            self.decided = self._decisions()
            for client, code in self.decided[task].items():
                quorum.answer(Receipt(code, client, task, "?"))
            if task:
                self._open_sum(task, limit, aware=True)
            for name in late:
                self._open_sum(name, start + CATCH_UP_SECONDS, aware=False)
            if time.monotonic() < limit and self._is_closed(task):
                limit = time.monotonic()
                self.sums.end_first_stages(limit)
            self._ask(offer, limit)
            for node, reply in self.messenger.replies():
                self._receive_reply(node, reply, task, quorum)
            live = set(self.clients.values())

            def expected(name: str, here: set[str] = live) -> Collection[str]:
                """The sites that may still answer the first stage of a task's sum."""
                if name == task:
                    return quorum.asked - quorum.declined - self.decided[name].keys()
                return here if self._all_answered() else self.store.roster.clients

            for opened, total in self.sums.advance(time.monotonic(), live, expected):
                self._commit(opened, total, task, quorum)
            now, busy = time.monotonic(), [s for s in self.sums.sums.values() if not s.idle]
            if not busy and not self._may_open(task):
                if task or now >= limit or self._all_answered():
                    return quorum.verdict(math.inf)
            elif now >= next_progress:
                next_progress = now + PROGRESS_SECONDS
                for opened in busy:
                    self._log_progress(opened, task)
            time.sleep(POLL_SECONDS)

    def _log_lost(self, task: str) -> None:
        """Say whose rows were charged in a sum that is not here: they are in no other one."""
        lost = [site for site, code in self.decided[task].items() if code is Code.CONFLICT]
        if lost:
            names = ", ".join(sorted(lost)[:10])
            log.error("task %s: a sum of %s was charged and is not here; %s", task, names, NEW_TASK)

    def _record(self, task: str, state: str, quorum: Quorum) -> None:
        quorum.waiting = set()
        opened = self.sums.sums.get(task)
        if opened is not None and opened.state.stage is not None:
            quorum.waiting.update(opened.state.answered(opened.state.stage))
        super()._record(task, state, quorum)

    def _log_progress(self, opened: OpenSum, task: str) -> None:
        stage, waiting, hint = opened.state.stage, set(opened.waiting_for), ""
        if stage is Stage.ADVERTISE:  # and for those that have answered in an earlier run only
            waiting |= set(opened.state.answered(stage)) - set(self.clients.values())
            hint = HOW_TO_CLOSE if task else ""
        missing = self._describe_missing(waiting)
        log.info("%s, %s: waiting for %s%s", opened.name, stage, missing, hint)

    def _all_answered(self) -> bool:
        """Whether every connected node has answered."""
        return set(self.messenger.network.nodes()) <= self.answered

    def _decisions(self) -> dict[str, dict[str, Code]]:
        """Task -> site -> what was decided about its rows, in whichever sum they are.

        ``CONFLICT``: they are in a sum that was charged, and that failed or was forgotten.
        """
        found: defaultdict[str, dict[str, Code]] = defaultdict(dict)
        for charged in self.store.database.ledger():
            opened = self.sums.sums.get(charged.task)
            if opened is None or opened.attempt.number != charged.attempt:
                found[charged.task].update(dict.fromkeys(charged.sites, Code.CONFLICT))
        for code, keys in (
            (Code.FORGOTTEN, self.store.forgotten),
            (Code.DUPLICATE, self.store.state.covered.keys()),
        ):
            for client, task in keys:
                found[task][client] = code
        return found

    def _may_open(self, task: str) -> bool:
        """Whether an attempt at the sum of a task should begin.

        After one that gave a sum, another begins only for sites that are here.
        """
        tried = self.attempts.get(task, 0)
        if not task or task in self.sums.sums or tried == MAX_ATTEMPTS:
            return False
        missing = self.store.roster.clients.keys() - self.decided[task].keys()
        if tried and self.decided[task]:
            here = missing & set(self.clients.values())
            return len(here) >= self.settings.min_sites
        return bool(missing)

    def _open_sum(self, task: str, limit: float, aware: bool) -> None:
        """Begin an attempt at the sum of a task, or go on with the one that an earlier run began.

        ``limit`` is when the first stage ends without sites that have not answered.
        """
        opened, decided = self.sums.sums.get(task), self.decided[task]
        if task not in self.started and opened is not None:
            opened.until = max(limit, opened.until)
            if opened.state.stage is Stage.ADVERTISE:
                content = self._content(task, opened.omega)
                attempt = make_attempt(self.store, task, opened.attempt.number, content)
                if (opened.attempt, opened.content) != (attempt, content):
                    self.sums.fail(task, "the server's settings have changed")
            elif of_members := decided.keys() & opened.state.answered(Stage.ADVERTISE):
                if {decided[site] for site in of_members} <= {Code.DUPLICATE}:
                    self.sums.forget(task)  # the server was killed after the store had it
                else:
                    self.sums.fail(task, "the rows of a member were forgotten")
        self.started.add(task)
        if self._may_open(task):
            self._begin(task, limit, aware)
        if task in self.sums.sums:
            self.sums.sums[task].left_out = frozenset(decided)

    def _content(self, task: str, omega: bytes) -> Content:
        """What the next attempt at a task sums."""
        return make_content(self.store, task, hashlib.sha256(omega).hexdigest() if omega else "")

    def _begin(self, task: str, limit: float, aware: bool) -> None:
        """Open an attempt, unless its sum would exceed the privacy budget."""
        noise, ledger = self.settings.noise, self.store.database.ledger()
        limit_of_all = self.settings.total_epsilon
        if noise and (reason := over_budget(ledger, task, noise.budget, limit_of_all)):
            self.attempts[task] = MAX_ATTEMPTS
            log.error("task %s is refused: %s", task, reason)
            self.store.events.write("sum", name=task, state="over budget", reason=reason)
            return
        if self.attempts.get(task):  # everyone has to answer the first stage again
            limit = max(limit, time.monotonic() + self.settings.exchange_seconds)
        self.attempts[task] = self.attempts.get(task, 0) + 1
        omega = task_before(self.store, task) if aware else b""
        content, number = self._content(task, omega), next_number(self.store, task)
        attempt = make_attempt(self.store, task, number, content)
        self.sums.open(attempt, content, omega, limit)

    def _charge(self) -> None:
        """Note what is spent by sums that are about to be revealed, also by those without noise.

        One that no longer fits the budget is given up: others were revealed since it was opened.
        """
        for task, opened in list(self.sums.sums.items()):
            if opened.state.stage not in (Stage.REVEAL, None):
                continue
            if reason := charge(self.store.database, opened, self.settings.total_epsilon):
                self.attempts[task] = MAX_ATTEMPTS
                self.sums.fail(task, reason)

    def _ask(self, offer: dict[str, Any], limit: float) -> None:
        """Send every node what it is asked now. Nodes with nothing new are left alone."""
        self._charge()
        owners = {} if self.owners is None else self.owners()
        for node, client in self.clients.items():
            if self.sums.pending(client) - self.asked.get(node, set()):
                self.messenger.ask_again(node)
        ttl = max(1.0, limit - time.monotonic()) + 5 * self.settings.exchange_seconds
        for node in self.messenger.nodes_to_ask():
            client = self.clients.get(node) or owners.get(str(node), "")
            contents, blobs = self.sums.requests(client)
            sums = {"roster": self.store.roster.clients, "contents": contents}
            self.asked[node] = self.asked.get(node, set()) | self.sums.pending(client)
            fields = {"offer": offer, "receipts": self._receipts_for(node), "sums": sums}
            self.messenger.send(node, Question.OFFER, fields, blobs, ttl)

    def _absorb(self, reply: Reply) -> list[Receipt]:
        """Take the answers of a site to its requests. Plain uploads are refused in this mode."""
        client, fields = reply.client, reply.fields
        self.clients[reply.node] = client
        for name, blob in reply.blobs.items():
            try:
                self.sums.receive(client, name, blob)
            except Refused as reason:
                log.warning("%s, %s: %s", client, name, reason)
                self.sums.refuse(client, name, str(reason))
        refused = fields.get("refused")
        for name, why in (refused if isinstance(refused, Mapping) else {}).items():
            if isinstance(why, Mapping):
                self._refused(client, str(name), why)
        return []

    def _refused(self, client: str, name: str, why: Mapping[str, Any]) -> None:
        """A site does not take part. If it knows a higher attempt, the next one is higher.

        A site is believed once per task and run, in the first stage, and not far above the present
        number: a lying site can neither keep the server busy nor use up the numbers nor end a sum.
        """
        self.sums.refuse(client, name, str(why.get("reason")))
        task, last = name.rpartition(".")[0], why.get("number")
        opened = self.sums.sums.get(task)
        if opened is None or opened.name != name or type(last) is not int:
            return
        ahead, known = last - opened.attempt.number, (client, task)
        first = opened.state.stage is Stage.ADVERTISE
        if first and 0 < ahead <= MAX_AHEAD and known not in self.corrected:
            self.corrected.add(known)
            next_number(self.store, task, last)
            self.attempts[task] = max(0, self.attempts.get(task, 0) - 1)
            self.sums.fail(task, f"{client} knows attempt {last}")

    def _commit(
        self, opened: OpenSum, total: NDArray[np.uint32], task: str, quorum: Quorum
    ) -> None:
        """Put a sum into the store as the upload of a cohort, and tell its members."""
        attempt, members = opened.attempt, opened.state.survivors
        receipt = receive_sum(self.store, opened, total)
        self.sums.forget(attempt.task)
        if not receipt.settled:  # the members have revealed it, so another attempt is no remedy
            self.attempts[attempt.task] = MAX_ATTEMPTS
        digest = hashlib.sha256(attempt.info("receipt")).hexdigest()
        for node, client in self.clients.items():
            if client in members:
                own = Receipt(receipt.code, client, attempt.task, digest, receipt.reason)
                self.receipts.setdefault(node, []).append(own)
        if attempt.task == task:
            for client in members:
                quorum.answer(Receipt(receipt.code, client, task, receipt.digest, receipt.reason))
