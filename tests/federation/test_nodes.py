"""Nodes at the SuperLink: who may connect, who lacks the newest head. Flower is made up here."""

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

from fedran.core.errors import Refused
from fedran.federation.ops import flower
from fedran.federation.ops.nodes import PATIENCE, Registry, active, note_of
from fedran.federation.server.settings import ServerPaths


class Flower:
    """Answers as Flower's command line does."""

    def __init__(self):
        self.asked, self.nodes, self.runs, self.count = [], {}, [], 0
        self.away = None

    def __call__(self, place, *words, timeout=60.0):
        self.asked.append(words)
        if self.away is not None:
            raise self.away
        if words[:2] == ("supernode", "register"):
            key = Path(words[2]).read_text()
            if key in [n["key"] for n in self.nodes.values()]:
                raise Refused("flwr supernode register", "an answer", "Public key already in use")
            self.count += 1
            self.nodes[str(self.count)] = {"key": key, "status": "registered"}
            return {"success": True, "node-id": self.count}
        if words[:2] == ("supernode", "unregister"):
            if words[2] not in self.nodes:
                raise Refused("flwr supernode unregister", "an answer", "Node not found")
            del self.nodes[words[2]]
            return {"success": True}
        if words[:2] == ("supernode", "list"):
            return {"nodes": [self.node(n) for n in self.nodes]}
        if words[0] == "run":
            return {"run-id": 7}
        return {"runs": self.runs}

    def node(self, number):
        times = {"online-at": "2026-01-01T00:00:00Z", "offline-at": "2026-01-02T00:00:00Z"}
        return {"node-id": int(number), "status": self.nodes[number]["status"], **times}

    def how_often(self, *words):
        return sum(a[: len(words)] == words for a in self.asked)


@pytest.fixture
def link(monkeypatch):
    found = Flower()
    monkeypatch.setattr(flower, "ask", found)
    return found


@pytest.fixture
def place(tmp_path):
    (tmp_path / "server.toml").write_text('federation = "trial"\nin_features = 6\n')
    for name in ("nodes", "flower", "state"):
        (tmp_path / name).mkdir()
    return ServerPaths(tmp_path)


def key(place, client, text):
    (place.nodes / f"{client}.pub").write_text(text)


def look(place, times=1, *, catch_up=False, registry=None):
    found = registry or Registry(place, named=True)
    for _ in range(times):
        found.look(catch_up=catch_up)
    return found


def test_a_new_key_is_registered_once_through_restarts(place, link):
    key(place, "site-1", "A")
    for _ in range(3):
        look(place, 2)
    key(place, "site-2", "B")
    look(place, 2)
    assert link.how_often("supernode", "register") == 2
    assert [n["key"] for n in link.nodes.values()] == ["A", "B"]
    assert place.node_owners() == {"1": "site-1", "2": "site-2"}
    asked = next(words for words in link.asked if words[:2] == ("supernode", "register"))
    assert asked[3:] == (flower.LINK, "--name", "site-1")


def test_a_changed_key_takes_the_place_of_the_old_one(place, link):
    key(place, "site-1", "A")
    look(place)
    key(place, "site-1", "B")
    look(place, 3)
    assert [n["key"] for n in link.nodes.values()] == ["B"]
    assert (link.how_often("supernode", "unregister"), link.count) == (1, 2)
    assert place.node_owners() == {"2": "site-1"}


def test_a_removed_key_may_no_longer_connect(place, link, caplog):
    for client in ("site-1", "site-2"):
        key(place, client, client)
    look(place)
    (place.nodes / "site-1.pub").unlink()
    with caplog.at_level(logging.INFO):
        look(place)
    assert [n["key"] for n in link.nodes.values()] == ["site-2"]
    assert "node of site-1 may no longer connect" in caplog.text


def test_a_removed_key_is_forgotten(place, link, caplog):
    for client in ("site-1", "site-2"):
        key(place, client, client)
    look(place)
    (place.nodes / "site-1.pub").unlink()
    look(place, 3)
    assert link.how_often("supernode", "unregister") == 1
    assert place.node_owners() == {"2": "site-2"}
    assert "did not answer" not in caplog.text


def test_one_key_that_flower_refuses_does_not_keep_others_out(place, link):
    key(place, "site-1", "A")
    key(place, "site-2", "A")
    key(place, "site-3", "C")
    look(place, 2)
    assert {n["key"] for n in link.nodes.values()} == {"A", "C"}
    assert (place.state / "flower.json").exists()


