"""The state of a federation, read from files alone."""

import json
import shutil
import time
from dataclasses import asdict
from types import SimpleNamespace

import pytest

pytest.importorskip("cryptography")

from fedran.federation.ops.tasks import run_task
from fedran.federation.protocol import keys
from fedran.federation.protocol.identity import SiteKey
from fedran.federation.protocol.lockfile import DiskFull
from fedran.federation.server.settings import REFUSED_REQUESTS, ServerPaths
from fedran.federation.server.store.schema import Tombstone
from fedran.federation.site.settings import ALARMS
from fedran.federation.status.format import facts
from fedran.federation.status.metrics import render_metrics
from fedran.federation.status.reader import Reader
from helpers.federation.made_federation import upload
from helpers.federation.recorded_federation import RecordedFederation


@pytest.fixture
def recorded(tmp_path):
    return RecordedFederation(tmp_path / "trial")


def read(recorded):
    return Reader(recorded.folder).read()


def site(status, client):
    return next(s for s in status.sites if s.client == client)


def test_the_status_of_a_server_that_never_ran(recorded):
    for folder in (recorded.folder, recorded.server):
        status = Reader(folder).read()
        assert (status.running, status.records) == (False, 0)
        assert (status.head, status.tasks, status.transport) == (None, [], 0)
        names = ("site-1", "site-2", "site-3")
        assert [(s.client, s.connected) for s in status.sites] == [(n, None) for n in names]
    with pytest.raises(FileNotFoundError, match=r"no server\.toml here or in server/"):
        Reader(recorded.folder / "sites")


def test_the_status_of_a_task_from_its_opening_to_its_end(recorded):
    recorded.task("may")
    recorded.upload("site-1", "may")
    recorded.upload("site-2", "may", "refused", reason="no")
    recorded.events.write("declined", client="site-3", task="may", reason="no rows yet")
    recorded.events.write("declined", client="stranger", task="may", reason="let me in")
    with recorded.task_running("may"):
        (task,) = read(recorded).open_tasks
    answers = {"site-1": "accepted", "site-2": "refused", "site-3": "nothing to send"}
    assert task.answers == answers
    assert (task.accepted, task.rows, task.payload) == (1, 7, 100)
    assert (task.transport, task.accuracy, task.min_clients) == (0, None, 2)
    assert 50 < task.ends - time.time() <= 60
    recorded.upload("site-1", "may", "refused", reason="other rows", bytes=1)
    recorded.task("may", "quorum", missing=["site-3"], min_clients=1)
    recorded.head("may")
    recorded.database.set_run("1", "may", "started", 4, 0)
    recorded.database.set_run("2", "may", "ended", 0, 1)
    for run in ("1", "3"):  # Flower's list does not name the tasks
        recorded.database.set_run(run, "", "ended", 30, 10)
    status = read(recorded)
    (task,) = status.tasks
    assert (task.state, task.accuracy, task.answers) == ("quorum", 0.5, answers)
    assert (task.transport, status.transport, status.payload) == (41, 81, 100)
    assert (status.open_tasks, status.head.classes, status.head.accuracy) == ([], 1, 0.5)


def test_a_forgotten_upload_is_not_missing_and_its_head_is_of_no_task(recorded):
    recorded.task("may")
    recorded.upload("site-1", "may")
    recorded.database.forget([Tombstone("site-2", "may", "d", 1.0, "owner")])
    recorded.task("may", "quorum")
    recorded.head("forget")
    status = read(recorded)
    (task,) = status.tasks
    assert task.answers == {"site-1": "accepted", "site-2": "forgotten", "site-3": "missing"}
    assert status.head.task == "forget"


def test_a_task_whose_run_died_is_interrupted_not_open(recorded):
    recorded.task("may")
    recorded.events.write("declined", client="site-3", task="may", reason="no rows yet")
    assert read(recorded).tasks[0].state == "interrupted"
    with recorded.task_running("june"):
        assert read(recorded).tasks[0].state == "interrupted"
    with recorded.task_running("may"):
        recorded.task("may")
        (task,) = read(recorded).tasks
        assert (task.state, set(task.answers.values())) == ("open", {"missing"})


def test_unsigned_messages_count_for_no_site_and_create_no_task(recorded):
    recorded.upload("site-1", "may", "refused", verified=False, reason="signature")
    recorded.upload("stranger", "june", "refused", verified=False, reason="signature")
    recorded.events.write("declined", client="site-2", task="may", reason="nothing")
    status = read(recorded)
    assert [s.client for s in status.sites] == ["site-1", "site-2", "site-3"]
    assert all((s.last_seen, s.uploads, s.bytes) == (None, 0, None) for s in status.sites)
    assert status.tasks == []
    assert [(t.client, t.verified) for t in status.problems] == [
        ("stranger", False),
        ("site-1", False),
    ]


def test_what_a_site_sent_adds_up_and_a_replayed_envelope_does_not_count(recorded):
    for task in ("may", "june", "july"):
        recorded.task(task)
    recorded.upload("site-1", "june", classes=[["cat", 4], ["1", 1]], rows=5)
    recorded.upload("site-1", "may", classes=[["cat", 3], [1, 2]], rows=5)  # as a revision is
    recorded.upload("site-1", "may", "duplicate")
    found = site(read(recorded), "site-1")
    assert found.classes == [("cat", 7), (1, 2), ("1", 1)]
    assert (found.uploads, found.rows, found.bytes) == (2, 10, 200)
    assert found.last_seen is None
    recorded.database.set_seen("site-1")
    assert time.time() - 60 < site(read(recorded), "site-1").last_seen <= time.time()


