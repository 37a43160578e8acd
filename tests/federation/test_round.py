"""One task at the server, with a grid in memory: whatever nodes answer, the run goes on."""

import errno
import hashlib
import json
import logging
import time

import pytest

pytest.importorskip("flwr")

from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Error,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.supercore.task_identity import TaskIdentity

import fedran
from fedran.federation.protocol.messages import MAX_EARLIER, Offer
from fedran.federation.protocol.transport import blobs_of, content, fields_of
from fedran.federation.server import messenger
from fedran.federation.server import round as round_module
from fedran.federation.server.messenger import MAX_ATTEMPTS
from fedran.federation.server.round import Round
from fedran.federation.server.settings import ServerSettings
from helpers.made_federation import D, M, Sites, upload

NAMES = ("site-1", "site-2", "site-3")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    for name, seconds in (("POLL", 0.01), ("HAND_BACK", 0.5), ("CATCH_UP", 0.4)):
        monkeypatch.setattr(round_module, f"{name}_SECONDS", seconds)
    monkeypatch.setattr(messenger, "RETRY_SECONDS", 0.02)
    for name in ("_task_id", "_run_id", "_node_id"):  # as Flower's process of a run has them
        monkeypatch.setattr(TaskIdentity, name, 1)


class Fleet:
    """Flower's grid as the round sees it; each node is a function from a message to its answer."""

    def __init__(self, nodes):
        self.nodes, self.sent, self.replies = dict(nodes), [], {}
        self.pulled = []

    def get_node_ids(self):
        return list(self.nodes)

    def push_messages(self, messages):
        numbers = []
        for message in messages:
            assert message.metadata.ttl > 0
            node, number = message.metadata.dst_node_id, f"m{len(self.sent)}"
            self.sent.append(message)
            numbers.append(number)
            body = self.nodes[node](message)
            if isinstance(body, Error):
                body = Reply(error=body)
            elif body is not None:
                body = Reply(content=body)
            self.replies[number] = body
        return numbers

    def pull_messages(self, message_ids):
        numbers = list(message_ids)
        self.pulled.append(len(numbers))
        found = [self.replies.pop(n) for n in numbers if self.replies.get(n) is not None]
        return iter(found)

    def of(self, kind, node=None):
        return [
            m
            for m in self.sent
            if m.metadata.message_type == kind and node in (None, m.metadata.dst_node_id)
        ]


class Reply:
    """What the round uses of a Flower message."""

    def __init__(self, content=None, error=None):
        self.content, self.error = content, error

    def has_error(self):
        return self.error is not None


class Site:
    """An honest site: sends what it has, keeps the head."""

    def __init__(self, client, *blobs, told=""):
        self.client, self.blobs, self.told = client, blobs, told
        self.head, self.receipts = b"", []

    def __call__(self, message):
        fields = fields_of(message)
        if message.metadata.message_type == MessageType.QUERY:
            self.receipts += fields["receipts"]
            self.head = blobs_of(message, 10**6).get("head", self.head)
            return content({"client": self.client, "head": self._digest(), "told": ""}, {})
        named = {f"b{n}": blob for n, blob in enumerate(self.blobs)}
        return content({"client": self.client, "head": self._digest(), "told": self.told}, named)

    def _digest(self):
        return hashlib.sha256(self.head).hexdigest() if self.head else ""


@pytest.fixture(scope="module")
def sites():
    return Sites(*NAMES)


@pytest.fixture
def server(sites, tmp_path):
    """A function that runs one round over nodes; the store's folder outlives it."""
    made = []

    def run(task, nodes, deadline=0.2, owners=(), **changes):
        settings = ServerSettings("trial", D, M, **{"source": "test", **changes})
        # Shorter than a file may say: most of these tests wait for it.
        object.__setattr__(settings, "deadline", deadline)
        if not made:
            made.append(sites.store(tmp_path / "state"))
        run.store = made[0]
        run.grid = Fleet(nodes) if isinstance(nodes, dict) else nodes
        run.round = Round(run.grid, settings, made[0], None, lambda: dict(owners))
        start = time.monotonic()
        verdict = run.round.run(task)
        run.seconds = time.monotonic() - start
        return verdict

    run.folder = tmp_path / "state"
    yield run
    for store in made:
        store.close()


def served(folder):
    return json.loads((folder / "served.json").read_text())


def events(server, event):
    return [e for e in server.store.events.read() if e["event"] == event]


def honest(sites, task="may", names=NAMES):
    return {n: Site(name, sites.envelope(name, task)) for n, name in enumerate(names, 11)}