def test_a_key_file_that_is_no_text_is_a_warning(place, link):
    (place.nodes / "site-1.pub").write_bytes(b"\xff\xfe\x00")
    look(place)


def test_without_node_keys_nothing_is_registered(place, link):
    key(place, "site-1", "A")
    look(place, registry=Registry(place, named=False))
    assert link.how_often("supernode", "register") == 0
    assert link.how_often("supernode", "list") == 1


def test_what_status_needs_is_noted(place, link):
    for client in ("site-1", "site-2"):
        key(place, client, client)
    link.runs = [{"run-id": 9, "status": "running", "network-traffic": {"inbound-bytes": 5}}] * 300
    look(place)
    link.nodes["1"]["status"] = "online"
    link.nodes["2"]["status"] = "offline"
    link.nodes["77"] = {"key": "?", "status": "online"}
    look(place)
    note = json.loads((place.state / "flower.json").read_text())
    assert [(n["node_id"], n["client"], n["status"]) for n in note["nodes"]] == [
        ("1", "site-1", "online"),
        ("2", "site-2", "offline"),
        ("77", "", "online"),
    ]
    assert [n["last_seen"][:10] for n in note["nodes"][:2]] == ["2026-01-01", "2026-01-02"]
    assert len(note["runs"]) == 100
    assert (note["runs"][0]["run_id"], note["runs"][0]["transport_up"]) == ("9", 5)


def test_the_state_folder_is_made_when_it_is_missing(place, link):
    place.state.rmdir()
    look(place)
    assert place.state.stat().st_mode & 0o077 == 0


GONE = [
    Refused("flwr list", "an answer", "none"),
    OSError(111, "refused"),
    TimeoutError("x"),
    KeyError("nodes"),
]


@pytest.mark.parametrize("reason", GONE, ids=lambda r: type(r).__name__)
def test_flower_that_does_not_answer_is_a_warning_and_the_next_look_goes_on(
    reason, place, link, caplog
):
    key(place, "site-1", "A")
    registry = Registry(place, named=True)
    link.away = reason
    registry.look(catch_up=True)
    assert "looking at nodes and runs" in caplog.text
    link.away = None
    registry.look(catch_up=True)
    assert place.node_owners() == {"1": "site-1"}


def test_flowers_command_line_that_hangs_is_a_warning(place, monkeypatch):
    hanging = [sys.executable, "-c", "import time; time.sleep(30)"]
    (place.flower / "app").mkdir()
    run = subprocess.run

    def slow(command, **how):
        return run(hanging, **{**how, "timeout": 0.2})

    monkeypatch.setattr(flower, "program", lambda name: name)
    monkeypatch.setattr(flower.subprocess, "run", slow)
    look(place)


def serve(place, *nodes, head="abc"):
    (place.state / "served.json").write_text(json.dumps({"head": head, "nodes": list(nodes)}))


@pytest.fixture
def three(place, link):
    for client in ("site-1", "site-2", "site-3"):
        key(place, client, client)
    look(place)
    for node in link.nodes.values():
        node["status"] = "online"
    return Registry(place, named=True)


def test_one_run_for_all_that_lack_the_newest_head(three, place, link):
    serve(place, "1")
    three.look(catch_up=True)
    assert [a for a in link.asked if a[0] == "run"] == [("run", ".", flower.LINK)]


@pytest.mark.parametrize(
    "why", ["all have it", "no head", "no file", "damaged", "away", "told not"]
)
def test_no_run_where_there_is_nothing_to_catch_up(why, three, place, link):
    if why == "all have it":
        serve(place, "1", "2", "3")
    elif why == "no head":
        serve(place, head="")
    elif why == "damaged":
        (place.state / "served.json").write_text("[")
    elif why == "away":
        serve(place, "1")
        for number in "23":
            link.nodes[number]["status"] = "offline"
    elif why == "told not":
        serve(place)
    three.look(catch_up=why != "told not")
    assert link.how_often("run") == 0


