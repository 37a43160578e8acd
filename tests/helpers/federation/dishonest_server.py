"""A server program in the place of ours: it attacks secure sums, or is honest, and records.

The test starts it with the arguments of our own program, `flower/executor.py`. The environment
variable ATTACK names the app: ``all`` are the attacks below, ``none`` is our own app. Both write
what they send and receive to the folder RECORD. Each attack has a task of its own. All go on at the
same time, so that their requests share messages.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Generator, Iterable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from flwr.app import Message, MessageType

from fedran.federation.flower.executor import serve
from fedran.federation.flower.records import make_record, read_record
from fedran.federation.flower.serverapp import app
from fedran.federation.protocol.configuration import load_settings
from fedran.federation.protocol.lockfile import locked
from fedran.federation.secure.masking import unmasking
from fedran.federation.secure.masking.attempt import STAGES, Answer, Attempt, Request, Stage
from fedran.federation.secure.masking.ciphers import ADVERTISED, advertised_keys, pack_keys
from fedran.federation.secure.masking.unmasking import ServerState
from fedran.federation.secure.server.open_sum import make_attempt, make_content, next_number
from fedran.federation.server.settings import STATE, ServerSettings
from fedran.federation.server.store.store import Store

SITES = ("site-1", "site-2", "site-3", "site-4")
REPLY_SECONDS = 240.0
Exchanges = Generator[dict[str, bytes], dict[str, bytes], None]
"""Yields requests by site, and gets the answers of the sites that did not refuse."""


@dataclass
class Sum:
    """A secure sum that the server attacks."""

    state: ServerState

    @property
    def attempt(self) -> Attempt:
        return self.state.attempt

    def honest(self) -> Exchanges:
        """The open stage as an honest server runs it."""
        answers = yield {c: unmasking.request(self.state, c) for c in self.state.waiting_for}
        for client, answer in answers.items():
            self.state = unmasking.collect(self.state, client, answer)
        self.state = unmasking.close(self.state)

    def altered(self, client: str, **parts: bytes) -> bytes:
        """The request of the open stage to a site, with other parts ("site_1" is site-1)."""
        found = Request.read(unmasking.request(self.state, client))
        changes = {name.replace("_", "-"): part for name, part in parts.items()}
        return replace(found, parts={**found.parts, **changes}).to_bytes()

    def only(self, client: str, kept: Iterable[str]) -> bytes:
        """The request of the open stage to a site, with the parts of some sites only."""
        found = Request.read(unmasking.request(self.state, client))
        return replace(found, parts={c: p for c, p in found.parts.items() if c in kept}).to_bytes()

    def request(self, stage: Stage, parts: dict[str, bytes]) -> bytes:
        """Any request."""
        return Request(self.attempt, stage, parts).to_bytes()

    def read(self, stage: Stage, client: str, answer: bytes) -> Answer:
        """An answer to any request."""
        return Answer.read(answer, self.attempt, stage, client, self.state.roster)


def wrong_signature(first: Sum, _second: Sum) -> Exchanges:
    """With its own keys in the place of site-2's, the server would open the shares for site-2."""
    yield from first.honest()
    secrets = {name: os.urandom(32) for name in ADVERTISED}
    keys = pack_keys(advertised_keys(first.attempt, "site-2", secrets))
    signature = Request.read(unmasking.request(first.state, "site-1")).parts["site-2"][len(keys) :]
    others = [client for client in SITES if client != "site-2"]
    yield {client: first.altered(client, site_2=keys + signature) for client in others}


def replay(first: Sum, second: Sum) -> Exchanges:
    """With the keys of an earlier attempt, masks would be used twice."""
    yield from first.honest()
    yield from second.honest()
    old = {client: unmasking.request(first.state, client) for client in SITES}
    keys = Request.read(old["site-3"]).parts["site-1"]
    yield {
        **{client: old[client] for client in ("site-1", "site-2")},
        **{client: second.altered(client, site_1=keys) for client in ("site-3", "site-4")},
    }


def equivocation(first: Sum, _second: Sum) -> Exchanges:
    """site-1 is told that three sites take part, the others that all four do."""
    yield from first.honest()
    shown = {client: SITES[:3] if client == "site-1" else SITES for client in SITES}
    answers = yield {client: first.only(client, shown[client]) for client in SITES}
    envelopes = {c: first.read(Stage.SHARE, c, answer).parts for c, answer in answers.items()}
    yield {
        client: first.request(
            Stage.MASK,
            {c: envelopes[c][client] for c in shown[client] if client in envelopes[c]},
        )
        for client in SITES
    }


def alive_and_dead(first: Sum, _second: Sum) -> Exchanges:
    """Half of the sites are told that site-4 survived, the others that it dropped out.

    The shares of the first would give the seed of site-4, those of the others its mask key.
    """
    for _ in range(3):
        yield from first.honest()
    lists = {client: SITES if client in ("site-1", "site-4") else SITES[:3] for client in SITES}
    answers = yield {
        client: first.request(Stage.CONFIRM, dict.fromkeys(survivors, b""))
        for client, survivors in lists.items()
    }
    signed = {c: first.read(Stage.CONFIRM, c, answer).signature for c, answer in answers.items()}
    yield {
        client: first.request(Stage.REVEAL, {c: signed[c] for c in survivors})
        for client, survivors in lists.items()
    }
    yield {
        "site-1": first.request(Stage.CONFIRM, dict.fromkeys(SITES[:3], b"")),
        "site-2": first.request(Stage.CONFIRM, dict.fromkeys(SITES, b"")),
    }