def test_a_task_ends_with_receipts_and_the_head_for_everyone(server, sites):
    nodes = honest(sites)
    nodes[99] = Site("stranger")
    assert server("may", nodes) == "complete"
    head = (server.folder / "head.fedran").read_bytes()
    for n, name in enumerate(NAMES, 11):
        (receipt,) = nodes[n].receipts
        assert (receipt["client"], receipt["task"], receipt["outcome"]) == (name, "may", "accepted")
        assert nodes[n].head == head
    assert (nodes[99].receipts, nodes[99].head) == ([], head)
    note = served(server.folder)
    assert note["head"] == hashlib.sha256(head).hexdigest()
    assert sorted(note["nodes"]) == ["11", "12", "13", "99"]
    assert fedran.load(server.folder / "head.fedran").classes == (0, 1)
    assert [e["state"] for e in events(server, "task")] == ["open", "complete"]
    (event,) = events(server, "head")
    assert (event["task"], event["classes"], event["accuracy"]) == ("may", 2, None)


def test_messages_are_pulled_one_at_a_time(server, sites):
    server("may", honest(sites))
    assert set(server.grid.pulled) == {1}


def offers(server):
    return [fields_of(m)["offer"] for m in server.grid.of(MessageType.TRAIN)]


def test_an_offer_carries_the_tasks_before_it(server, sites):
    for task, earlier in (("may", []), ("june", ["may"]), ("may", ["june"]), ("july", None)):
        server(task, honest(sites, task))
        found = offers(server)
        assert len(found) == 3
        assert all(Offer.read(f).task == task for f in found)
        assert found[0]["earlier"] == (["may", "june"] if earlier is None else earlier)
    assert json.loads((server.folder / "tasks.json").read_text()) == {
        "tasks": ["may", "june", "july"]
    }


def test_an_offer_stays_readable_after_very_many_tasks(server, sites):
    server("may", honest(sites))
    tasks = [f"task-{n}" for n in range(MAX_EARLIER + 50)]
    (server.folder / "tasks.json").write_text(json.dumps({"tasks": ["may", *tasks]}))
    server("new", {11: Site("site-1", told="none")})
    offer = Offer.read(offers(server)[0])
    assert offer.earlier == tuple(tasks[-MAX_EARLIER:])


def test_a_run_without_a_task_asks_for_the_newest_again_and_leaves_the_quorum(server, sites):
    server("may", honest(sites))
    server("june", honest(sites, "june", NAMES[:2]))
    before = len(events(server, "task")), len(events(server, "declined"))
    late = Site("site-3", sites.envelope("site-3", "june"), told="something")
    server("", {13: late})
    assert [Offer.read(f).task for f in offers(server)] == ["june"]
    assert late.receipts[0]["outcome"] == "accepted"
    assert late.head == (server.folder / "head.fedran").read_bytes()
    assert (len(events(server, "task")), len(events(server, "declined"))) == before
    assert served(server.folder)["nodes"] == ["13"]
    assert json.loads((server.folder / "tasks.json").read_text()) == {"tasks": ["may", "june"]}


def test_a_run_without_a_task_before_the_first_one_offers_nothing(server):
    site = Site("site-1")
    server("", {11: site})
    assert offers(server) == [None]
    assert (site.head, served(server.folder)) == (b"", {"head": "", "nodes": ["11"]})
    assert not (server.folder / "tasks.json").exists()
    assert not (server.folder / "head.fedran").exists()


def test_a_run_without_a_task_waits_for_answers_but_not_for_ever(server, sites):
    server("may", honest(sites))
    server("", {11: lambda _: None})
    assert 0.4 <= server.seconds < 5


def test_without_nodes_a_run_without_a_task_ends_at_once(server):
    server("", {})
    assert server.seconds < 0.3


class Flaky(Site):
    """Answers with an error so many times."""

    def __init__(self, client, times, *blobs):
        super().__init__(client, *blobs)
        self.times = times

    def __call__(self, message):
        if message.metadata.message_type == MessageType.TRAIN and self.times:
            self.times -= 1
            return Error(1, "it broke\x1b[31m")
        return super().__call__(message)


def test_a_node_whose_answer_is_an_error_is_asked_again(server, sites, caplog):
    nodes = honest(sites)
    nodes[11] = Flaky("site-1", 2, sites.envelope("site-1", "may"))
    assert server("may", nodes) == "complete"
    assert len(server.grid.of(MessageType.TRAIN, 11)) == 3
    assert len(server.grid.of(MessageType.TRAIN, 12)) == 1
    assert "node 11: it broke" in caplog.text


