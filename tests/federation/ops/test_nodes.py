"""Nodes of the SuperLink: who may connect, who lacks the newest head. Flower is simulated."""

import logging
import sqlite3
import time
from contextlib import closing

import pytest

pytest.importorskip("cryptography")

from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_public_key,
)

from fedran.federation.flower import control
from fedran.federation.ops.nodes import NodeRegistry, _free_key, disconnect
from fedran.federation.protocol.keys import make_node_key
from fedran.federation.protocol.limits import ASK_AGAIN_UPDATES
from fedran.federation.server.settings import ServerPaths
from fedran.federation.server.store.database import Database


class Flower:
    """Answers as Flower's command line does."""

    def __init__(self):
        self.asked, self.nodes, self.runs, self.count = [], {}, [], 0
        self.away = None

    def ask(self, *words):
        self.asked.append(words)
        if self.away is not None:
            raise self.away

    def register_node(self, place, key, name):
        self.ask("register", name)
        if key in [n["key"] for n in self.nodes.values()]:
            raise control.FlowerError("Flower refused to register a node: key already in use")
        self.count += 1
        self.nodes[str(self.count)] = {"key": key, "status": "registered"}
        return str(self.count)

    def unregister_node(self, place, node):
        self.ask("unregister", node)
        if node not in self.nodes:
            raise control.FlowerError("Flower refused to unregister a node: not found")
        del self.nodes[node]

    def list_nodes(self, place):
        self.ask("list nodes")
        return [control.FlowerNode(n, self.nodes[n]["status"]) for n in self.nodes]

    def list_runs(self, place):
        self.ask("list runs")
        return self.runs

    def start_run(self, place):
        self.ask("run")
        return "7"

    def how_often(self, *words):
        return sum(a[: len(words)] == words for a in self.asked)


@pytest.fixture
def link(monkeypatch):
    found = Flower()
    for name in ("register_node", "unregister_node", "list_nodes", "list_runs", "start_run"):
        monkeypatch.setattr(control, name, getattr(found, name))
    return found


@pytest.fixture
def place(tmp_path):
    (tmp_path / "server.toml").write_text('federation = "trial"\nin_features = 6\n')
    for name in ("nodes", "flower", "state"):
        (tmp_path / name).mkdir()
    return ServerPaths(tmp_path)


def flower_run(run_id, status="finished:completed", received=0, sent=0):
    return control.FlowerRun(run_id, status, received, sent)


def database(place):
    return Database(place.state)


def key(place, client, text):
    (place.nodes / f"{client}.pub").write_text(text)


def update(place, times=1, *, catch_up=False, registry=None):
    found = registry or NodeRegistry(place)
    for _ in range(times):
        found.update(catch_up=catch_up)
    return found


def test_a_new_key_is_registered_once_through_restarts(place, link):
    key(place, "site-1", "A")
    for _ in range(3):
        update(place, 2)
    key(place, "site-2", "B")
    update(place, 2)
    assert link.how_often("register") == 2
    assert [n["key"] for n in link.nodes.values()] == ["A", "B"]
    assert database(place).node_owners() == {"1": "site-1", "2": "site-2"}
    assert ("register", "site-1") in link.asked


def test_a_changed_node_key_replaces_the_old_one(place, link):
    key(place, "site-1", "A")
    update(place)
    key(place, "site-1", "B")
    update(place, 3)
    assert [n["key"] for n in link.nodes.values()] == ["B"]
    assert (link.how_often("unregister"), link.count) == (1, 2)
    assert database(place).node_owners() == {"2": "site-1"}


def test_a_removed_key_may_no_longer_connect_and_is_forgotten(place, link, caplog):
    for client in ("site-1", "site-2"):
        key(place, client, client)
    update(place)
    (place.nodes / "site-1.pub").unlink()
    with caplog.at_level(logging.INFO):
        update(place, 3)
    assert [n["key"] for n in link.nodes.values()] == ["site-2"]
    assert link.how_often("unregister") == 1
    assert database(place).node_owners() == {"2": "site-2"}
    assert "the node of site-1 may no longer connect" in caplog.text
    assert "not updated" not in caplog.text


