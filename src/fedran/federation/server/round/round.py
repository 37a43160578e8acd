"""One task at the server: offers go out, envelopes come in, receipts and the head go back.

Messages are pulled one at a time and dropped when absorbed, so that the server's memory does not
grow with the number of sites.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from fedran.core.errors import Refused, shortened
from fedran.federation.protocol.limits import (
    CATCH_UP_SECONDS,
    FIRST_PROGRESS,
    HAND_BACK_SECONDS,
    MAX_CLASSES,
    MAX_EARLIER,
    MAX_SETTLED,
    POLL_SECONDS,
    PROGRESS_SECONDS,
)
from fedran.federation.protocol.lockfile import wait_until
from fedran.federation.protocol.messages import Question
from fedran.federation.protocol.receipts import Code, Receipt
from fedran.federation.server.head.gate import Validation
from fedran.federation.server.head.head import update_head
from fedran.federation.server.head.validation import ValidationSet
from fedran.federation.server.round.messenger import Incoming, Messenger, Reply
from fedran.federation.server.round.quorum import (
    CLOSED,
    HOW_TO_CLOSE,
    Quorum,
    Verdict,
    lost_uploads,
)
from fedran.federation.server.round.site_validation import SiteValidation
from fedran.federation.server.store.store import Store

log = logging.getLogger(__name__)


class Round:
    """One run of the server app.

    ``owners`` reads which client each node id belongs to. A node may only answer for its own
    client, and one without a known owner for nobody. None: the nodes have no keys.
    """

    def __init__(
        self,
        messenger: Messenger,
        store: Store,
        validation: ValidationSet | None = None,
        owners: Callable[[], Mapping[str, str]] | None = None,
    ) -> None:
        self.messenger, self.store, self.settings = messenger, store, store.settings
        self.validation, self.owners = validation, owners
        self.receipts: dict[int, list[Receipt]] = {}
        """Node -> what was decided about its uploads."""
        self.answered: set[int] = set()
        """Nodes that have answered anything."""
        self.held_heads: dict[int, str] = {}
        """Node -> SHA-256 of the head that it says it has."""
        self.have_more: set[int] = set()
        """Nodes whose last reply had no room for all their uploads."""
        self.clients: dict[int, str] = {}
        """Node -> its client, once it has answered."""
        self.validating: set[int] = set()
        """Nodes with validation rows."""
        self.began = time.monotonic()

    def run(self, task: str) -> Verdict:
        """Run the task until everyone answered, the deadline passed, or the owner closed it.

        Without a task (""), missing uploads and heads are exchanged, and no quorum is needed.
        """
        if task:
            clients = frozenset(self.store.roster.clients)
            quorum = Quorum(clients, self.settings.min_clients, self.settings.deadline)
            known = [Receipt(Code.FORGOTTEN, *key, "?") for key in self.store.forgotten]
            known += [Receipt(Code.DUPLICATE, *key, "?") for key in self.store.state.uploads]
            for receipt in known:
                if receipt.task == task:
                    quorum.answer(receipt)
        else:
            quorum = Quorum(frozenset(), 0, CATCH_UP_SECONDS)
        if self._is_closed(task):  # an earlier run of it
            self.store.database.set_fact(CLOSED, "")
        self._record(task, "open", quorum)
        verdict = self._collect(task, quorum)
        self._record(task, verdict, quorum)
        self._hand_back(task)
        return verdict

    def _collect(self, task: str, quorum: Quorum) -> Verdict:
        """Ask nodes and take their replies until the task has a verdict."""
        start, next_progress = time.monotonic(), FIRST_PROGRESS
        offer = self._open_task(task)
        while True:
            ttl = max(1.0, quorum.deadline - (time.monotonic() - start))
            for node in self.messenger.nodes_to_ask():
                fields = {"offer": offer, "receipts": self._receipts_for(node)}
                self.messenger.send(node, Question.OFFER, fields, {}, ttl)
            for node, reply in self.messenger.replies():
                self._receive_reply(node, reply, task, quorum)
            seconds = time.monotonic() - start
            if self._is_closed(task):
                quorum.deadline = min(quorum.deadline, seconds)
            verdict = quorum.verdict(seconds)
            replied = not self.messenger.unanswered
            # Nobody waits for a site whose answer to the task is known from an earlier run.
            done = verdict != "wait" and (bool(task) or (replied and not self.have_more))
            if done or seconds >= quorum.deadline:
                return verdict
            if seconds >= next_progress:
                next_progress = seconds + PROGRESS_SECONDS
                nodes = f"{len(self.messenger.unanswered)} connected nodes"
                missing = self._describe_missing(quorum.missing) or nodes
                left = quorum.deadline - seconds
                log.info("waiting for %s; %.0f s left%s", missing, left, HOW_TO_CLOSE * bool(task))
            time.sleep(POLL_SECONDS)

    def _is_closed(self, task: str) -> bool:
        """Whether the owner does not want to wait for more sites."""
        return bool(task) and self.store.database.fact(CLOSED) == task

    def _describe_missing(self, missing: Collection[str]) -> str:
        """The first names of sites that are waited for, and whether they are connected."""
        here: Collection[str | None] = missing
        if self.owners is not None:
            with suppress(OSError):  # then it is not said
                owners = self.owners()
                here = {owners.get(str(node)) for node in self.messenger.network.nodes()}
        names = sorted(missing)[:10]
        return ", ".join(name if name in here else f"{name} (not connected)" for name in names)

    def _receipts_for(self, node: int) -> list[dict[str, Any]]:
        """What was decided about a node's uploads, for a message to it."""
        return [receipt.fields() for receipt in self.receipts.get(node, [])]

    def _open_task(self, task: str) -> dict[str, Any] | None:
        """Add the task to the list of open ones, and return the offer that is sent to nodes.

        Without a task, the newest one is offered again to sites that missed it.
        """
        tasks = self.store.open_task(task)
        newest = task or (tasks[-1] if tasks else "")
        if not newest:
            return None
        earlier = [name for name in tasks if name != newest][-MAX_EARLIER:]
        offer = self.settings.offer(newest, earlier)
        known = () if offer.classes else self.store.state.classes
        return replace(offer, known_classes=known if len(known) <= MAX_CLASSES else ()).fields()

    def _receive_reply(self, node: int, incoming: Incoming, task: str, quorum: Quorum) -> None:
        """Receive the envelopes of one node. Only those of the open task count for the quorum."""
        if incoming.error:
            log.warning("node %s: %s; the node is asked again", node, incoming.error)
            self.messenger.retry_later(node)
            return
        self.answered.add(node)
        try:
            reply = Reply.read(node, incoming)
            self._check_owner(node, reply.client)
            receipts = self._absorb(reply)
        except Refused as reason:
            log.warning("node %s: %s", node, reason)
            return
        except OSError as reason:  # nothing is acknowledged
            log.error("node %s: its answer is not kept: %s; it is asked again", node, reason)
            self.messenger.retry_later(node)
            return
        client = self.clients[node] = reply.client
        lost = lost_uploads(self.store, client, reply.stored)
        self._ask_for_more(reply, receipts, lost)
        own = self.receipts.setdefault(node, [])
        own += receipts + lost
        for task_of_sum in reply.waiting:  # the site does not know that its secure sum is here
            found = self.store.state.covered.get((client, task_of_sum))
            if found is not None:
                digest = self.store.state.uploads[found].digest
                own.append(Receipt(Code.ACCEPTED, client, task_of_sum, digest))
        self.held_heads[node] = str(reply.fields.get("head", ""))
        if reply.validates:
            self.validating.add(node)
        for receipt in receipts:
            shown = f": {receipt.reason}" if receipt.reason else ""
            what = (receipt.client, receipt.task, receipt.outcome, shown)
            log.info("%s, %s: %s%s", *what, extra=receipt.log_fields())
            if receipt.task == task and receipt.client == client:
                quorum.answer(receipt)
        with self.store.tolerating_a_full_disk(f"time of the answer of {client}"):
            self.store.database.set_seen(client)
        problem, failed = reply.problem, reply.fields.get("failed") is True
        if task and isinstance(problem, str) and problem and client not in quorum.answers:
            level, said = (logging.WARNING, "failed") if failed else (logging.INFO, "has nothing")
            told = {"site": client, "task": task, "decision": "failed" if failed else "declined"}
            log.log(level, "%s %s: %s", client, said, problem, extra=told)
            self.store.events.write(
                "declined", client=client, task=task, reason=problem, failed=failed
            )
            quorum.declined.add(client)

    def _absorb(self, reply: Reply) -> list[Receipt]:
        """Decide about the envelopes of one reply. Secure sums are a mode of their own."""
        receipts, limit = [], self.settings.largest_upload
        for name, blob in reply.blobs.items():
            if len(blob) <= limit:
                receipts.append(self.store.receive(blob))
            else:
                hint = "`budget_bytes` in server.toml limits it"
                why = Refused("upload", f"at most {limit} bytes", len(blob), hint)
                receipts.append(Receipt(Code.TOO_LARGE, reply.client, name[:64], "?", str(why)))
        return receipts

    def _check_owner(self, node: int, client: str) -> None:
        """Refuse an answer for another client than the node's own."""
        if self.owners is None:
            return
        owner = self.owners().get(str(node))
        if owner is None:  # registered a moment ago, or the list of nodes is lost
            raise OSError(f"no client is known for the node that answers for {client}")
        if owner != client:
            raise Refused("client", f"{owner}, the owner of this node", client)

    def _ask_for_more(self, reply: Reply, receipts: list[Receipt], lost: list[Receipt]) -> None:
        """Ask a node at once that has new uploads left, or some that are lost here.

        The next message contains all receipts so far, so that the node sends others. A secure sum
        that is lost cannot be sent again by one site.
        """
        node, more = reply.node, reply.fields.get("more") is True
        known = {(r.task, r.digest) for r in self.receipts.get(node, [])}
        again = more and any((r.task, r.digest) not in known for r in receipts)
        if self.settings.privacy == "none":
            missing = any(receipt.code == Code.LOST for receipt in lost)
            again = again or missing
            if not more and not missing:
                self.store.note_complete(reply.client)
        self.have_more.discard(node)
        if again and len(known) < MAX_SETTLED:
            self.have_more.add(node)
            self.messenger.ask_again(node)

    def _waits_for_uploads(self, task: str) -> bool:
        """Whether a head would be older than that of the sites, because a backup was restored.

        Without a task, the server also waits for sites that have not answered since.
        """
        waits = {*self.store.restored} & {*self.store.roster.clients}
        if task:
            waits &= {*self.clients.values()}
        if waits:
            log.warning(
                "no classifier is sent after the restore until it has uploads of: %s",
                shortened(sorted(waits), 10),
            )
        return bool(waits)

    def _hand_back(self, task: str) -> None:
        """Send receipts and the newest head to every connected node, and note who has the head.

        Nodes that are not noted in the database are asked again by a later run.
        """
        if self._waits_for_uploads(task):
            head, digest = b"", "outdated"
        else:
            validation: Validation | None = self.validation
            if validation is None and self.settings.site_validation and self.validating:
                validation = SiteValidation(
                    self.messenger,
                    {node: self.clients[node] for node in self.validating},
                    self.store.database.uploads(),
                    self._check_owner,
                )
            elif validation is None and self.settings.site_validation:
                log.info("no site that answered has validation rows; new heads are not tested")
            log.info("solving the classifier")
            head, digest = update_head(self.store, validation, task)
        nodes = list(self.messenger.network.nodes())
        self.messenger.unanswered.clear()  # answers to the offer that came too late
        log.info("sending receipts and the newest head to %d nodes", len(nodes))
        for node in nodes:
            fields = {"receipts": self._receipts_for(node)}
            lacks_head = head and self.held_heads.get(node) != digest
            blobs = {"head": head} if lacks_head else {}
            self.messenger.send(node, Question.RESULTS, fields, blobs, HAND_BACK_SECONDS)
        before, had_it = self.store.database.served()
        served = (had_it if before == digest else set()) - {str(n) for n in self.have_more}

        def taken() -> bool:
            for node, reply in self.messenger.replies():
                # A node that did not answer the offer may still have rows to send.
                answered = node in self.receipts and node not in self.have_more
                if answered and reply.fields.get("head") == digest:
                    served.add(str(node))
            return not self.messenger.unanswered

        wait_until(taken, HAND_BACK_SECONDS, POLL_SECONDS / 2, what="nodes to take them")
        with self.store.tolerating_a_full_disk("list of nodes that have the head"):
            self.store.database.set_served(digest, sorted(served))
        lacking = {str(n) for n in nodes} - served
        if head and lacking:
            log.warning("%d of %d nodes will be asked again", len(lacking), len(nodes))

    def _record(self, task: str, state: str, quorum: Quorum) -> None:
        """Log the state of a task and write it to the database."""
        if not task:
            return
        missing, waiting = quorum.missing, sorted(quorum.waiting)
        parts = [f"{quorum.accepted} {'upload' if quorum.accepted == 1 else 'uploads'} in"]
        if state != "open" and (absent := [c for c in missing if c not in waiting]):
            parts.append(f"missing {', '.join(absent[:10])}")
        if state != "open" and waiting:
            parts.append(f"waiting for others: {', '.join(waiting[:10])}")
        seconds = round(time.monotonic() - self.began, 1)
        told = {"task": task, "decision": state, "seconds": seconds}
        log.info("task %s: %s, %s", task, state, ", ".join(parts), extra=told)
        with self.store.tolerating_a_full_disk(f"state of task {task}"):
            self.store.database.set_task(
                task,
                state,
                deadline=float(quorum.deadline),
                min_clients=quorum.min_clients,
                asked=sorted(quorum.asked),
                missing=missing,
            )
        self.store.events.write("task", task=task, state=state, missing=missing)