def test_but_not_for_ever(server, sites):
    nodes = honest(sites)
    nodes[11] = Flaky("site-1", 10**6, sites.envelope("site-1", "may"))
    assert server("may", nodes) == "quorum"
    assert len(server.grid.of(MessageType.TRAIN, 11)) == MAX_ATTEMPTS
    assert len(server.grid.of(MessageType.TRAIN)) == MAX_ATTEMPTS + 2
    assert "11" not in served(server.folder)["nodes"], "it may have an upload: it is asked again"


def test_a_node_that_connects_later_is_asked_too(server, sites):
    nodes = honest(sites)

    class Growing(Fleet):
        def get_node_ids(self):
            self.looks = getattr(self, "looks", 0) + 1
            return list(self.nodes)[: self.looks]

    assert server("may", Growing(nodes), deadline=5.0) == "complete"
    assert [len(server.grid.of(MessageType.TRAIN, n)) for n in nodes] == [1, 1, 1]


def test_a_node_that_is_silent_for_long_is_asked_again(server, sites, monkeypatch):
    monkeypatch.setattr(messenger, "SLOW_SECONDS", 0.1)
    nodes = honest(sites)
    site, asked = nodes[11], []

    def deaf_once(message):
        asked.append(message)
        return site(message) if len(asked) > 1 else None

    nodes[11] = deaf_once
    assert server("may", nodes, deadline=5.0) == "complete"
    assert len(server.grid.of(MessageType.TRAIN, 11)) == 2


def test_a_node_that_was_killed_at_work_and_is_back_is_asked_again(server, sites):
    """Flower may deliver a message to a process that dies, and never say so."""
    nodes = honest(sites)
    honest_site, asked = nodes[11], []

    def killed_once(message):
        if message.metadata.message_type == MessageType.TRAIN and not asked:
            asked.append(message)
            return None
        return honest_site(message)

    nodes[11] = killed_once

    class Leaving(Fleet):
        def get_node_ids(self):
            self.looks = getattr(self, "looks", 0) + 1
            return [n for n in self.nodes if n != 11 or self.looks not in (3, 4)]

    assert server("may", Leaving(nodes), deadline=5.0) == "complete"
    assert len(server.grid.of(MessageType.TRAIN, 11)) == 2
    assert server.seconds < 4


@pytest.mark.parametrize("least", [1, 2])
def test_the_deadline_is_kept_and_decides(least, server, sites):
    nodes = {11: Site("site-1", sites.envelope("site-1", "may")), 12: lambda _: None}
    assert server("may", nodes, min_clients=least) == ("quorum" if least == 1 else "short")
    assert 0.2 <= server.seconds < 0.2 + 0.5 + 3
    assert events(server, "task")[-1]["missing"] == ["site-2", "site-3"]
    assert nodes[11].receipts[0]["outcome"] == "accepted"
    assert served(server.folder)["nodes"] == ["11"]


def test_sites_that_declined_are_not_waited_for(server, sites):
    nodes = honest(sites, names=NAMES[:1])
    nodes[12] = Site("site-2", told="no rows\x1b[31m for task may yet")
    nodes[13] = Site("site-3", told="x" * 10**5)
    assert server("may", nodes, deadline=30.0) == "complete"
    assert server.seconds < 10
    assert [e["client"] for e in events(server, "declined")] == ["site-2", "site-3"]
    assert "\x1b" not in (server.folder / "events.jsonl").read_text()
    assert nodes[12].head == (server.folder / "head.fedran").read_bytes()


def test_only_the_open_tasks_uploads_count_for_it(server, sites):
    nodes = honest(sites)
    server("april", honest(sites, "april", NAMES[:0]))
    late, foreign = (sites.envelope("site-1", task) for task in ("april", "never-opened"))
    nodes[11] = Site("site-1", late, foreign)
    assert server("may", nodes) == "quorum"
    assert events(server, "task")[-1]["missing"] == ["site-1"]
    assert [r["outcome"] for r in nodes[11].receipts] == ["accepted", "refused"]
    assert ("site-1", "april") in server.store.aggregator.absorbed


def test_a_forged_answer_for_another_site_counts_for_nobody(server, sites):
    nodes = honest(sites)
    forged = sites.envelope("site-1", "may", upload(77), key=sites.keys["site-2"])
    nodes[12] = Site("site-2", sites.envelope("site-2", "may"), forged)
    assert server("may", nodes) == "complete"
    assert [r["outcome"] for r in nodes[11].receipts] == ["accepted"]
    assert events(server, "task")[-1]["missing"] == []