def test_a_key_that_flower_refuses_does_not_keep_others_out(place, link):
    key(place, "site-1", "A")
    key(place, "site-2", "A")
    key(place, "site-3", "C")
    update(place, 2)
    assert {n["key"] for n in link.nodes.values()} == {"A", "C"}


def test_a_key_file_that_is_no_text_is_a_warning(place, link):
    (place.nodes / "site-1.pub").write_bytes(b"\xff\xfe\x00")
    update(place)


def test_nodes_and_runs_are_recorded_for_the_status(place, link):
    for client in ("site-1", "site-2"):
        key(place, client, client)
    link.runs = [flower_run("9", "running", received=5)] * 300
    update(place)
    link.nodes["1"]["status"] = "online"
    link.nodes["2"]["status"] = "offline"
    link.nodes["77"] = {"key": "?", "status": "online"}
    update(place)
    assert database(place).seen().keys() == {"site-1"}
    (run,) = database(place).runs()
    assert (run.run, run.status, run.received, run.sent) == ("9", "running", 5, 0)


def test_a_missing_state_folder_is_created(place, link):
    place.state.rmdir()
    update(place)
    assert place.state.stat().st_mode & 0o077 == 0


GONE = [
    control.FlowerError("no answer of Flower to list runs"),
    OSError(111, "refused"),
    TimeoutError("x"),
    KeyError("nodes"),
]


@pytest.mark.parametrize("reason", GONE, ids=lambda r: type(r).__name__)
def test_no_answer_of_flower_is_a_warning_and_the_next_update_goes_on(reason, place, link, caplog):
    key(place, "site-1", "A")
    registry = NodeRegistry(place)
    link.away = reason
    registry.update(catch_up=True)
    assert "nodes and runs were not updated" in caplog.text
    link.away = None
    registry.update(catch_up=True)
    assert database(place).node_owners() == {"1": "site-1"}


def serve(place, *nodes, head="abc"):
    database(place).set_served(head, nodes)


@pytest.fixture
def three(place, link):
    for client in ("site-1", "site-2", "site-3"):
        key(place, client, client)
    update(place)
    for node in link.nodes.values():
        node["status"] = "online"
    return NodeRegistry(place)


def test_all_nodes_without_the_newest_head_get_it_in_one_run(three, place, link):
    serve(place, "1")
    three.update(catch_up=True)
    assert link.how_often("run") == 1


@pytest.mark.parametrize("why", ["all have it", "no head", "never served", "away", "not wanted"])
def test_no_catch_up_run_is_started_without_need(why, three, place, link):
    if why == "all have it":
        serve(place, "1", "2", "3")
    elif why == "no head":
        serve(place, head="")
    elif why == "away":
        serve(place, "1")
        for number in "23":
            link.nodes[number]["status"] = "offline"
    elif why == "not wanted":
        serve(place)
    three.update(catch_up=why != "not wanted")
    assert link.how_often("run") == 0


@pytest.mark.parametrize("status", ["pending", "starting", "running"])
def test_no_catch_up_run_is_started_while_another_run_is_active(status, three, place, link):
    serve(place)
    link.runs = [flower_run("1"), flower_run("2", status)]
    three.update(catch_up=True)
    assert link.how_often("run") == 0
    link.runs[1] = flower_run("2", "finished:failed")
    three.update(catch_up=True)
    assert link.how_often("run") == 1


def test_all_sites_are_asked_once_per_hour(three, place, link, monkeypatch):
    """They may have revised an upload, and cannot speak first."""
    serve(place, "1", "2", "3")
    start = time.monotonic()
    for hours, runs in ((0.9, 0), (1.1, 1), (1.9, 1), (2.2, 2)):
        monkeypatch.setattr("time.monotonic", lambda at=start + 3600 * hours: at)
        three.update(catch_up=True)
        assert link.how_often("run") == runs


