"""The Flower app of the server: one run is one task.

Settings come from the file that FEDRAN_SERVER names on the server's machine; the run only names
the task.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from flwr.app import Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp

from fedran.core.aggregator import check_id
from fedran.core.errors import Refused
from fedran.federation.keeper import Keeper, Rules
from fedran.federation.quorum import Quorum
from fedran.federation.receipt import Receipt
from fedran.federation.records import blobs_of, content, fields_of, receipts_fields
from fedran.federation.roster import Roster
from fedran.federation.settings import ServerSettings, configured
from fedran.wire.codec import encode

VARIABLE = "FEDRAN_SERVER"
POLL = 1.0
LARGEST_ENVELOPE = 256 * 2**20
log = logging.getLogger(__name__)
app = ServerApp()


def server_here() -> tuple[ServerSettings, Keeper]:
    """The server that this machine's configuration describes, its state restored."""
    settings, here = configured(ServerSettings, VARIABLE, "server's")
    phi = settings.offer("any").features()
    rules = Rules(
        settings.federation,
        phi.fingerprint,
        settings.out_features,
        snapshot_every=settings.snapshot_every,
    )
    roster = Roster.load(here / settings.roster)
    return settings, Keeper(here / settings.state, rules, roster)


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Ask every node for the task, take in what comes, hand back receipts and the head."""
    settings, keeper = server_here()
    try:
        task = check_id(context.run_config["task"], "task")
        run_task(grid, settings, keeper, task)
    finally:
        keeper.close()


def run_task(grid: Grid, settings: ServerSettings, keeper: Keeper, task: str) -> Quorum:
    """One task, to its end: everyone answered, or the deadline passed."""
    quorum = Quorum(frozenset(keeper.roster.clients), settings.min_clients, settings.deadline)
    offer = content({"offer": settings.offer(task).fields()}, {})
    start, asked, waiting = time.monotonic(), set[int](), set[str]()
    answered: dict[int, list[Receipt]] = {}
    while quorum.verdict(time.monotonic() - start) == "wait":
        fresh = set(grid.get_node_ids()) - asked
        ttl = max(1.0, settings.deadline - (time.monotonic() - start))
        waiting |= set(grid.push_messages(_messages(fresh, MessageType.TRAIN, offer, ttl)))
        asked |= fresh
        for reply in grid.pull_messages(waiting):
            waiting.discard(reply.metadata.reply_to_message_id)
            answered[reply.metadata.src_node_id] = take(keeper, quorum, task, reply)
        time.sleep(POLL)
    log.info("task %s: %s, %d uploads", task, quorum.verdict(settings.deadline), quorum.accepted)
    hand_back(grid, keeper, answered)
    return quorum


def take(keeper: Keeper, quorum: Quorum, task: str, reply: Message) -> list[Receipt]:
    """The envelopes of one node, one after the other; only those of the open task count for it."""
    if reply.has_error():
        log.warning("node %s: %s", reply.metadata.src_node_id, reply.error)
        return []
    try:
        blobs = blobs_of(reply, LARGEST_ENVELOPE)
        told = str(fields_of(reply).get("told", ""))
    except Refused as reason:
        log.warning("node %s: %s", reply.metadata.src_node_id, reason)
        return []
    receipts = [keeper.receive(blob) for blob in blobs.values()]
    for receipt in receipts:
        log.info("%s, %s: %s %s", receipt.client, receipt.task, receipt.outcome, receipt.reason)
        if receipt.task == task:
            quorum.answer(receipt)
    if told:
        log.warning("node %s: %s", reply.metadata.src_node_id, told)
    return receipts


def hand_back(grid: Grid, keeper: Keeper, answered: dict[int, list[Receipt]]) -> None:
    """Receipts and the newest head, to every node that is there."""
    head = {"head": encode(keeper.solve())} if keeper.aggregator.ledger else {}
    messages = [
        Message(
            content({"receipts": receipts_fields(answered.get(node, []))}, head),
            dst_node_id=node,
            message_type=MessageType.QUERY,
        )
        for node in grid.get_node_ids()
    ]
    for reply in grid.send_and_receive(messages, timeout=60.0):
        if reply.has_error():
            log.warning("node %s did not take its receipt", reply.metadata.src_node_id)


def _messages(nodes: Iterable[int], kind: str, body: RecordDict, ttl: float) -> list[Message]:
    return [Message(body, dst_node_id=node, message_type=kind, ttl=ttl) for node in nodes]