def test_an_upload_that_is_too_large_is_refused_and_the_others_are_not(server, sites):
    nodes = honest(sites)
    nodes[11] = Site("site-1", sites.envelope("site-1", "may"), b"\0" * 5000)
    assert server("may", nodes, largest_upload=4096, budget_bytes=1024) == "complete"
    assert sorted(r["outcome"] for r in nodes[11].receipts) == ["accepted", "refused"]
    assert any("at most 4096 bytes" in r["reason"] for r in nodes[11].receipts)


def test_a_task_that_is_run_again_knows_what_came(server, sites):
    nodes = honest(sites)
    server("may", nodes)
    for node in nodes.values():
        node.blobs = ()
    assert server("may", nodes, deadline=5.0) == "complete"
    assert server.seconds < 4


def test_an_edge_without_rows_of_its_own_has_not_declined(server, sites):
    nodes = honest(sites)
    nodes[11].told = "no rows for may yet"
    assert server("may", nodes) == "complete"
    assert events(server, "declined") == []


def test_tasks_are_known_from_the_uploads_when_their_file_is_lost(server, sites):
    server("may", honest(sites))
    (server.folder / "tasks.json").write_text("{damaged")
    server("june", honest(sites, "june"))
    assert Offer.read(offers(server)[0]).earlier == ("may",)


def test_a_head_that_a_node_holds_is_not_sent_again(server, sites):
    nodes = honest(sites)
    server("may", nodes)
    held = (server.folder / "head.fedran").read_bytes()
    for node in nodes.values():
        node.blobs = ()
    server("", nodes)
    assert sorted(served(server.folder)["nodes"]) == ["11", "12", "13"]
    sent = [m for m in server.grid.of(MessageType.QUERY) if len(m.content["blobs"])]
    assert (sent, nodes[11].head) == ([], held)


def test_a_node_speaks_for_its_owner_alone(server, sites, caplog):
    nodes = honest(sites, names=NAMES[:2])
    nodes[13] = Site("site-1", told="nothing from site-1")
    assert server("may", nodes, owners={"11": "site-1", "12": "site-2", "13": "site-3"}) == "quorum"
    assert "node 13: client: expected site-3, whose node it is, got site-1" in caplog.text
    assert events(server, "declined") == []
    assert events(server, "task")[-1]["missing"] == ["site-3"]


def test_a_node_cannot_answer_under_anothers_name(server, sites):
    """The name beside an upload is not signed; what counts is inside the envelope."""
    nodes = honest(sites, names=NAMES[:1])
    stolen = sites.envelope("site-2", "may", key=sites.keys["site-3"])
    nodes[13] = Site("site-2", stolen)
    assert server("may", nodes, min_clients=2) == "short"
    assert nodes[13].receipts[0]["outcome"] == "refused"
    assert list(server.store.aggregator.absorbed) == [("site-1", "may")]


def raw(array):
    fields = ConfigRecord({"json": json.dumps({"client": "site-3", "head": "", "told": ""})})
    return RecordDict({"fields": fields, "blobs": ArrayRecord({"may": array})})


def named(**fields):
    return content({"client": "site-3", "head": "", "told": "", **fields}, {})


def text(words):
    return RecordDict({"fields": ConfigRecord({"json": words})})


MALFORMED = {
    "another kind of array": raw(Array("uint8", (3,), "numpy.ndarray", b"abc")),
    "nothing": RecordDict(),
    "no fields": RecordDict({"blobs": ArrayRecord({})}),
    "no JSON": text("{"),
    "a list": text("[]"),
    "a number": text("7"),
    "an array as fields": RecordDict({"fields": ArrayRecord({})}),
    "numbers as fields": RecordDict({"fields": MetricRecord({"json": 3})}),
    "no client": content({"head": "", "told": ""}, {}),
    "a path as client": named(client="../../x"),
    "a number as client": named(client=3),
    "an escape as client": named(client="\x1b[31m"),
}
CRASHING = {
    "nested": text("[" * 10**5),
    "words as blobs": RecordDict({**named(), "blobs": ConfigRecord({"may": "x"})}),
    "numbers as blobs": RecordDict({**named(), "blobs": MetricRecord({"may": 3})}),
}
CASES = [pytest.param(body, id=name) for name, body in MALFORMED.items()]
CASES += [pytest.param(body, id=name) for name, body in CRASHING.items()]


