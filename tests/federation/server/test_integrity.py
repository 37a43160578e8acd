"""Damage of any region of a database is noticed and named, and what is intact can be saved."""

import random
import sqlite3
from contextlib import closing

import pytest

pytest.importorskip("cryptography")

import fedran
from fedran.federation.protocol.identity import SiteKey
from fedran.federation.protocol.messages import open_envelope
from fedran.federation.server.database import Database
from fedran.federation.server.events import EventLog
from fedran.federation.server.integrity import salvage, table_names, verify
from fedran.federation.server.sqlite_file import StoreDamaged, StoreFailed, StoreVersion
from helpers.made_federation import Sites, upload

TASKS = [f"task-{n}" for n in range(4)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The file of a database with rows in every table."""
    folder, sites = tmp_path_factory.mktemp("whole"), Sites("site-1", "site-2", "edge")
    store = sites.store(folder)
    for n, task in enumerate(TASKS):
        store.receive(sites.envelope("site-1", task, upload(n, classes=range(30), n=60)))
        store.database.set_task(task, asked=["site-1"])
    store.receive(sites.envelope("edge", "may.sum-1", members=(("site-2", "may"),)))
    waiting = sites.envelope("site-2", "june")
    store.database.add_waiting(open_envelope(waiting).statement, waiting, "unusual")
    refused = sites.envelope("site-2", "march")
    store.database.add_waiting(open_envelope(refused).statement, refused, "unusual")
    store.reject("site-2", "march")
    store.database.set_nodes({"site-1": ("7", "key"), "site-2": ("8", "other")})
    fields = {"task": "may", "classes": 2, "size": 9, "accuracy": 0.5, "seconds": 0.1}
    store.database.add_head("d" * 64, **fields)
    store.receive(sites.envelope("site-2", "april"))
    store.forget("site-2", "april", "me", SiteKey.generate())
    store.database.set_served("sent-now", ["7"])
    store.database.set_run("1", "may", "finished", 5, 6)
    store.database.set_seen("site-1")
    store.database.add_charge("may", 1, 3.0, 1e-5, ["site-1", "site-2"])
    store.close()
    return (folder / "store.db").read_bytes()


def dump(data, folder):
    folder.mkdir(exist_ok=True)
    (folder / "store.db").write_bytes(data)
    with closing(sqlite3.connect(folder / "store.db")) as sql:
        return {t: sql.execute(f"SELECT * FROM {t}").fetchall() for t in table_names()}


def damaged(data, folder):
    """What a verification of these bytes finds; all tables if it finds nothing."""
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    (folder / "store.db").write_bytes(data)
    try:
        with closing(Database(folder, read_only=True)) as database:
            return verify(database)
    except (StoreDamaged, StoreVersion) as reason:
        return [str(reason)]


def test_an_intact_database_is_verified_also_while_it_is_written(whole, tmp_path):
    assert all(dump(whole, tmp_path).values())
    with closing(Database(tmp_path)) as database:
        assert verify(database) == []
        with database.transaction():
            database.set_task("being written")
            assert damaged_beside(tmp_path) == []


def damaged_beside(folder):
    with closing(Database(folder, read_only=True)) as other:
        return verify(other)


def test_no_altered_byte_changes_the_contents_unnoticed(whole, tmp_path):
    """Bytes that no content depends on may be altered; every other one is noticed."""
    expected, rng, noticed = dump(whole, tmp_path / "whole"), random.Random(0), 0
    places = [*range(100), *rng.sample(range(100, len(whole)), 150)]
    for at in places:
        data = bytearray(whole)
        data[at] ^= 1 << rng.randrange(8)
        found = damaged(bytes(data), tmp_path / "x")
        noticed += bool(found)
        if not found:
            assert dump(bytes(data), tmp_path / "y") == expected, f"byte {at}"
    assert noticed > 60  # most of the other bytes are unused


TEXTS = {
    "quarantine": b"unusual",
    "records": b"fedran record 1",
    "nodes": b"other",
    "facts": b"sent-now",
    "events": b'"outcome":"acc',
}


@pytest.mark.parametrize("table", TEXTS)
def test_an_altered_text_is_noticed_and_its_table_named(table, whole, tmp_path):
    at = whole.index(TEXTS[table])
    found = damaged(whole[:at] + b"x" + whole[at + 1 :], tmp_path)
    assert any(f"of the table {table} is not what was written" in line for line in found)


def test_an_altered_envelope_is_noticed_and_named(whole, tmp_path):
    with closing(sqlite3.connect(tmp_path / "w.db")) as sql:
        (tmp_path / "w.db").write_bytes(whole)
        query = "SELECT content FROM envelopes JOIN uploads ON envelope = sha256 WHERE task = ?"
        (content,) = sql.execute(query, ["task-2"]).fetchone()
    at = whole.index(content[-40:])
    found = damaged(whole[:at] + b"\0" + whole[at + 1 :], tmp_path / "x")
    assert found == ["the envelope of site-1 for task-2 is not what was written"]


@pytest.mark.parametrize("cut", [0.2, 0.5, 0.9])
def test_a_truncated_database_is_noticed(cut, whole, tmp_path):
    assert damaged(whole[: int(cut * len(whole))], tmp_path)


def salvaged(data, folder):
    (folder / "old.db").write_bytes(data)
    with closing(Database(folder / "new")) as new:
        lost = salvage(folder / "old.db", new)
        assert verify(new) == []
        uploads = [u.key for u in new.uploads()]
        return lost, uploads, new.quarantine(), [e["event"] for e in EventLog(new).read()]


def test_everything_of_an_intact_database_is_saved(whole, tmp_path):
    lost, uploads, waiting, events = salvaged(whole, tmp_path)
    assert lost == []
    assert uploads == [*(("site-1", t) for t in TASKS), ("edge", "may.sum-1")]
    assert list(waiting) == [("site-2", "june")]
    assert events.count("upload") == 7
    before = dump(whole, tmp_path / "before")
    after = dump((tmp_path / "new" / "store.db").read_bytes(), tmp_path / "after")
    before["facts"], after["facts"] = [], []  # the epoch is a new one
    assert {t: sorted(r) for t, r in after.items()} == {t: sorted(r) for t, r in before.items()}


def test_an_upload_with_a_damaged_envelope_is_named_as_lost(whole, tmp_path):
    (tmp_path / "w.db").write_bytes(whole)
    with closing(sqlite3.connect(tmp_path / "w.db")) as sql:
        query = "UPDATE envelopes SET content = zeroblob(9) WHERE sha256 = ?"
        (sha256,) = sql.execute("SELECT envelope FROM uploads WHERE task = 'task-1'").fetchone()
        sql.execute(query, [sha256])
        sql.commit()
    lost, uploads, *_ = salvaged((tmp_path / "w.db").read_bytes(), tmp_path)
    assert lost == ["the upload of site-1 for task-1: its envelope is damaged"]
    assert ("site-1", "task-1") not in uploads
    assert len(uploads) == 4


def test_an_envelope_without_its_record_goes_to_quarantine(whole, tmp_path):
    (tmp_path / "w.db").write_bytes(whole)
    with closing(sqlite3.connect(tmp_path / "w.db")) as sql:
        sql.execute("UPDATE uploads SET rows = 5 WHERE task = 'task-3'")
        sql.execute("DELETE FROM uploads WHERE task = 'task-0'")
        sql.commit()
    lost, uploads, waiting, _ = salvaged((tmp_path / "w.db").read_bytes(), tmp_path)
    assert any("record of site-1 for task-3; the upload itself is in quarantine" in x for x in lost)
    assert {("site-1", "task-0"), ("site-1", "task-3")} < set(waiting)
    assert len(uploads) == 3


def test_whatever_is_altered_what_is_lost_is_named(whole, tmp_path):
    """Every accepted upload is saved, in quarantine, or named."""
    rng, keys = random.Random(1), {*(("site-1", t) for t in TASKS), ("edge", "may.sum-1")}
    for n in range(40):
        data, folder = bytearray(whole), tmp_path / str(n)
        folder.mkdir()
        page = 4096 * rng.randrange(1, len(whole) // 4096)
        data[page : page + 4096] = rng.randbytes(4096)
        try:
            lost, uploads, waiting, _ = salvaged(bytes(data), folder)
        except (StoreDamaged, StoreFailed):
            continue
        for client, task in keys - {*uploads, *waiting}:
            named = f"{client} for {task}"
            assert any(named in line or "cannot be read completely" in line for line in lost)


def test_nothing_can_be_saved_of_another_file(tmp_path):
    (tmp_path / "old.db").write_bytes(b"something else" * 400)
    with (
        closing(Database(tmp_path / "new")) as new,
        pytest.raises(StoreDamaged, match="nothing can be saved"),
    ):
        salvage(tmp_path / "old.db", new)


def test_a_summary_in_a_verified_database_decodes(whole, tmp_path):
    dump(whole, tmp_path)
    with closing(Database(tmp_path)) as database:
        for blob in database.envelopes():
            assert fedran.decode(open_envelope(blob).upload).accounts.n_rows > 0