def too_few(first: Sum, _second: Sum) -> Exchanges:
    """In every stage the server first goes on with two sites only."""
    yield from first.honest()
    for stage in STAGES[1:]:
        yield {client: first.only(client, SITES[:2]) for client in SITES[:2]}
        if stage is not Stage.REVEAL:
            yield from first.honest()


ATTACKS = {
    "wrong-signature": wrong_signature,
    "replay": replay,
    "equivocation": equivocation,
    "alive-and-dead": alive_and_dead,
    "too-few": too_few,
}
"""Task -> the attack on its sum."""


class RecordedGrid:
    """Flower's grid. All that it carries is written to files."""

    def __init__(self, grid, folder: Path) -> None:
        self.grid, self.folder = grid, folder
        self.numbers = itertools.count(len(list(folder.iterdir())))

    def get_node_ids(self):
        return self.grid.get_node_ids()

    def push_messages(self, messages):
        for message in messages:
            self.record("sent", message)
        return self.grid.push_messages(messages)

    def pull_messages(self, message_ids):
        for message in self.grid.pull_messages(message_ids):
            self.record("received", message)
            yield message

    def record(self, way: str, message: Message) -> None:
        if not message.has_error():
            fields = {"fields": json.dumps(read_record(message.content)[0]).encode()}
            for name, blob in {**read_record(message.content)[1], **fields}.items():
                (self.folder / f"{next(self.numbers):05d}.{way}.{name}").write_bytes(blob)


class DishonestServer:
    """Runs all attacks."""

    def __init__(self, grid, settings: ServerSettings, store: Store) -> None:
        self.grid, self.settings, self.store = grid, settings, store
        self.nodes = {c: int(node) for node, c in store.database.node_owners().items()}

    def run(self) -> None:
        contents, running, requests = {}, {}, {}
        for task, attack in ATTACKS.items():
            self.store.open_task(task)
            sums = []
            for _ in range(2):
                number = next_number(self.store, task)
                content = contents[task] = make_content(self.store, task)
                attempt = make_attempt(self.store, task, number, content)
                sums.append(Sum(unmasking.start(attempt, self.store.roster.clients)))
            running[task] = attack(*sums)
            requests[task] = next(running[task])
        while running:
            answers = self.exchange(requests, contents)
            for task, attack in list(running.items()):
                try:
                    requests[task] = attack.send(answers[task])
                except StopIteration:
                    del running[task], requests[task]

    def exchange(self, requests, contents) -> dict[str, dict[str, bytes]]:
        """Send the requests of all attacks; task -> site -> its answer."""
        messages = {}
        for client, node in self.nodes.items():
            blobs, meanings = {}, {}
            for task, asked in requests.items():
                if client in asked:
                    found = Request.read(asked[client])
                    name = f"{task}.{found.attempt.number}"
                    blobs[name] = asked[client]
                    if found.stage is Stage.ADVERTISE:
                        meanings[name] = contents[task].fields()
            if blobs:
                offer = self.settings.offer(next(iter(requests))).fields()
                sums = {"roster": self.store.roster.clients, "contents": meanings}
                body = make_record({"offer": offer, "receipts": [], "sums": sums}, blobs)
                message = Message(body, dst_node_id=node, message_type=MessageType.TRAIN, ttl=600.0)
                (number,) = self.grid.push_messages([message])
                messages[number] = client
        answers, deadline = {task: {} for task in requests}, time.monotonic() + REPLY_SECONDS
        while messages and time.monotonic() < deadline:
            for number in list(messages):
                for reply in self.grid.pull_messages([number]):
                    client = messages.pop(number)
                    assert read_record(reply.content)[0]["client"] == client
                    for name, blob in read_record(reply.content)[1].items():
                        answers[name.rpartition(".")[0]][client] = blob
            time.sleep(0.3)
        assert not messages, f"no reply of {sorted(messages.values())}"
        return answers


def attack_all(grid, context) -> None:
    """The app of the dishonest server."""
    file = Path(os.environ["FEDRAN_SERVER"])
    settings = load_settings(ServerSettings, file)
    task = str(context.run_config.get("task", ""))
    with (
        locked(file.parent / STATE, 60.0, task=task),
        closing(Store.open(file.parent, settings)) as store,
    ):
        DishonestServer(grid, settings, store).run()


if __name__ == "__main__":
    record = Path(os.environ["RECORD"])
    chosen = {"all": attack_all, "none": app}[os.environ["ATTACK"]]

    def recorded(grid, context):
        chosen(grid=RecordedGrid(grid, record), context=context)

    serve(recorded, *sys.argv[1:])