@pytest.mark.parametrize("body", CASES)
def test_a_malformed_answer_costs_that_answer_alone(body, server, sites, caplog):
    nodes = honest(sites, names=NAMES[:2])
    nodes = {13: lambda m: body, **nodes}
    with caplog.at_level(logging.WARNING):
        assert server("may", nodes, largest_upload=4096, budget_bytes=1024) == "quorum"
    assert "node 13: " in caplog.text
    assert "\x1b" not in caplog.text
    assert len(server.grid.of(MessageType.TRAIN, 13)) == 1
    assert set(server.store.aggregator.absorbed) == {("site-1", "may"), ("site-2", "may")}
    assert sorted(served(server.folder)["nodes"]) == ["11", "12"]


def test_null_is_no_reason_to_decline(server, sites):
    nodes = honest(sites)
    nodes[11].told = None
    assert server("may", nodes) == "complete"
    assert events(server, "declined") == []


def test_an_upload_that_is_refused_is_told_and_the_rest_goes_on(server, sites):
    nodes = honest(sites, names=NAMES[:2])
    nodes[13] = Site("site-3", b"garbage", sites.envelope("site-3", "may"), b"\0" * 100)
    assert server("may", nodes) == "complete"
    assert [r["outcome"] for r in nodes[13].receipts] == ["refused", "accepted", "refused"]


def test_a_full_disk_acknowledges_nothing(server, sites, monkeypatch, caplog):
    server("april", honest(sites, "april"))
    full = OSError(errno.ENOSPC, "No space left on device")
    nodes = honest(sites)
    with monkeypatch.context() as patch:
        patch.setattr(server.store.journal, "append", lambda _: (_ for _ in ()).throw(full))
        assert server("may", nodes) == "short"
    assert [site.receipts for site in nodes.values()] == [[], [], []]
    assert "site-1: upload not written to disk" in caplog.text
    assert server("may", nodes) == "complete"
    assert [site.receipts[0]["outcome"] for site in nodes.values()] == ["accepted"] * 3


def test_uploads_sent_again_are_counted_and_change_nothing(server, sites):
    nodes = honest(sites)
    server("may", nodes)
    head = (server.folder / "head.fedran").read_bytes()
    assert server("may", nodes) == "complete"
    assert [site.receipts[-1]["outcome"] for site in nodes.values()] == ["duplicate"] * 3
    assert (server.folder / "head.fedran").read_bytes() == head
    assert len(events(server, "head")) == 1


class Deaf(Site):
    """Takes no head: no answer, an error, another digest, or none that can be read."""

    def __call__(self, message):
        if message.metadata.message_type == MessageType.TRAIN:
            return super().__call__(message)
        return self.how


@pytest.mark.parametrize(
    "how",
    [
        None,
        Error(1, "x"),
        named(head="0" * 64),
        named(head=None),
        text("{"),
        RecordDict(),
        pytest.param(text("[" * 10**5)),
    ],
)
def test_only_nodes_that_hold_the_newest_head_are_served(how, server, sites, caplog):
    nodes = honest(sites)
    nodes[12] = Deaf("site-2", sites.envelope("site-2", "may"))
    nodes[12].how = how
    assert server("may", nodes) == "complete"
    assert sorted(served(server.folder)["nodes"]) == ["11", "13"]
    assert "1 of 3 nodes will be asked again" in caplog.text
    assert server.seconds < 5


def test_more_is_needed_than_the_roster_has(server, sites):
    with pytest.raises(ValueError, match="min_clients is 4, but the roster has 3 sites"):
        server("may", honest(sites), min_clients=4)


def test_two_pushes_that_flower_refused_are_both_tried_again(server, sites):
    """Flower's number for a message that it did not take is empty, and its answer an error."""

    class Refusing(Fleet):
        refusals = 2

        def push_messages(self, messages):
            (message,) = messages
            if self.refusals and message.metadata.message_type == MessageType.TRAIN:
                self.refusals -= 1
                return [""]
            return super().push_messages([message])

        def pull_messages(self, message_ids):
            if list(message_ids) == [""]:
                return [Reply(error=Error(1, "unknown message"))]
            return super().pull_messages(message_ids)

    assert server("may", Refusing(honest(sites))) == "complete"


def test_the_messages_are_flowers_own(server, sites):
    server("may", honest(sites))
    assert all(isinstance(m, Message) for m in server.grid.sent)
    assert all(m.metadata.ttl <= 1.0 for m in server.grid.of(MessageType.TRAIN))


def test_an_upload_of_another_feature_map_is_refused(server, sites):
    other = fedran.RandomFeatures(D, M, seed=1, source="test")
    blob = sites.envelope("site-1", "may", upload(1, phi=other), fingerprint=other.fingerprint.hash)
    nodes = {11: Site("site-1", blob)}
    assert server("may", nodes) == "short"
    assert "feature map differs" in nodes[11].receipts[0]["reason"]
    assert nodes[11].head == b""