def test_waiting_for_one_node_does_not_delay_another(three, place, link):
    serve(place, "1", "2")
    three.update(catch_up=True)
    three.update(catch_up=True)
    assert link.how_often("run") == 1
    serve(place, "1")
    three.update(catch_up=True)
    assert link.how_often("run") == 2


def test_a_node_that_accepted_the_head_is_served_at_once_the_next_time(three, place, link):
    """As the how-to says: within ``catch_up`` seconds of coming back, every time."""
    for head in ("first", "second", "third"):
        serve(place, "1", "2", head=head)
        three.update(catch_up=True)
        serve(place, "1", "2", "3", head=head)
        three.update(catch_up=True)
    assert link.how_often("run") == 3


def test_another_head_is_sent_at_once_although_nodes_were_asked_just_before(three, place, link):
    """A removal soon after a task must not leave the old classifier in use for ten minutes."""
    for head in ("first", "second"):
        serve(place, head=head)
        three.update(catch_up=True)
        three.update(catch_up=True)
    assert link.how_often("run") == 2


def test_nodes_are_registered_again_after_a_crash_or_with_a_new_database(place, link):
    key(place, "site-1", "A")
    update(place)
    database(place).set_nodes({})  # registered there, not written down here
    update(place)
    assert database(place).node_owners() == {"2": "site-1"}
    assert list(link.nodes) == ["2"]
    link.nodes.clear()  # Flower's database is a new one
    update(place)
    assert database(place).node_owners() == {"3": "site-1"}


def test_the_key_of_an_unregistered_node_can_be_registered_again(place):
    """With the tables of Flower, which keeps the keys of unregistered nodes as unique ones."""
    pytest.importorskip("flwr")
    from flwr.supercore.state.schema.linkstate_tables import create_linkstate_metadata
    from sqlalchemy import create_engine

    text, path = make_node_key(place.flower / "node.key"), place.flower / "state.db"
    pem = load_ssh_public_key(text.encode()).public_bytes(
        Encoding.PEM, PublicFormat.SubjectPublicKeyInfo
    )
    create_linkstate_metadata().create_all(create_engine(f"sqlite:///{path}"))

    def register(number):
        with closing(sqlite3.connect(path)) as sql, sql:
            row = (number, "registered", pem)
            sql.execute("INSERT INTO node (node_id, status, public_key) VALUES (?, ?, ?)", row)

    register(1)
    _free_key(path, text)
    with pytest.raises(sqlite3.IntegrityError):
        register(2)  # the first node is still registered: its key stays taken
    with closing(sqlite3.connect(path)) as sql, sql:
        sql.execute("UPDATE node SET status = 'unregistered'")
    with pytest.raises(sqlite3.IntegrityError):
        register(2)
    _free_key(path, text)
    register(2)


def updates_with_a_run(registry, link, count):
    """The numbers of the updates that started a run."""
    found = []
    for n in range(count):
        runs = link.how_often("run")
        registry.update(catch_up=True)
        found += [n] * (link.how_often("run") - runs)
    return found


def test_a_node_that_never_accepts_the_head_is_asked_every_fifth_time(three, place, link):
    serve(place, "1", "2")
    assert updates_with_a_run(three, link, 24) == [0, 5, 10, 15, 20]


def test_a_node_that_was_away_for_long_is_asked_at_once(three, place, link):
    serve(place, "1", "2")
    updates_with_a_run(three, link, 12)
    link.nodes["3"]["status"] = "offline"
    assert updates_with_a_run(three, link, ASK_AGAIN_UPDATES) == []
    link.nodes["3"]["status"] = "online"
    assert updates_with_a_run(three, link, 1) == [0]


def test_a_site_that_is_removed_is_disconnected_at_once(place, link):
    for client in ("site-1", "site-2"):
        key(place, client, client)
    update(place)
    assert disconnect(place, "site-1")
    assert database(place).nodes().keys() == {"site-2"}
    assert [n["key"] for n in link.nodes.values()] == ["site-2"]
    link.away = control.FlowerError("no answer")
    assert not disconnect(place, "site-2")
    assert database(place).nodes().keys() == {"site-2"}, "the next update does it"