def test_a_site_is_connected_disconnected_or_unknown(recorded):
    now = time.time()
    recorded.seen("site-1", now - 70)  # between two looks of the server
    recorded.seen("site-2", now - 600)
    recorded.seen("stranger", now)
    with recorded.server_running():
        status = read(recorded)
        assert (status.running, status.connected) == (True, 1)
        assert [s.connected for s in status.sites] == [True, False, False]
        assert [s.last_seen for s in status.sites] == [now - 70, now - 600, None]
    status = read(recorded)
    assert (status.running, status.connected) == (False, None)
    assert {s.connected for s in status.sites} == {None}


def test_neither_events_of_other_kinds_nor_a_damaged_roster_stop_the_reader(recorded):
    for event in ("task", "forget", "restore", "unheard of"):
        recorded.events.write(event, client=3)
    recorded.upload("site-1", "may")
    (recorded.server / "roster.toml").write_text("nonsense")
    status = read(recorded)
    json.dumps(asdict(status), allow_nan=False)
    assert any("roster cannot be read" in found.text for found in status.findings)
    assert [task.task for task in status.tasks] == ["may"]
    assert [site.client for site in status.sites] == ["site-1"]


def test_identical_refusals_are_counted_and_not_repeated(recorded):
    with recorded.database.transaction():  # one sync for all
        for _ in range(300):
            recorded.upload("site-1", "may", "refused", reason="same")
        for n in range(300):
            recorded.upload("site-1", "may", "refused", reason=f"reason {n}")
    status = read(recorded)
    assert (len(status.problems), status.problems[0].reason) == (200, "reason 299")
    recorded.upload("site-1", "may", "refused", reason="same")
    assert (read(recorded).problems[0].reason, read(recorded).problems[0].times) == ("same", 301)


def test_reading_a_running_server_changes_no_file(recorded):
    store = recorded.store()
    store.receive(recorded.sites.envelope("site-1", "may", upload(1, classes=("cat", "dog"))))
    store.receive(recorded.sites.envelope("site-2", "may", upload(2)))
    store.receive(recorded.sites.envelope("site-3", "may", key=SiteKey.generate()))

    def files():  # without SQLite's shared memory, which holds no data
        found = (p for p in recorded.server.rglob("*") if p.is_file() and p.suffix != ".db-shm")
        return {p: p.read_bytes() for p in found}

    before = files()
    with store.database.transaction():  # an upload that is being written
        store.database.set_task("june")
        status = read(recorded)
    assert files().keys() == before.keys()
    assert files()[recorded.state / "store.db"] == before[recorded.state / "store.db"]
    assert (status.records, status.findings) == (2, [])
    assert status.disk_bytes > sum(len(b) for p, b in before.items() if recorded.state in p.parents)
    assert sum(n for _, n in site(status, "site-1").classes) == 20
    assert site(status, "site-3").last_seen is None
    store.close()


def test_a_damaged_database_is_a_problem(recorded):
    store = recorded.store()
    store.receive(recorded.sites.envelope("site-1", "may"))
    store.close()
    assert read(recorded).records == 1
    (recorded.state / "store.db").write_bytes(b"something else" * 100)
    status = read(recorded)
    assert status.records is None
    assert status.findings[0].text.startswith("The database cannot be read: ")


def test_alarms_are_findings_and_a_certificate_that_expires_has_a_remedy(open_task, monkeypatch):
    assert Reader(open_task.folder).read().certificate_expires is None
    monkeypatch.setattr(keys, "SERVER_DAYS", 20)
    keys.make_certificates(open_task.server / "tls")
    (open_task.server / "state" / ALARMS).write_text('nonsense\n{"at": 1.0, "reason": "run 77"}\n')
    runtime = ServerPaths(open_task.server).runtime
    runtime.mkdir(parents=True)
    (runtime / REFUSED_REQUESTS).write_text(json.dumps({"at": time.time(), "times": 3}))
    status = Reader(open_task.folder).read()
    assert 19 < (status.certificate_expires - status.at) / 86400 <= 20
    foreign, requests = status.findings
    assert (foreign.level, "run 77" in foreign.text) == ("problem", True)
    assert (requests.level, "at least 3" in requests.text) == ("problem", True)
    (remedy,) = [remedy for name, _, remedy in facts(status) if name == "certificate"]
    assert "fedran federation renew" in remedy


@pytest.mark.parametrize(("free", "level"), [(2**40, None), (2**25, "warning"), (0, "problem")])
def test_a_full_disk_is_seen_and_nothing_claims_to_run(free, level, open_task, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    status = Reader(open_task.folder).read()
    found = [f.level for f in status.findings]
    assert (found, status.running) == ([level] if level else [], level != "problem")
    assert f"fedran_disk_free_bytes {free}\n" in render_metrics(status).decode()
    if level == "problem":
        with pytest.raises(DiskFull, match="disk full"):
            run_task(ServerPaths.find(open_task.folder), "june", say=print)