@pytest.mark.parametrize("status", ["pending", "starting", "running"])
def test_no_run_beside_another(status, three, place, link):
    serve(place)
    link.runs = [
        {"run-id": 1, "status": "finished:completed"},
        {"run-id": 2, "status": status},
    ]
    three.look(catch_up=True)
    assert link.how_often("run") == 0
    link.runs[1]["status"] = "finished:failed"
    three.look(catch_up=True)
    assert link.how_often("run") == 1


def test_a_node_that_never_takes_the_head_is_asked_ever_more_rarely(three, place, link):
    serve(place, "1", "2")
    found = []
    for n in range(8 * PATIENCE):
        before = link.how_often("run")
        three.look(catch_up=True)
        if link.how_often("run") > before:
            found.append(n)
    assert found == [0, PATIENCE + 1, 3 * PATIENCE + 2, 7 * PATIENCE + 3]


def test_patience_with_one_node_is_not_held_against_another(three, place, link):
    serve(place, "1", "2")
    three.look(catch_up=True)
    three.look(catch_up=True)
    assert link.how_often("run") == 1
    serve(place, "1")
    three.look(catch_up=True)
    assert link.how_often("run") == 2


def test_a_node_that_took_the_head_is_served_at_once_the_next_time(three, place, link):
    """As the how-to says: within ``catch_up`` seconds of coming back, every time."""
    for head in ("first", "second", "third"):
        serve(place, "1", "2", head=head)
        three.look(catch_up=True)
        serve(place, "1", "2", "3", head=head)
        three.look(catch_up=True)
    assert link.how_often("run") == 3


def test_runs_end_in_one_of_flowers_ways():
    for status in ("finished:completed", "finished:failed", "finished:stopped"):
        assert not active({"status": status})
    for status in ("pending", "starting", "running"):
        assert active({"status": status})


def test_a_run_without_traffic_has_none():
    note = note_of({"run-id": 3, "status": "running"})
    assert (note["run_id"], note["transport"], note["transport_up"]) == ("3", 0, 0)


@pytest.mark.parametrize(
    ("said", "code", "words"),
    [
        ('print(\'{"success": false, "error-message": "no\\\\n such"}\')', 1, "got no such"),
        ("import sys; sys.stderr.write('cannot\\nconnect')", 1, "got cannot connect"),
        ("print('nothing like it')", 0, "got nothing like it"),
        ("print('')", 0, "got none"),
        pytest.param(
            "print('[1]')",
            0,
            "an answer",
        ),
        ("print('{\"nodes\": []}')", 0, "an answer"),
    ],
)
def test_what_is_no_answer_of_flower_is_one_sentence(said, code, words, place, monkeypatch):
    (place.flower / "app").mkdir()
    run = subprocess.run

    def fake(command, **how):
        return run([sys.executable, "-S", "-c", f"{said}\nraise SystemExit({code})"], **how)

    monkeypatch.setattr(flower, "program", lambda name: name)
    monkeypatch.setattr(flower.subprocess, "run", fake)
    with pytest.raises(Refused, match=words) as caught:
        flower.ask(place, "supernode", "list", flower.LINK)
    assert str(caught.value).startswith("flwr supernode list: expected an answer")
    assert "\n" not in str(caught.value)


def test_words_before_flowers_answer_are_skipped(place, monkeypatch):
    (place.flower / "app").mkdir()
    run = subprocess.run

    def fake(command, **how):
        said = "print('Loading ...'); print('{\"success\": true, \"runs\": [1]}'); print('done')"
        return run([sys.executable, "-S", "-c", said], **how)

    monkeypatch.setattr(flower, "program", lambda name: name)
    monkeypatch.setattr(flower.subprocess, "run", fake)
    assert flower.ask(place, "list")["runs"] == [1]


def test_a_crash_between_flower_and_our_file_is_mended(place, link):
    key(place, "site-1", "A")
    look(place)
    (place.flower / "nodes.json").unlink()  # registered there, not written down here
    look(place)
    assert place.node_owners() == {"2": "site-1"}
    assert list(link.nodes) == ["2"]
    link.nodes.clear()  # Flower's database is a new one
    look(place)
    assert place.node_owners() == {"3": "site-1"}


def test_nodes_that_flower_lists_as_unregistered_are_left_alone(place, link):
    link.nodes["9"] = {"key": "Z", "status": "unregistered"}
    key(place, "site-1", "A")
    look(place, 3)
    assert link.how_often("supernode", "unregister") == 0
    assert link.how_often("supernode", "register") == 1
